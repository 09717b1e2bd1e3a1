package node

import (
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// FreePort returns a TCP port nobody listens at, and which no other test of any
// process is given until t ends. It is none that the kernel hands out by itself, so it
// stays free until somebody asks for it by its number.
func FreePort(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	low, high := 0, 0
	if f := strings.Fields(string(text)); len(f) == 2 {
		low, _ = strconv.Atoi(f[0])
		high, _ = strconv.Atoi(f[1])
	}
	for range 1000 {
		port := 12000 + rand.IntN(20000)
		if low <= port && port <= high {
			continue
		}
		// The name is the same for all who choose ports here, and goes with the process.
		name, err := net.Listen("unix", "@nodectl-test-port-"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			_ = name.Close() // it was never used
			continue
		}
		_ = l.Close() // nobody connected
		t.Cleanup(func() { _ = name.Close() })
		return port
	}
	t.Fatalf("no port is free; the kernel hands out %d to %d", low, high)
	return 0
}
