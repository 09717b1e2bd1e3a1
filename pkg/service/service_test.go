package service

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
)

// svc returns a Service of the namespace default with one port, after edit.
func svc(name string, edit ...func(*v1.Service)) *pod.Object {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	s.Spec.Type, s.Spec.SessionAffinity = v1.ServiceTypeClusterIP, v1.ServiceAffinityNone
	s.Spec.Selector = map[string]string{"app": name}
	s.Spec.Ports = []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}}
	for _, e := range edit {
		e(s)
	}
	return &pod.Object{Key: pod.Key{Namespace: s.Namespace, Name: s.Name}, Kind: pod.KindService, Object: s, Origin: pod.Origin{Source: "file", Location: "/m", File: "/m/a.yaml", Line: 3}}
}

func nodePort(n int32) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, n }
}

func clusterIP(ip string) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = ip, []string{ip} }
}

func of(kind v1.ServiceType) func(*v1.Service) { return func(s *v1.Service) { s.Spec.Type = kind } }

// onePod returns a pod of a Service.
func onePod(app, addr string, ready bool) Pod {
	return Pod{Namespace: "default", Name: app + "-" + addr, Labels: map[string]string{"app": app}, Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Ready: ready}
}

// list returns pods as Decide wants them.
func list(pods ...Pod) (out []*Pod) {
	for _, p := range pods {
		out = append(out, &p)
	}
	slices.SortFunc(out, func(p, q *Pod) int { return p.Key().Compare(q.Key()) })
	return out
}

func input(services ...*pod.Object) Input {
	slices.SortFunc(services, func(a, b *pod.Object) int { return a.Key.Compare(b.Key) })
	return Input{
		Services: services, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}, NodePorts: PortRange{30000, 30099},
		Nodes: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Now: time.Unix(1000, 0).UTC(),
	}
}

func problems(d Decision) (out []string) {
	for _, r := range d.Refused {
		out = append(out, r.Name+": "+r.Problem.Path+": "+r.Problem.Msg)
	}
	return out
}

// TestDecide_WrittenAddresses_AreHonouredOrRefusedWithTheReason: an address or a port that a manifest
// names goes to the first Service that names it, and to no other one.
func TestDecide_WrittenAddresses_AreHonouredOrRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		services []*pod.Object
		want     []string // of refusals
		served   int
	}{
		"free":                  {[]*pod.Object{svc("a", clusterIP("10.96.0.9")), svc("b", nodePort(30080))}, nil, 2},
		"twice":                 {[]*pod.Object{svc("a", clusterIP("10.96.0.9")), svc("b", clusterIP("10.96.0.9"))}, []string{`b: spec.clusterIPs[0]: Invalid value: "10.96.0.9": failed to allocate IP 10.96.0.9: provided IP is already allocated to Service default/a`}, 1},
		"outside":               {[]*pod.Object{svc("a", clusterIP("10.97.0.9"))}, []string{`a: spec.clusterIPs[0]: Invalid value: "10.97.0.9": failed to allocate IP 10.97.0.9: the provided IP (10.97.0.9) is not in the valid range. The range of valid IPs is 10.96.0.0/24`}, 0},
		"network address":       {[]*pod.Object{svc("a", clusterIP("10.96.0.0"))}, []string{`a: spec.clusterIPs[0]: Invalid value: "10.96.0.0": failed to allocate IP 10.96.0.0: the provided IP (10.96.0.0) is not in the valid range. The range of valid IPs is 10.96.0.0/24`}, 0},
		"port twice":            {[]*pod.Object{svc("a", nodePort(30080)), svc("b", nodePort(30080))}, []string{`b: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated to Service default/a`}, 1},
		"port outside":          {[]*pod.Object{svc("a", nodePort(8080))}, []string{`a: spec.ports[0].nodePort: Invalid value: 8080: provided port is not in the valid range. The range of valid ports is 30000-30099`}, 0},
		"port of two protocols": {[]*pod.Object{svc("a", nodePort(30080)), svc("b", nodePort(30080), func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP })}, nil, 2},
		"no IPv6":               {[]*pod.Object{svc("a", func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol} })}, []string{`a: spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`}, 0},
		"headless":              {[]*pod.Object{svc("a", clusterIP("None"))}, nil, 1},
		"a load balancer each":  {[]*pod.Object{svc("a", of(v1.ServiceTypeLoadBalancer)), svc("b", of(v1.ServiceTypeLoadBalancer))}, []string{`b: spec.ports: port 80/TCP of 192.0.2.1 is already used by Service default/a`}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := Decide(input(c.services...))
			if got := problems(d); !slices.Equal(got, c.want) || len(d.Services) != c.served {
				t.Errorf("%d served, refused %q\nwant %d, %q", len(d.Services), got, c.served, c.want)
			}
			for _, r := range d.Refused {
				if r.Problem.File != "/m/a.yaml" || r.Problem.Line != 3 {
					t.Errorf("no place: %+v", r.Problem)
				}
			}
		})
	}
}

// TestDecide_LaterConflict_HolderKeepsAndTheOtherOneServesWithItsEarlierAddress: a Service that gets
// an address which another one has keeps the address it had.
func TestDecide_LaterConflict_HolderKeepsAndTheOtherOneServesWithItsEarlierAddress(t *testing.T) {
	t.Parallel()
	in := input(svc("a"), svc("b"))
	first := Decide(in)
	taken := first.Allocations[pod.Key{Namespace: "default", Name: "b"}].ClusterIPs[0]
	in = input(svc("a", clusterIP(taken.String())), svc("b"))
	in.Earlier = first.Allocations
	d := Decide(in)
	if len(d.Refused) != 1 || d.Refused[0].Name != "a" || !d.Allocations.Equal(first.Allocations) || len(d.Services) != 2 {
		t.Errorf("%q, %+v\nbefore %+v", problems(d), d.Allocations, first.Allocations)
	}
}

// TestDecide_Endpoints_AreThoseOfKubernetes: Kubernetes would have the same endpoints, and give the
// same ones connections.
func TestDecide_Endpoints_AreThoseOfKubernetes(t *testing.T) {
	t.Parallel()
	ready, unready := onePod("web", "10.88.0.2", true), onePod("web", "10.88.0.3", false)
	stopping, ended := onePod("web", "10.88.0.4", true), onePod("web", "10.88.0.5", true)
	stopping.Terminating, ended.Ended = true, true
	dying := onePod("web", "10.88.0.6", false)
	dying.Terminating = true
	other := onePod("web", "10.88.0.7", true)
	other.Namespace = "elsewhere"
	none := onePod("web", "10.88.0.8", true)
	none.Addrs = nil
	publish := func(s *v1.Service) { s.Spec.PublishNotReadyAddresses = true }
	for name, c := range map[string]struct {
		pods      []Pod
		edit      func(*v1.Service)
		endpoints string
		backends  string
	}{
		"ready":                {[]Pod{ready, unready, ended, other, none}, nil, "10.88.0.2:ready,serving 10.88.0.3:", "10.88.0.2"},
		"terminating":          {[]Pod{ready, stopping}, nil, "10.88.0.2:ready,serving 10.88.0.4:serving,terminating", "10.88.0.2"},
		"none but terminating": {[]Pod{unready, stopping, dying}, nil, "10.88.0.3: 10.88.0.4:serving,terminating 10.88.0.6:terminating", "10.88.0.4"},
		"none":                 {[]Pod{unready, dying}, nil, "10.88.0.3: 10.88.0.6:terminating", ""},
		"published":            {[]Pod{unready, dying}, publish, "10.88.0.3:ready 10.88.0.6:ready,terminating", "10.88.0.3 10.88.0.6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			edit := []func(*v1.Service){}
			if c.edit != nil {
				edit = append(edit, c.edit)
			}
			in := input(svc("web", edit...))
			in.Pods = list(c.pods...)
			d := Decide(in)
			var endpoints, backends []string
			for _, e := range d.Services[0].View.Endpoints {
				var is []string
				for word, yes := range map[string]bool{"ready": e.Ready, "serving": e.Serving, "terminating": e.Terminating} {
					if yes {
						is = append(is, word)
					}
				}
				slices.Sort(is)
				endpoints = append(endpoints, e.Addr.String()+":"+strings.Join(is, ","))
			}
			for _, b := range d.Services[0].Rules[0].Backends {
				backends = append(backends, b.Addr().String())
				if b.Port() != 8080 {
					t.Errorf("port %d", b.Port())
				}
			}
			if got := strings.Join(endpoints, " "); got != c.endpoints {
				t.Errorf("endpoints %q, want %q", got, c.endpoints)
			}
			if got := strings.Join(backends, " "); got != c.backends {
				t.Errorf("backends %q, want %q", got, c.backends)
			}
		})
	}
}

// TestDecide_NamedTargetPort_IsThatOfEachPod: a pod without the port is not an endpoint of that
// port.
func TestDecide_NamedTargetPort_IsThatOfEachPod(t *testing.T) {
	t.Parallel()
	a, b, c := onePod("web", "10.88.0.2", true), onePod("web", "10.88.0.3", true), onePod("web", "10.88.0.4", true)
	a.Ports = []EndpointPort{{"http", v1.ProtocolTCP, 8080}}
	b.Ports = []EndpointPort{{"http", v1.ProtocolUDP, 1}, {"http", v1.ProtocolTCP, 9090}}
	c.Ports = []EndpointPort{{"http", v1.ProtocolUDP, 1}}
	in := input(svc("web", func(s *v1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("http") }))
	in.Pods = list(a, b, c)
	got := fmt.Sprint(Decide(in).Services[0].Rules[0].Backends)
	if want := "[10.88.0.2:8080 10.88.0.3:9090]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestDecide_Shown_IsWhatAnAPIServerShows: cluster IPs, families, node ports, status and hostnames.
func TestDecide_Shown_IsWhatAnAPIServerShows(t *testing.T) {
	t.Parallel()
	db := onePod("db", "10.88.0.2", true)
	db.Hostname, db.Subdomain = "db-0", "db"
	in := input(svc("balanced", of(v1.ServiceTypeLoadBalancer)), svc("classed", of(v1.ServiceTypeLoadBalancer), func(s *v1.Service) {
		class := "example.com/other"
		s.Spec.LoadBalancerClass = &class
	}), svc("db", clusterIP("None")), svc("named", of(v1.ServiceTypeExternalName), func(s *v1.Service) { s.Spec.ExternalName, s.Spec.Ports = "example.com", nil }))
	in.Pods = list(db)
	d := Decide(in)
	balanced, classed, headless, named := d.Services[0], d.Services[1], d.Services[2], d.Services[3]
	s := balanced.Service
	if len(s.Status.LoadBalancer.Ingress) != 1 || s.Status.LoadBalancer.Ingress[0].IP != "192.0.2.1" || s.Spec.ClusterIP == "" || s.Spec.ClusterIP != s.Spec.ClusterIPs[0] ||
		s.Spec.Ports[0].NodePort < 30000 || s.Spec.IPFamilies[0] != v1.IPv4Protocol || *s.Spec.IPFamilyPolicy != v1.IPFamilyPolicySingleStack || !s.CreationTimestamp.Time.Equal(in.Now) {
		t.Errorf("load balancer: %+v %+v", s.Spec, s.Status)
	}
	if len(classed.Service.Status.LoadBalancer.Ingress) > 0 || len(classed.Rules[0].External) > 0 {
		t.Errorf("of another class: %+v", classed.Service.Status)
	}
	if v := headless.View; !v.Headless || len(v.ClusterIPs) > 0 || len(headless.Rules) > 0 || v.Endpoints[0].Hostname != "db-0" || headless.Service.Spec.ClusterIP != "None" {
		t.Errorf("headless: %+v", v)
	}
	if v := named.View; v.ExternalName != "example.com" || len(named.Rules) > 0 || named.Service.Spec.ClusterIP != "" {
		t.Errorf("external name: %+v", v)
	}
	if original := in.Services[0].Object.(*v1.Service); original.Spec.ClusterIP != "" || original.Spec.Ports[0].NodePort != 0 {
		t.Error("the object of the source was changed")
	}
}

// TestDecide_SourceRanges_AdmitNoOtherClients: ranges of another family admit none.
func TestDecide_SourceRanges_AdmitNoOtherClients(t *testing.T) {
	t.Parallel()
	ranged := func(ranges ...string) func(*v1.Service) {
		return func(s *v1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = v1.ServiceTypeLoadBalancer, ranges
		}
	}
	for want, edit := range map[string]func(*v1.Service){
		"[198.51.100.0/24]": ranged(" 198.51.100.7/24"),
		"[2001:db8::/32]":   ranged("2001:db8::/32"),
		"[]":                ranged("nonsense"),
	} {
		d := Decide(input(svc("a", edit)))
		e := d.Services[0].Rules[0].External[0]
		if got := fmt.Sprint(e.Sources); got != want || e.Sources == nil {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestDecide_DualStack_HasARuleOfEachFamily: each family has its own endpoints.
func TestDecide_DualStack_HasARuleOfEachFamily(t *testing.T) {
	t.Parallel()
	policy := v1.IPFamilyPolicyRequireDualStack
	in := input(svc("web", func(s *v1.Service) { s.Spec.IPFamilyPolicy = &policy }))
	p := onePod("web", "10.88.0.2", true)
	p.Addrs = append(p.Addrs, netip.MustParseAddr("fd00::2"))
	in.Pods = list(p)
	if got := problems(Decide(in)); len(got) != 1 || !strings.Contains(got[0], "Cluster is not configured for dual-stack services") {
		t.Errorf("one family: %q", got)
	}
	in.CIDRs = append(in.CIDRs, netip.MustParsePrefix("fd01::/112"))
	d := Decide(in)
	if len(d.Services) != 1 || len(d.Services[0].Rules) != 2 {
		t.Fatalf("%q %+v", problems(d), d.Services)
	}
	for i, want := range []string{"[10.88.0.2:8080]", "[[fd00::2]:8080]"} {
		if got := fmt.Sprint(d.Services[0].Rules[i].Backends); got != want {
			t.Errorf("rule %d: %s, want %s", i, got, want)
		}
	}
}

// TestDecide_HolderIsNotServedAnyMore_WaitingServiceGetsItsAddressAtOnce: a Service that cannot be
// served after an edit gives up its address and node port, and the Services that wait for them get
// them in the same decision. While Services may be missing, it keeps both.
func TestDecide_HolderIsNotServedAnyMore_WaitingServiceGetsItsAddressAtOnce(t *testing.T) {
	t.Parallel()
	noIPv6 := func(s *v1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = "", nil, []v1.IPFamily{v1.IPv6Protocol}
	}
	waiting := []*pod.Object{svc("x", clusterIP("10.96.0.9")), svc("y", nodePort(30080))}
	before := Decide(input(append(waiting, svc("a", clusterIP("10.96.0.9"), nodePort(30080)))...))
	if got := problems(before); len(got) != 2 {
		t.Fatalf("before: %q", got)
	}
	for _, partial := range []bool{false, true} {
		in := input(append(waiting, svc("a", nodePort(0), noIPv6))...)
		in.Earlier, in.Partial = before.Allocations, partial
		d := Decide(in)
		served := fmt.Sprint(len(d.Services), d.Allocations[waiting[0].Key].ClusterIPs, d.Allocations[waiting[1].Key].NodePorts)
		want := map[bool]string{false: "2 [10.96.0.9] map[TCP/80:30080]", true: "0 [] map[]"}[partial]
		if served != want {
			t.Errorf("partial %v: %s, want %s; %q", partial, served, want, problems(d))
		}
	}
}

// TestAllocations_JSON_IsReadBack: the next agent reads the allocations that an agent stored.
func TestAllocations_JSON_IsReadBack(t *testing.T) {
	t.Parallel()
	a := Decide(input(svc("a", nodePort(0)), svc("b", clusterIP("None")))).Allocations
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	var b Allocations
	if err := json.Unmarshal(text, &b); err != nil || !a.Equal(b) {
		t.Errorf("%v: %s\n%+v\n%+v", err, text, a, b)
	}
}

// TestDecide_Story_KeepsItsLaws: Services come, go and are edited while pods become ready. After
// each step: no address has two owners; a Service that stays keeps its addresses, unless its
// manifest names another one; a lost state changes no address that is free of conflicts; endpoints
// are those that a plain scan of all pods finds; an unchanged Service keeps its View.
func TestDecide_Story_KeepsItsLaws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}
		current := map[string]*pod.Object{}
		var d Decision
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "service")
			switch rapid.IntRange(0, 4).Draw(t, "change") {
			case 0:
				delete(current, name)
			case 1:
				current[name] = svc(name, clusterIP(fmt.Sprintf("10.96.0.%d", rapid.IntRange(2, 6).Draw(t, "ip"))))
			case 2:
				current[name] = svc(name, nodePort(int32(rapid.IntRange(30000, 30003).Draw(t, "port"))))
			case 3:
				current[name] = svc(name, nodePort(0))
			default:
				current[name] = svc(name)
			}
			var services []*pod.Object
			for _, o := range current {
				services = append(services, o)
			}
			in := input(services...)
			in.Pods = drawPods(t, names)
			in.Earlier, in.Before = d.Allocations, &d
			next := Decide(in)
			checkOwners(t, next)
			checkKept(t, d, next)
			checkEndpoints(t, in, next)
			next = checkPods(t, in, next)
			again := in
			again.Pods = next.pods
			again.Earlier, again.Before = next.Allocations, &next
			repeated := Decide(again)
			if !repeated.Allocations.Equal(next.Allocations) {
				t.Fatalf("another decision: %+v, then %+v", next.Allocations, repeated.Allocations)
			}
			for i := range repeated.Services {
				if repeated.Services[i].View != next.Services[i].View {
					t.Fatalf("%s: an equal View has another pointer", repeated.Services[i].Object.Name)
				}
			}
			d = next
		}
	})
}

func drawPods(t *rapid.T, names []string) []*Pod {
	var out []Pod
	for i := range rapid.IntRange(0, 6).Draw(t, "pods") {
		p := onePod(rapid.SampledFrom(names).Draw(t, "app"), fmt.Sprintf("10.88.0.%d", i+2), rapid.Bool().Draw(t, "ready"))
		p.Terminating, p.Ended = rapid.Bool().Draw(t, "terminating"), rapid.Bool().Draw(t, "ended")
		out = append(out, p)
	}
	return list(out...)
}

// checkPods changes pods alone, twice: the first decision settles the addresses, and the second one
// computes the Services of changed pods only. Each decides what one without an earlier decision would.
func checkPods(t *rapid.T, in Input, d Decision) Decision {
	for range 2 {
		var pods []*Pod
		for _, old := range in.Pods {
			p := *old
			switch rapid.IntRange(0, 3).Draw(t, "change of a pod") {
			case 0: // it stays
				pods = append(pods, old)
				continue
			case 1: // it leaves
				continue
			case 2:
				p.Labels = map[string]string{"app": rapid.SampledFrom([]string{"a", "b", "none"}).Draw(t, "app")}
			default:
				p.Ready = !p.Ready
			}
			pods = append(pods, &p)
		}
		if fresh := list(onePod("a", "10.88.0.9", true))[0]; rapid.Bool().Draw(t, "fresh") && !slices.ContainsFunc(pods, func(p *Pod) bool { return p.Key() == fresh.Key() }) {
			pods = append(pods, fresh)
			slices.SortFunc(pods, func(p, q *Pod) int { return p.Key().Compare(q.Key()) })
		}
		before := d
		in.Pods, in.Earlier, in.Before = pods, before.Allocations, &before
		d = Decide(in)
		checkEndpoints(t, in, d)
		in.Before = nil
		whole := Decide(in)
		if len(d.Services) != len(whole.Services) || !d.Allocations.Equal(whole.Allocations) || !slices.Equal(d.Refused, whole.Refused) {
			t.Fatalf("%+v, and without an earlier decision %+v", d, whole)
		}
		for i, s := range d.Services {
			if w := whole.Services[i]; !s.View.equal(w.View) || !reflect.DeepEqual(s.Rules, w.Rules) || !reflect.DeepEqual(s.Service, w.Service) {
				t.Fatalf("%+v, and without an earlier decision %+v", s, w)
			}
		}
	}
	return d
}

func checkOwners(t *rapid.T, d Decision) {
	owners := map[string]string{}
	own := func(what, by string) {
		if other, taken := owners[what]; taken {
			t.Fatalf("%s belongs to %s and %s", what, other, by)
		}
		owners[what] = by
	}
	for _, s := range d.Services {
		for _, ip := range s.View.ClusterIPs {
			own(ip.String(), s.View.Name)
		}
		for _, p := range s.View.Ports {
			if p.NodePort != 0 {
				own(fmt.Sprint(p.Protocol, p.NodePort), s.View.Name)
			}
		}
	}
}

// checkKept: a Service whose manifest names no cluster IP keeps the one that it had.
func checkKept(t *rapid.T, before, after Decision) {
	for _, s := range after.Services {
		had, known := before.Allocations[s.Object.Key]
		has := after.Allocations[s.Object.Key]
		if known && s.Object.Object.(*v1.Service).Spec.ClusterIP == "" && !slices.Equal(had.ClusterIPs, has.ClusterIPs) {
			t.Fatalf("%s had %v and has %v", s.Object.Name, had.ClusterIPs, has.ClusterIPs)
		}
		if known && !had.Created.Equal(has.Created) {
			t.Fatalf("%s was created twice", s.Object.Name)
		}
	}
}

// checkEndpoints compares with a plain scan.
func checkEndpoints(t *rapid.T, in Input, d Decision) {
	for _, s := range d.Services {
		var ready, serving []string
		for _, p := range in.Pods {
			if p.Labels["app"] != s.View.Name || p.Ended || !p.Ready {
				continue
			}
			if at := p.Addrs[0].String() + ":8080"; p.Terminating {
				serving = append(serving, at)
			} else {
				ready = append(ready, at)
			}
		}
		want := ready
		if len(want) == 0 {
			want = serving
		}
		slices.Sort(want)
		if got := s.Rules[0].Backends; fmt.Sprint(got) != "["+strings.Join(want, " ")+"]" {
			t.Fatalf("%s: %v, want %v", s.View.Name, got, want)
		}
	}
}

// manyServices returns Services with 5 endpoints each, and a decision about them whose addresses stay.
func manyServices(n int) (in Input, d Decision) {
	var services []*pod.Object
	var pods []Pod
	for i := range n {
		services = append(services, svc(fmt.Sprintf("s%04d", i)))
		for j := range 5 {
			pods = append(pods, onePod(fmt.Sprintf("s%04d", i), fmt.Sprintf("10.%d.%d.%d", 88+i/200, i%200, j+2), true))
		}
	}
	in = input(services...)
	in.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	in.Pods = list(pods...)
	first := Decide(in)
	in.Earlier, in.Before = first.Allocations, &first
	d = Decide(in)
	in.Earlier, in.Before = d.Allocations, &d
	return in, d
}

// turn returns the pods with another readiness of pod n.
func turn(pods []*Pod, n int) []*Pod {
	pods = slices.Clone(pods)
	p := *pods[n]
	p.Ready = !p.Ready
	pods[n] = &p
	return pods
}

// TestDecide_ChangeOfAPod_ComputesItsServicesAlone: the node has 200 Services with 5 endpoints each.
func TestDecide_ChangeOfAPod_ComputesItsServicesAlone(t *testing.T) {
	t.Parallel()
	in, before := manyServices(200)
	changes := func(after Decision) (views []string) {
		for i := range after.Services {
			if after.Services[i].View != before.Services[i].View {
				views = append(views, after.Services[i].View.Name)
			}
		}
		return append(views, fmt.Sprint(after.Computed))
	}
	moved, ended := *in.Pods[502], *in.Pods[502]
	moved.Labels, ended.Ended = map[string]string{"app": "s0007"}, true
	replaced := func(p Pod) []*Pod {
		pods := slices.Clone(in.Pods)
		pods[502] = &p
		return pods
	}
	for name, c := range map[string]struct {
		pods []*Pod
		want []string
	}{
		"none":           {in.Pods, []string{"0"}},
		"readiness":      {turn(in.Pods, 502), []string{"s0100", "1"}},
		"it ends":        {replaced(ended), []string{"s0100", "1"}},
		"it leaves":      {slices.Delete(slices.Clone(in.Pods), 502, 503), []string{"s0100", "1"}},
		"another label":  {replaced(moved), []string{"s0007", "s0100", "2"}},
		"an equal pod":   {replaced(*in.Pods[502]), []string{"1"}},
		"in two at once": {turn(turn(in.Pods, 502), 3), []string{"s0000", "s0100", "2"}},
	} {
		in.Pods = c.pods
		if got := changes(Decide(in)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	in.Services = in.Services[1:]
	if d := Decide(in); d.Computed != 199 || len(d.Allocations) != 199 {
		t.Errorf("a Service less: %d computed, %d allocations", d.Computed, len(d.Allocations))
	}
}

// BenchmarkDecide_ChangeOfAPod shows that the time hardly depends on the number of Services.
func BenchmarkDecide_ChangeOfAPod(b *testing.B) {
	for _, n := range []int{20, 200, 1000} {
		b.Run(fmt.Sprint(n, " Services"), func(b *testing.B) {
			in, d := manyServices(n)
			for i := range b.N {
				in.Pods = turn(in.Pods, i%len(in.Pods))
				before := d
				in.Before = &before
				d = Decide(in)
			}
			if d.Computed != 1 {
				b.Errorf("%d Services were computed", d.Computed)
			}
		})
	}
}

// TestPodOf_Status_IsReadAsEndpointSlicesAre: addresses, readiness, end, named ports of sidecars.
func TestPodOf_Status_IsReadAsEndpointSlicesAre(t *testing.T) {
	t.Parallel()
	always := v1.ContainerRestartPolicyAlways
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}}
	p.Spec.Containers = []v1.Container{{Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 80}, {ContainerPort: 81}}}}
	p.Spec.InitContainers = []v1.Container{
		{Ports: []v1.ContainerPort{{Name: "once", ContainerPort: 1}}},
		{RestartPolicy: &always, Ports: []v1.ContainerPort{{Name: "metrics", ContainerPort: 9100, Protocol: v1.ProtocolTCP}}},
	}
	status := &v1.PodStatus{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: "10.88.0.2"}, {IP: "fd00::2"}}, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}
	got := PodOf(p, status, false)
	if !got.Ready || got.Ended || got.Terminating || len(got.Addrs) != 2 || fmt.Sprint(got.Ports) != "[{http TCP 80} {metrics TCP 9100}]" {
		t.Errorf("%+v", got)
	}
	for _, phase := range []v1.PodPhase{v1.PodSucceeded, v1.PodFailed} {
		if !PodOf(p, &v1.PodStatus{Phase: phase}, false).Ended {
			t.Errorf("%s: not ended", phase)
		}
	}
	p.DeletionTimestamp = &metav1.Time{}
	if !PodOf(p, nil, false).Terminating || !PodOf(&v1.Pod{}, nil, true).Terminating {
		t.Error("not terminating")
	}
}

// external returns a change that gives a Service external IPs and a port.
func external(port int32, ips ...string) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.ExternalIPs, s.Spec.Ports[0].Port = ips, port }
}

// balancer returns a change to the type LoadBalancer with a port.
func balancer(port int32) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.Type, s.Spec.Ports[0].Port = v1.ServiceTypeLoadBalancer, port }
}

// TestDecide_ExternalAddresses_TakeNothingFromOthers: no cluster IP, not the address of the DNS server, no
// node port of another Service, and no port of the node itself.
func TestDecide_ExternalAddresses_TakeNothingFromOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		services []*pod.Object
		want     []string
	}{
		"cluster IP of another one": {[]*pod.Object{svc("a", external(80, "10.96.0.9")), svc("b", clusterIP("10.96.0.9"))}, []string{`a: spec.externalIPs: Invalid value: "10.96.0.9": is in the range of cluster IPs`}},
		"DNS server":                {[]*pod.Object{svc("a", external(53, "10.97.0.10"))}, []string{`a: spec.externalIPs: Invalid value: "10.97.0.10": is in the range of cluster IPs`}},
		"node port, balancer":       {[]*pod.Object{svc("a", balancer(30080)), svc("b", nodePort(30080))}, []string{`a: spec.ports: port 30080/TCP of 192.0.2.1 is already used as a node port by Service default/b`}},
		"node port, external":       {[]*pod.Object{svc("a", external(30080, "192.0.2.9")), svc("b", nodePort(30080))}, []string{`a: spec.ports: port 30080/TCP of 192.0.2.9 is already used as a node port by Service default/b`}},
		"node port, elsewhere":      {[]*pod.Object{svc("a", external(30080, "203.0.113.9")), svc("b", nodePort(30080))}, nil},
		"SSH":                       {[]*pod.Object{svc("a", balancer(22))}, []string{`a: spec.ports: port 22/TCP of 192.0.2.1 belongs to the node itself`}},
		"SSH, elsewhere":            {[]*pod.Object{svc("a", external(22, "203.0.113.9"))}, nil},
		"kubelet, loopback":         {[]*pod.Object{svc("a", external(10250, "127.0.0.1"))}, []string{`a: spec.ports: port 10250/TCP of 127.0.0.1 belongs to the node itself`}},
		"listener":                  {[]*pod.Object{svc("a", balancer(9443))}, []string{`a: spec.ports: port 9443/TCP of 192.0.2.1 belongs to the node itself`}},
		"UDP":                       {[]*pod.Object{svc("a", balancer(22), func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP })}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := input(c.services...)
			in.Reserved, in.Local, in.Listeners = []netip.Addr{netip.MustParseAddr("10.97.0.10")}, []netip.Addr{netip.MustParseAddr("192.0.2.9")}, []uint16{9443}
			d := Decide(in)
			if got := problems(d); !slices.Equal(got, c.want) || len(d.Services) != len(c.services) {
				t.Errorf("%d served, refused %q\nwant %q", len(d.Services), got, c.want)
			}
			if got := len(d.Services[0].Rules[0].External); got > 0 != (len(c.want) == 0) {
				t.Errorf("%d external addresses", got)
			}
		})
	}
}

// TestDecide_ChosenNodePort_IsNoPortOfALoadBalancer: all ports of the range but one belong to a
// LoadBalancer.
func TestDecide_ChosenNodePort_IsNoPortOfALoadBalancer(t *testing.T) {
	t.Parallel()
	in := input(svc("a", nodePort(0)), svc("b", balancer(30000)))
	in.NodePorts = PortRange{30000, 30002}
	d := Decide(in)
	if got := problems(d); len(got) > 0 || len(d.Services) != 2 {
		t.Errorf("refused %q", got)
	}
}

// TestDecide_NewService_TakesNoExternalAddressFromOneThatIsServed: the name of the new Service does
// not matter, and the oldest Service keeps the address over restarts.
func TestDecide_NewService_TakesNoExternalAddressFromOneThatIsServed(t *testing.T) {
	t.Parallel()
	in := input(svc("web", of(v1.ServiceTypeLoadBalancer)))
	first := Decide(in)
	in = input(svc("a", of(v1.ServiceTypeLoadBalancer)), svc("web", of(v1.ServiceTypeLoadBalancer)))
	in.Earlier, in.Now = first.Allocations, in.Now.Add(time.Hour)
	second := Decide(in)
	again := in
	again.Earlier = second.Allocations
	for _, d := range []Decision{second, Decide(again)} {
		if got, want := problems(d), []string{"a: spec.ports: port 80/TCP of 192.0.2.1 is already used by Service default/web"}; !slices.Equal(got, want) {
			t.Errorf("refused %q, want %q", got, want)
		}
		if d.Services[0].View.Name != "a" {
			t.Error("Services are not in the order of their names")
		}
	}
}

// TestDecide_Partial_MissingServicesKeepWhatTheyHad: no other Service gets their addresses and
// ports until all Services are known.
func TestDecide_Partial_MissingServicesKeepWhatTheyHad(t *testing.T) {
	t.Parallel()
	lost := pod.Key{Namespace: "default", Name: "lost"}
	had := Allocation{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")}, NodePorts: map[string]uint16{"TCP/80": 30080}, Created: time.Unix(1, 0)}
	in := input(svc("a", clusterIP("10.96.0.9")), svc("b", nodePort(30080)))
	in.Earlier = Allocations{lost: had}
	for _, partial := range []bool{true, false} {
		in.Partial = partial
		d := Decide(in)
		if kept, there := d.Allocations[lost]; there != partial || partial && !kept.equal(had) {
			t.Errorf("partial %t: %+v", partial, d.Allocations)
		}
		if refused := len(d.Refused); refused != map[bool]int{true: 2, false: 0}[partial] {
			t.Errorf("partial %t: refused %q", partial, problems(d))
		}
	}
}
