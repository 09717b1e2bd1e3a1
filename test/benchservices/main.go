// Command benchservices measures the Services of a node without a cluster: how long the change of a
// pod's readiness takes to reach the rules of the kernel, how much work it is, and the CPU time of a
// balancer that has nothing to do. docs/benchmarks.md has the method.
//
// It runs in a network namespace of its own, and needs root.
//
// A latency ends when the kernel has confirmed the transaction with the new rules.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// inside says that this process runs in the network namespace.
const inside = "NODECTL_BENCHSERVICES_INSIDE"

func main() {
	services := flag.Int("services", 200, "Services")
	endpoints := flag.Int("endpoints", 5, "endpoints of each Service")
	changes := flag.Int("changes", 2000, "changes of readiness")
	idle := flag.Duration("idle", time.Minute, "how long the idle balancer is measured")
	flag.Parse()
	if err := isolated(*services, *endpoints, *changes, *idle); err != nil {
		fmt.Fprintln(os.Stderr, "benchservices:", err)
		os.Exit(1)
	}
}

// isolated measures in a network namespace of its own, until a signal ends it.
func isolated(services, endpoints, changes int, idle time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv(inside) == "" {
		return isolate(ctx)
	}
	return measure(ctx, services, endpoints, changes, idle)
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

// measure makes a bridge, as the pods' network has one, and takes all measures.
func measure(ctx context.Context, services, endpoints, changes int, idle time.Duration) error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "br0", "type", "bridge"},
		{"addr", "add", "10.88.0.1/16", "dev", "br0"},
		{"link", "set", "br0", "up"},
	} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	fmt.Println("| Services | endpoints | first fill | p50 | p99 | CPU a change | messages a change |\n|---|---|---|---|---|---|---|")
	for _, n := range []int{services / 10, services, 5 * services} {
		row, err := changesOf(ctx, n, endpoints, changes)
		if err != nil {
			return err
		}
		fmt.Println(row)
	}
	spent, err := idleWith(ctx, 50, idle)
	if err != nil {
		return err
	}
	fmt.Printf("\nIdle with 50 Services and 110 pods: %v of CPU in %v\n", spent, idle)
	return nil
}
