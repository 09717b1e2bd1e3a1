package node

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
)

// FreePort returns a free TCP port that no other test of any process gets until t ends. The
// kernel does not assign it by itself, unless its range covers all ports, so it stays free
// until a program asks for it by its number.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := RandomPort()
		// All tests use the same name for a port; it goes with the process.
		name, err := net.Listen("unix", "@nodectl-test-port-"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			_ = name.Close() // it was never used
			continue
		}
		_ = l.Close() // there was no connection
		t.Cleanup(func() { _ = name.Close() })
		return port
	}
	t.Fatal("no port is free")
	return 0
}

// RandomPort returns a port to try, outside the range of ports that the kernel assigns,
// unless that covers all.
func RandomPort() int {
	low, high := 0, 0
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &low, &high)
	}
	port := 0
	for range 200 {
		port = 12000 + rand.IntN(20000)
		if port < low || port > high {
			break
		}
	}
	return port
}
