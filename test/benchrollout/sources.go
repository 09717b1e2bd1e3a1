package main

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"sync/atomic"
)

// clientRange is the range of the clients' addresses, by RFC 2544.
const clientRange = "198.18.41.0/24"

const (
	// clients is the number of addresses that clients have.
	clients = 8
	// firstPort and lastPort are the source ports of clients. No default range of node ports has them.
	firstPort, lastPort = 33000, 60999
)

// sources gives connections their source addresses and ports, as many clients on many machines would
// have them: the next connection with the same address and port begins only after all others had
// their turn. The kernel gives one client its ports again within some seconds. In the pod and in the
// connection table, an old connection with the same addresses and ports may then still exist.
type sources struct {
	addrs netip.Prefix
	taken atomic.Uint64
}

// next returns the source of the next connection.
func (s *sources) next() netip.AddrPort {
	n := s.taken.Add(1) - 1
	addr := s.addrs.Masked().Addr().Next()
	for range n % clients {
		addr = addr.Next()
	}
	return netip.AddrPortFrom(addr, uint16(firstPort+n/clients%(lastPort-firstPort+1)))
}

// routeClients makes all addresses of a range local ones of this machine, or takes them away again.
func routeClients(ctx context.Context, addrs string, on bool) error {
	verb := "replace"
	if !on {
		verb = "del"
	}
	if out, err := exec.CommandContext(ctx, "ip", "route", verb, "local", addrs, "dev", "lo").CombinedOutput(); err != nil {
		return fmt.Errorf("route %s to this machine: %w: %s", addrs, err, out)
	}
	return nil
}
