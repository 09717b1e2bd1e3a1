package node

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
)

// FreePort returns a TCP port nobody listens at, and which no other test of any
// process is given until t ends. It is none that the kernel hands out by itself, unless
// that hands out all, so it stays free until somebody asks for it by its number.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := RandomPort()
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
	t.Fatal("no port is free")
	return 0
}

// RandomPort returns a port to try: one that the kernel does not hand out by itself,
// unless it hands out all.
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
