package balancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/service"
	"github.com/nodectl/nodectl/pkg/service/nft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is the packet filter and the store of a test.
type world struct {
	mu        sync.Mutex
	applied   []nft.Desired
	calls     []string // all others
	prepared  []netip.Addr
	proxy     string
	unread    error // of Proxy
	broken    error // of Apply
	late      error // of Apply, after it has made the rules
	unguarded error
	disk      error // of Save
	stored    service.Allocations
	changed   func() // of Watch
	proxied   func() // of Watch
	looks     int    // calls of Proxy
	said      []string
}

func (w *world) note(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call)
}

func (w *world) Links([]netip.Addr) ([]netip.Prefix, error) { return nil, nil }
func (w *world) Close()                                     {}
func (w *world) Forget()                                    { w.note("forget") }
func (w *world) Restore() error                             { w.note("restore"); return nil }

func (w *world) Prepare(backends []netip.Addr) (bool, error) {
	w.note("prepare")
	w.set(func() { w.prepared = backends })
	return true, nil
}

func (w *world) Guard() error {
	w.note("guard")
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unguarded
}

func (w *world) Remove() error { w.note("remove"); return nil }

func (w *world) Route(p netip.Prefix, on bool) error {
	w.note(fmt.Sprint("route ", p, " ", on))
	return nil
}

func (w *world) Apply(d nft.Desired) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return 0, w.broken
	}
	w.applied = append(w.applied, d)
	return 1, w.late
}

func (w *world) Proxy() (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	return w.proxy, w.unread
}

// looked returns the number of calls of Proxy.
func (w *world) looked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.looks
}

// did reports whether a call was made.
func (w *world) did(call string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.calls, call)
}

func (w *world) Watch(ctx context.Context, changed, proxied func()) error {
	w.mu.Lock()
	w.changed, w.proxied = changed, proxied
	w.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (w *world) Load() (service.Allocations, error) { return w.stored, nil }

func (w *world) Save(a service.Allocations) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.disk != nil {
		return w.disk
	}
	w.stored = a
	return nil
}

// set changes the world under its lock.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// backends returns the endpoints of the newest rules, and the number of calls of Apply.
func (w *world) backends() (string, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.applied) == 0 {
		return "", 0
	}
	var all []string
	for _, r := range slices.Concat(w.applied[len(w.applied)-1].Rules...) {
		all = append(all, fmt.Sprint(r.Backends))
	}
	return strings.Join(all, " "), len(w.applied)
}

// begin runs a Balancer until the test ends.
func (w *world) begin(t *testing.T, kept ...RecordedPod) *Balancer {
	t.Helper()
	b := New(Config{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}, NodePorts: service.DefaultNodePorts(), Recorded: kept, Store: w, Filter: w,
		Refused: func(o *pod.Object, p pod.Problem) { w.say("refused " + o.Name + " " + p.Path) },
		Trouble: func(reason, _ string) { w.say(reason) },
		Views: func(all []*service.View, complete bool) {
			if complete {
				w.say(fmt.Sprint("views ", len(all)))
				return
			}
			w.say(fmt.Sprint("views ", len(all), " and more"))
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { b.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })
	synctest.Wait()
	return b
}

func (w *world) say(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

func (w *world) heard() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.said)
}

func web(ip string) *pod.Object {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	s.Spec = v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: ip, Selector: map[string]string{"app": "web"}, Ports: []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}}}
	return &pod.Object{Key: pod.Key{Namespace: "default", Name: "web"}, Kind: pod.KindService, Object: s}
}

// onePod returns a pod of the Service, with its status.
func onePod(name, addr string, ready v1.ConditionStatus) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Status:     v1.PodStatus{Phase: v1.PodRunning, PodIP: addr, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}},
	}
}

// wants returns the desired pods.
func wants(pods ...*v1.Pod) func(pod.Key) *pod.Spec {
	return func(key pod.Key) *pod.Spec {
		for _, p := range pods {
			if pod.KeyOf(p) == key {
				return &pod.Spec{Key: key, Pod: p}
			}
		}
		return nil
	}
}

func (w *world) expect(t *testing.T, what, want string) {
	t.Helper()
	synctest.Wait()
	if got, _ := w.backends(); got != want {
		t.Errorf("%s: backends %q, want %q", what, got, want)
	}
}

// TestBalancer_Pods_BecomeEndpointsAndLeave: a pod becomes an endpoint by its status, and leaves as
// soon as it is not desired any more, also if a report from before arrives later.
func TestBalancer_Pods_BecomeEndpointsAndLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		b := w.begin(t)
		p, q := onePod("p", "10.88.0.2", v1.ConditionTrue), onePod("q", "10.88.0.3", v1.ConditionFalse)
		b.Set([]*pod.Object{web("")}, wants(p, q), Complete)
		w.expect(t, "no pod", "[]")
		for _, of := range []*v1.Pod{p, q} {
			_ = b.Report(pod.StatusReport{Pod: of})
		}
		w.expect(t, "one is ready", "[10.88.0.2:8080]")
		_, before := w.backends()
		_ = b.Report(pod.StatusReport{Pod: p})
		synctest.Wait()
		if _, after := w.backends(); after != before {
			t.Error("an equal status changed the rules")
		}
		_ = b.Report(pod.StatusReport{Pod: onePod("q", "10.88.0.3", v1.ConditionTrue)})
		w.expect(t, "both are ready", "[10.88.0.2:8080 10.88.0.3:8080]")
		b.Set(b.services, wants(q), Complete)
		w.expect(t, "one is not desired", "[10.88.0.3:8080]")
		_ = b.Report(pod.StatusReport{Pod: p})
		w.expect(t, "a report is older than the set", "[10.88.0.3:8080]")
		_ = b.Report(pod.StatusReport{Pod: p, NotDesired: true})
		_ = b.Report(pod.StatusReport{Pod: onePod("q", "10.88.0.3", v1.ConditionFalse)})
		w.expect(t, "none is ready, and one serves while it terminates", "[10.88.0.2:8080]")
		_ = b.Report(pod.StatusReport{Pod: p, Gone: true, NotDesired: true})
		w.expect(t, "it is gone", "[]")
		b.Set(nil, wants(q), Complete)
		synctest.Wait()
		if w.calls[len(w.calls)-1] != "route 10.96.0.0/24 false" || w.calls[len(w.calls)-2] != "remove" || len(w.stored) > 0 {
			t.Errorf("without Services: %q, stored %+v", w.calls, w.stored)
		}
	})
}

// TestBalancer_Start_RulesStayUntilEverySourceAnswers: after that, the statuses of the previous
// agent count, and Services keep their addresses.
func TestBalancer_Start_RulesStayUntilEverySourceAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		had := netip.MustParseAddr("10.96.0.77")
		w := &world{stored: service.Allocations{{Namespace: "default", Name: "web"}: {ClusterIPs: []netip.Addr{had}, Created: time.Unix(1, 0)}}}
		p, lost := onePod("p", "10.88.0.2", v1.ConditionTrue), onePod("lost", "10.88.0.9", v1.ConditionTrue)
		b := w.begin(t, RecordedPod{p, &p.Status}, RecordedPod{lost, &lost.Status})
		b.Set(nil, wants(), Waiting)
		b.Set([]*pod.Object{web("")}, wants(p), Waiting)
		synctest.Wait()
		if _, n := w.backends(); n > 0 || slices.Contains(w.calls, "remove") {
			t.Errorf("before every source has answered: %d rules, calls %q", n, w.calls)
		}
		if all, err := b.Services("default"); err != nil || len(all) != 1 || all[0].Spec.ClusterIP != had.String() {
			t.Errorf("%v %+v", err, all)
		}
		b.Set(b.services, wants(p), Complete)
		w.expect(t, "all sources have answered", "[10.88.0.2:8080]")
		if got := w.applied[0].Rules[0][0].Cluster; got != had {
			t.Errorf("cluster IP %s, and it had %s", got, had)
		}
		_ = b.Report(pod.StatusReport{Pod: onePod("p", "10.88.0.2", v1.ConditionFalse)})
		w.expect(t, "a pod that nothing reports does not serve", "[]")
	})
}

// TestBalancer_FullDisk_AddressesAreStoredBeforeTheyAreServed: the Balancer serves them once the
// disk has room.
//
// Shows: F12
func TestBalancer_FullDisk_AddressesAreStoredBeforeTheyAreServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{disk: errors.New("no space left on device")}
		b := w.begin(t)
		b.Set([]*pod.Object{web("")}, wants(), Complete)
		synctest.Wait()
		if _, n := w.backends(); n > 0 || !slices.Contains(w.heard(), ReasonNoFilter) {
			t.Errorf("%d rules, reports %q", n, w.heard())
		}
		w.set(func() { w.disk = nil })
		time.Sleep(5 * time.Second)
		if _, n := w.backends(); n == 0 || len(w.stored) != 1 {
			t.Errorf("%d rules, stored %+v", n, w.stored)
		}
	})
}

// TestBalancer_NoPacketFilter_IsReportedOnce: the next report follows only after the packet filter
// has worked and failed again.
func TestBalancer_NoPacketFilter_IsReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{broken: errors.New("the kernel has no nftables")}
		b := w.begin(t)
		b.Set([]*pod.Object{web("")}, wants(), Complete)
		time.Sleep(10 * time.Minute)
		if got := w.heard(); !slices.Equal(got, []string{"views 1", ReasonNoFilter}) {
			t.Errorf("reports %q", got)
		}
		w.set(func() { w.broken = nil })
		time.Sleep(2 * time.Minute)
		if _, n := w.backends(); n != 1 {
			t.Errorf("applied %d times", n)
		}
	})
}

// TestBalancer_KubeProxy_IsRefusedByName: the Balancer serves no Service beside a kube-proxy, and
// all Services once it has left.
func TestBalancer_KubeProxy_IsRefusedByName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{proxy: "table ip kube-proxy"}
		b := w.begin(t)
		b.Set([]*pod.Object{web("")}, wants(), Complete)
		time.Sleep(5 * time.Minute)
		if _, n := w.backends(); n > 0 || !slices.Equal(w.heard(), []string{"views 1", ReasonProxy}) {
			t.Errorf("applied %d times, reports %q", n, w.heard())
		}
		w.set(func() { w.proxy = "" })
		time.Sleep(2 * time.Minute)
		if _, n := w.backends(); n != 1 {
			t.Errorf("applied %d times", n)
		}
	})
}

// TestBalancer_KubeProxyStartsLater_RulesAreRemoved: the kernel reports it, or the next change of an
// endpoint finds it. It is reported once, and Services are served again after it has left. At rest,
// nothing looks for it.
func TestBalancer_KubeProxyStartsLater_RulesAreRemoved(t *testing.T) {
	t.Parallel()
	for name, reported := range map[string]bool{"the kernel reports it": true, "its rules are of iptables-legacy": false} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{}
			b := w.begin(t)
			p := onePod("p", "10.88.0.2", v1.ConditionFalse)
			b.Set([]*pod.Object{web("")}, wants(p), Complete)
			synctest.Wait()
			time.Sleep(time.Hour)
			if n := w.looked(); n != 1 {
				t.Errorf("%s: looked %d times at rest", name, n)
			}
			w.set(func() { w.proxy = "table ip kube-proxy" })
			if reported {
				w.proxied()
			} else {
				_ = b.Report(pod.StatusReport{Pod: onePod("p", "10.88.0.2", v1.ConditionTrue)})
			}
			synctest.Wait()
			if !w.did("remove") {
				t.Errorf("%s: the rules stay", name)
			}
			_, applied := w.backends()
			time.Sleep(5 * time.Minute)
			looks := w.looked()
			for range 100 {
				w.proxied()
				synctest.Wait()
			}
			if n := w.looked() - looks; n != 0 {
				t.Errorf("%s: looked %d times while it changed its rules", name, n)
			}
			reports := slices.DeleteFunc(w.heard(), func(s string) bool { return s != ReasonProxy })
			if _, n := w.backends(); n != applied || len(reports) != 1 {
				t.Errorf("%s: applied %d times, before %d; reports %q", name, n, applied, w.heard())
			}
			w.set(func() { w.proxy = "" })
			time.Sleep(2 * time.Minute)
			if _, n := w.backends(); n != applied+1 {
				t.Errorf("%s: applied %d times after it left, before %d", name, n, applied)
			}
		})
	}
}

// TestBalancer_ManyChanges_LookForAKubeProxyOnceAMinute: the work of a change does not grow with the
// tables of others.
func TestBalancer_ManyChanges_LookForAKubeProxyOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		b := w.begin(t)
		b.Set([]*pod.Object{web("")}, wants(), Complete)
		for i := range 120 { // two a second
			ready := v1.ConditionTrue
			if i%2 == 0 {
				ready = v1.ConditionFalse
			}
			_ = b.Report(pod.StatusReport{Pod: onePod("p", "10.88.0.2", ready)})
			time.Sleep(500 * time.Millisecond)
		}
		if n := w.looked(); n > 2 {
			t.Errorf("looked %d times in a minute", n)
		}
	})
}

// TestBalancer_KubeProxyIsNotKnown_NothingIsServed: rules that cannot be read may be those of a proxy.
func TestBalancer_KubeProxyIsNotKnown_NothingIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{unread: errors.New("no permission")}
		b := w.begin(t)
		b.Set([]*pod.Object{web("")}, wants(), Complete)
		time.Sleep(5 * time.Minute)
		if _, n := w.backends(); n > 0 || !slices.Equal(w.heard(), []string{"views 1", ReasonNoFilter}) {
			t.Errorf("applied %d times, reports %q", n, w.heard())
		}
		w.set(func() { w.unread = nil })
		time.Sleep(2 * time.Minute)
		if _, n := w.backends(); n != 1 {
			t.Errorf("applied %d times", n)
		}
	})
}

// TestBalancer_ReadinessChange_IsWorkForItsServiceAlone: the node has 200 Services with an endpoint each. The
// rules of the others keep their place in memory, by which the packet filter knows them. A minute later, the
// devices of all endpoints are prepared again.
func TestBalancer_ReadinessChange_IsWorkForItsServiceAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		b := w.begin(t)
		var services []*pod.Object
		var pods []*v1.Pod
		for i := range 200 {
			name := fmt.Sprintf("web-%03d", i)
			s := web("")
			s.Key.Name = name
			s.Object = &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.ServiceSpec{
				Type: v1.ServiceTypeClusterIP, Selector: map[string]string{"of": name}, Ports: []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80}},
			}}
			services = append(services, s)
			pods = append(pods, onePod(name, fmt.Sprintf("10.88.1.%d", i+1), v1.ConditionTrue))
			pods[i].Labels = map[string]string{"of": name}
			_ = b.Report(pod.StatusReport{Pod: pods[i]})
		}
		b.Set(services, wants(pods...), Complete)
		turn := func(ready v1.ConditionStatus) (changed []string, prepared int) {
			synctest.Wait()
			p := onePod(pods[100].Name, "10.88.1.101", ready)
			p.Labels = pods[100].Labels
			_ = b.Report(pod.StatusReport{Pod: p})
			synctest.Wait()
			last := w.applied[len(w.applied)-2:]
			for i, rules := range last[1].Rules {
				if !nft.Same(rules, last[0].Rules[i]) {
					changed = append(changed, rules[0].Name)
				}
			}
			return changed, len(w.prepared)
		}
		turn(v1.ConditionFalse) // the first decision after new Services computes all of them
		if changed, prepared := turn(v1.ConditionTrue); !slices.Equal(changed, []string{"default/web-100/tcp/p80"}) || prepared != 1 {
			t.Errorf("changed %q, prepared the devices of %d endpoints", changed, prepared)
		}
		time.Sleep(lookEvery)
		if changed, prepared := turn(v1.ConditionFalse); len(changed) != 1 || prepared != 199 {
			t.Errorf("changed %q, prepared the devices of %d endpoints", changed, prepared)
		}
	})
}

// TestBalancer_ForeignFlush_IsRestoredSoonAndReportedOnce: also if another program flushes again and
// again.
func TestBalancer_ForeignFlush_IsRestoredSoonAndReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		b := w.begin(t)
		b.Set([]*pod.Object{web("")}, wants(), Complete)
		synctest.Wait()
		w.changed()
		synctest.Wait()
		if _, n := w.backends(); n != 2 || !slices.Equal(w.calls[len(w.calls)-3:], []string{"forget", "guard", "prepare"}) {
			t.Errorf("applied %d times, calls %q", n, w.calls)
		}
		for range 100 {
			w.changed()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		if _, n := w.backends(); n < 4 || n > 6 {
			t.Errorf("applied %d times in 15 s", n)
		}
		reports := slices.DeleteFunc(w.heard(), func(s string) bool { return s != ReasonRestored })
		if len(reports) != 1 {
			t.Errorf("%d reports", len(reports))
		}
	})
}

// TestBalancer_Refusal_IsReportedOnce: the report names the Service.
func TestBalancer_Refusal_IsReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		b := w.begin(t)
		b.Set([]*pod.Object{web("192.0.2.7")}, wants(), Complete)
		synctest.Wait()
		_ = b.Report(pod.StatusReport{Pod: onePod("p", "10.88.0.2", v1.ConditionTrue)})
		synctest.Wait()
		if got := w.heard(); !slices.Equal(got, []string{"refused web spec.clusterIPs[0]", "views 0"}) {
			t.Errorf("reports %q", got)
		}
	})
}

// TestBalancer_NoGuard_DevicesStayClosed: without the guard, Services work, but sysctls of devices
// stay unset until the guard is in force.
func TestBalancer_NoGuard_DevicesStayClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{unguarded: errors.New("not permitted")}
		b := w.begin(t)
		b.Set([]*pod.Object{web("")}, wants(), Complete)
		synctest.Wait()
		if _, n := w.backends(); n != 1 || slices.Contains(w.calls, "prepare") {
			t.Errorf("applied %d times, calls %q", n, w.calls)
		}
		w.set(func() { w.unguarded = nil })
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if !slices.Contains(w.calls, "prepare") || slices.Contains(w.calls, "restore") {
			t.Errorf("with a guard: calls %q", w.calls)
		}
		w.set(func() { w.unguarded, w.calls = errors.New("not permitted"), nil })
		w.changed()
		synctest.Wait()
		if !slices.Contains(w.calls, "restore") || slices.Contains(w.calls, "prepare") {
			t.Errorf("the guard is lost: calls %q", w.calls)
		}
	})
}

// TestBalancer_NoGuardAndNoServices_IsNoTrouble: a kernel without nftables is no trouble if there
// are no Services.
func TestBalancer_NoGuardAndNoServices_IsNoTrouble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{unguarded: errors.New("the kernel has no nftables")}
		b := w.begin(t)
		b.Set(nil, wants(), Complete)
		time.Sleep(330 * time.Second)
		synctest.Wait()
		if got := w.heard(); !slices.Equal(got, []string{"views 0"}) || slices.Contains(w.calls, "prepare") {
			t.Errorf("reports %q, calls %q", got, w.calls)
		}
	})
}

// TestBalancer_LastServiceGoes_DevicesAreClosed: the sysctls of devices are reset before the rules
// are removed.
func TestBalancer_LastServiceGoes_DevicesAreClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		b := w.begin(t)
		b.Set([]*pod.Object{web("")}, wants(), Complete)
		synctest.Wait()
		w.set(func() { w.calls = nil })
		b.Set(nil, wants(), Complete)
		synctest.Wait()
		if !slices.Equal(w.calls, []string{"restore", "remove", "route 10.96.0.0/24 false"}) {
			t.Errorf("calls %q", w.calls)
		}
	})
}

// TestProtect_GuardIsLost_ItIsMadeAgain: a node of a cluster restores the guard, too.
func TestProtect_GuardIsLost_ItIsMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		wg.Go(func() { Protect(ctx, w, slog.New(slog.DiscardHandler)) })
		synctest.Wait()
		w.changed()
		synctest.Wait()
		if !slices.Equal(w.calls, []string{"guard", "guard"}) {
			t.Errorf("calls %q", w.calls)
		}
	})
}

// TestBalancer_FailedSource_ItsServicesKeepTheirAddresses: the Balancer removes nothing, serves the
// other Services, and reports to readers that some may be missing.
func TestBalancer_FailedSource_ItsServicesKeepTheirAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		had := netip.MustParseAddr("10.96.0.77")
		lost := pod.Key{Namespace: "default", Name: "lost"}
		w := &world{stored: service.Allocations{lost: {ClusterIPs: []netip.Addr{had}, Created: time.Unix(1, 0)}}}
		b := w.begin(t)
		b.Set(nil, wants(), Partial)
		synctest.Wait()
		if slices.Contains(w.calls, "remove") || len(w.stored) != 1 {
			t.Errorf("calls %q, stored %+v", w.calls, w.stored)
		}
		b.Set([]*pod.Object{web(had.String())}, wants(), Partial)
		synctest.Wait()
		if _, there := w.stored[lost]; !there || len(w.stored) != 1 {
			t.Errorf("another Service has the address: %+v", w.stored)
		}
		b.Set([]*pod.Object{web("")}, wants(), Partial)
		w.expect(t, "another Service", "[]")
		b.Set(b.services, wants(), Complete)
		synctest.Wait()
		if _, there := w.stored[lost]; there {
			t.Errorf("every source has answered: %+v", w.stored)
		}
		want := []string{"views 0 and more", "refused web spec.clusterIPs[0]", "views 1 and more", "views 1"}
		if got := w.heard(); !slices.Equal(got, want) {
			t.Errorf("reports %q, want %q", got, want)
		}
	})
}

// TestBalancer_DatagramsAreNotForgotten_ServicesAreServed: the failure is no trouble, and the
// Balancer tries again.
func TestBalancer_DatagramsAreNotForgotten_ServicesAreServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{late: fmt.Errorf("%w: not permitted", nft.ErrDatagrams)}
		b := w.begin(t)
		b.Set([]*pod.Object{web("")}, wants(), Complete)
		time.Sleep(150 * time.Second)
		if _, n := w.backends(); n != 3 || !slices.Equal(w.heard(), []string{"views 1"}) {
			t.Errorf("applied %d times, reports %q", n, w.heard())
		}
	})
}
