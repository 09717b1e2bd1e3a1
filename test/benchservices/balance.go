package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/balancer"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/service"
	"github.com/nodectl/nodectl/pkg/service/nft"
)

// filter is the packet filter, as the agent has it.
type filter struct {
	*nft.Filter
	applied chan int // the messages of each Apply that has sent some
}

func (f *filter) Apply(d nft.Desired) (messages int, err error) {
	messages, err = f.Filter.Apply(d)
	if messages > 0 || err != nil {
		f.applied <- messages
	}
	return messages, err
}

func (*filter) Links(backends []netip.Addr) ([]netip.Prefix, error) {
	routes, err := nft.Routes()
	return nft.Links(routes, backends), err
}

func (*filter) Prepare(backends []netip.Addr) (bool, error) {
	routes, err := nft.Routes()
	if err != nil {
		return false, err
	}
	_, err = nft.Prepare(routes, backends)
	works, err2 := nft.Loopback6(routes, backends)
	return works, errors.Join(err, err2)
}

func (*filter) Restore() error { return nft.Restore([]string{"br0"}) }

func (*filter) Route(cidr netip.Prefix, on bool) error { return nft.Serve(cidr, on) }

// store keeps nothing.
type store struct{}

func (store) Load() (service.Allocations, error) { return nil, nil }
func (store) Save(service.Allocations) error     { return nil }

// lab is a running balancer.
type lab struct {
	*balancer.Balancer
	filter *filter
	pods   []*v1.Pod
	ready  []bool
}

// with runs a balancer with Services and their pods, and calls do once their rules are in the kernel.
func with(ctx context.Context, services, pods int, do func(l *lab, fill time.Duration) error) error {
	f := &filter{nft.New(), make(chan int, 1)}
	l := &lab{filter: f, Balancer: balancer.New(balancer.Config{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, NodePorts: service.DefaultNodePorts(), Store: store{}, Filter: f,
	})}
	var objects []*pod.Object
	for i := range services {
		objects = append(objects, serviceOf(i))
	}
	for i := range pods {
		l.pods = append(l.pods, podOf(i, i%services))
		l.ready = append(l.ready, true)
	}
	desired := func(key pod.Key) *pod.Spec {
		var n int
		if _, err := fmt.Sscanf(key.Name, "pod-%d", &n); err != nil || n >= len(l.pods) {
			return nil
		}
		return &pod.Spec{Key: key, Pod: l.pods[n]}
	}
	for i := range l.pods {
		if err := l.report(i); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	start := time.Now()
	running.Go(func() { l.Run(ctx) })
	l.Set(objects, desired, balancer.Complete)
	if _, err := l.await(ctx); err != nil {
		return err
	}
	if err := do(l, time.Since(start)); err != nil {
		return err
	}
	stop()
	running.Wait()
	return nft.New().Remove()
}

// await waits until the kernel has new rules, and returns the number of messages.
func (l *lab) await(ctx context.Context) (messages int, err error) {
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	select {
	case messages = <-l.filter.applied:
		if messages == 0 {
			return 0, errors.New("the kernel has refused the rules")
		}
		return messages, nil
	case <-limit.C:
		return 0, errors.New("no rules within a minute")
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// report reports the status of one pod, as the sync loop does.
func (l *lab) report(i int) error {
	p := *l.pods[i]
	ready := v1.ConditionFalse
	if l.ready[i] {
		ready = v1.ConditionTrue
	}
	p.Status = v1.PodStatus{
		Phase: v1.PodRunning, PodIP: netip.AddrFrom4([4]byte{10, 88, byte(1 + i/250), byte(1 + i%250)}).String(),
		Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}},
	}
	return l.Report(pod.StatusReport{Pod: &p, ObservedUID: string(p.UID)})
}

func serviceOf(i int) *pod.Object {
	name := fmt.Sprintf("web-%d", i)
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	s.Spec = v1.ServiceSpec{
		Type: v1.ServiceTypeNodePort, Selector: map[string]string{"app": name},
		Ports: []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}
	return &pod.Object{Key: pod.Key{Namespace: "default", Name: name}, Kind: pod.KindService, Object: s}
}

func podOf(i, of int) *v1.Pod {
	name := fmt.Sprintf("pod-%d", i)
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": fmt.Sprintf("web-%d", of), "tier": "front"},
	}}
}

// changesOf measures changes of readiness, one after another, and returns a row of the table.
func changesOf(ctx context.Context, services, endpoints, changes int) (row string, err error) {
	err = with(ctx, services, services*endpoints, func(l *lab, fill time.Duration) error {
		var latencies []time.Duration
		messages := 0
		before, err := cpu()
		if err != nil {
			return err
		}
		for i := range changes {
			n := (i / 2 * 7919) % len(l.pods) // off and on again
			l.ready[n] = !l.ready[n]
			start := time.Now()
			if err := l.report(n); err != nil {
				return err
			}
			m, err := l.await(ctx)
			if err != nil {
				return err
			}
			latencies = append(latencies, time.Since(start))
			messages += m
		}
		after, err := cpu()
		if err != nil {
			return err
		}
		slices.Sort(latencies)
		at := func(share float64) time.Duration {
			return latencies[min(int(share*float64(len(latencies))), len(latencies)-1)].Round(10 * time.Microsecond)
		}
		row = fmt.Sprintf("| %d | %d | %v | %v | %v | %v | %.1f |", services, services*endpoints, fill.Round(100*time.Microsecond),
			at(0.5), at(0.99), ((after - before) / time.Duration(changes)).Round(10*time.Microsecond), float64(messages)/float64(changes))
		return nil
	})
	return row, err
}

// idleWith returns the CPU time of a balancer with 110 pods that has nothing to do.
func idleWith(ctx context.Context, services int, long time.Duration) (spent time.Duration, err error) {
	err = with(ctx, services, 110, func(*lab, time.Duration) error {
		before, err := cpu()
		if err != nil {
			return err
		}
		wait := time.NewTimer(long)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		after, err := cpu()
		spent = after - before
		return err
	})
	return spent, err
}

// cpu returns the CPU time of this process. It includes the work of the kernel for its calls.
func cpu() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
