// Command benchdns measures the DNS server that pods ask: the CPU time of its process for each query,
// and the latency at a fixed rate. docs/benchmarks.md has the method.
//
// It runs in a network namespace of its own, starts the process as an agent does, and needs root.
//
// The CPU time is that of the process alone, as the kernel's scheduler counted it. A latency begins
// when the query was due, so that a late answer delays no measurement.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/pkg/dns"
	"github.com/nodectl/nodectl/pkg/dns/process"
	"github.com/nodectl/nodectl/pkg/dns/server"
)

// inside says that this process runs in the network namespace.
const inside = "NODECTL_BENCHDNS_INSIDE"

var address = netip.MustParseAddr("10.97.0.10")

func main() {
	if len(os.Args) > 2 && os.Args[0] == "nodectl" && os.Args[1] == "dns" {
		os.Exit(process.Child(os.Args[2:]))
	}
	rate := flag.Int("rate", 1000, "queries a second")
	seconds := flag.Int("seconds", 20, "how long each kind of queries is sent")
	services := flag.Int("services", 200, "Services that the server knows")
	flag.Parse()
	if err := isolated(*rate, *services, time.Duration(*seconds)*time.Second); err != nil {
		fmt.Fprintln(os.Stderr, "benchdns:", err)
		os.Exit(1)
	}
}

// isolated measures in a network namespace of its own, until a signal ends it.
func isolated(rate, services int, seconds time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv(inside) == "" {
		return isolate(ctx)
	}
	return measure(ctx, rate, seconds, services)
}

// isolate runs this program again, in a network namespace of its own.
func isolate(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run in a network namespace: %w", err)
	}
	return nil
}

// measure starts the server, and measures each kind of queries.
func measure(ctx context.Context, rate int, long time.Duration, services int) (err error) {
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("set up the loopback device: %w: %s", err, out)
	}
	dir, err := os.MkdirTemp("", "benchdns")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg := process.Config{
		Dir: filepath.Join(dir, "dns"), LogFile: filepath.Join(dir, "log"), Address: address,
		Range: netip.MustParsePrefix("10.97.0.0/16"), Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	defer func() { err = errors.Join(err, process.Stop(cfg)) }()
	upstream, err := serveOthers()
	if err != nil {
		return err
	}
	k := process.New(cfg)
	k.SetState(stateOf(services, upstream))
	k.Enable()
	if err := k.Ensure(ctx); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	keeping, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { k.Run(keeping) })
	pid, err := pidOf(cfg.Dir)
	if err != nil {
		return err
	}
	fmt.Printf("| queries | sent | CPU a query | of a core at %d/s | p50 | p99 | p99.9 | lost |\n|---|---|---|---|---|---|---|---|\n", rate)
	for _, kind := range kinds(services) {
		r, err := run(ctx, pid, kind, rate, long)
		if err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		fmt.Println(r.row(kind.name, rate))
	}
	return nil
}

// stateOf has Services with cluster IPs, and one headless Service.
func stateOf(services int, upstream netip.AddrPort) server.State {
	s := server.State{
		Config: dns.Config{Domain: "cluster.local", Servers: []netip.Addr{address}, Ranges: []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}, Serial: 1},
		Known:  true, Upstreams: []netip.AddrPort{upstream},
	}
	for i := range services {
		s.Services = append(s.Services, &dns.Service{
			Namespace: "default", Name: fmt.Sprintf("web-%d", i), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(1 + i/250), byte(1 + i%250)})},
			Ports: []dns.Port{{Name: "http", Protocol: "TCP", Number: 80}},
		})
	}
	headless := dns.Service{Namespace: "default", Name: "db"}
	for i := range 5 {
		headless.Endpoints = append(headless.Endpoints, dns.Endpoint{Address: netip.AddrFrom4([4]byte{10, 88, 0, byte(2 + i)}), Hostname: fmt.Sprintf("db-%d", i)})
	}
	s.Services = append(s.Services, &headless)
	return s
}

// result has the measurements of one kind of queries.
type result struct {
	latencies []time.Duration
	cpu, took time.Duration
	lost      int
}

// row is the result's row of the table.
func (r result) row(name string, rate int) string {
	slices.Sort(r.latencies)
	at := func(share float64) time.Duration {
		if len(r.latencies) == 0 {
			return 0
		}
		return r.latencies[min(int(share*float64(len(r.latencies))), len(r.latencies)-1)].Round(time.Microsecond)
	}
	sent := len(r.latencies) + r.lost
	each := r.cpu / time.Duration(max(sent, 1))
	return fmt.Sprintf("| %s | %d | %v | %.1f %% | %v | %v | %v | %d |",
		name, sent, each.Round(100*time.Nanosecond), 100*each.Seconds()*float64(rate), at(0.5), at(0.99), at(0.999), r.lost)
}
