package plan_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// port parses "ip:port/protocol"; ip and protocol may be missing.
func port(text string) v1.ContainerPort {
	var p v1.ContainerPort
	text, proto, _ := strings.Cut(text, "/")
	p.Protocol = v1.Protocol(proto)
	if ip, rest, ok := strings.Cut(text, ":"); ok {
		p.HostIP, text = ip, rest
	}
	if _, err := fmt.Sscan(text, &p.HostPort); err != nil {
		panic(err)
	}
	p.ContainerPort = p.HostPort
	return p
}

func portPod(name string, priority int32, ports ...string) *pod.Spec {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "default", name, types.UID("uid-"+name)
	p.Spec.Priority = &priority
	c := v1.Container{Name: "c"}
	for _, text := range ports {
		c.Ports = append(c.Ports, port(text))
	}
	p.Spec.Containers = []v1.Container{c}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p}
}

func onHostNetwork(s *pod.Spec) *pod.Spec {
	s.Pod.Spec.HostNetwork = true
	for i := range s.Pod.Spec.Containers[0].Ports {
		s.Pod.Spec.Containers[0].Ports[i].HostPort = 0 // the API's default applies here
	}
	return s
}

func renamed(s *pod.Spec, uid string) *pod.Spec {
	s.Pod.UID = types.UID(uid)
	return s
}

// TestC_1_31_Admit gives desired and admitted pods, and the refused ones with reasons. The
// result does not depend on the order of the arguments.
//
// Shows: C-1.31
func TestC_1_31_Admit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		want     []*pod.Spec
		admitted []*pod.Spec
		maxPods  int
		ok       string
		refused  string
	}{
		{"no ports", []*pod.Spec{portPod("a", 0), portPod("b", 0)}, nil, 0, "a b", ""},
		{"C_1_31_4 same port", []*pod.Spec{portPod("b", 0, "80"), portPod("a", 0, "80")}, nil, 0, "a", "b NodePorts host port 80/TCP is taken by pod default/a"},
		{"other protocol", []*pod.Spec{portPod("a", 0, "80"), portPod("b", 0, "80/UDP")}, nil, 0, "a b", ""},
		{"other address", []*pod.Spec{portPod("a", 0, "10.0.0.1:80"), portPod("b", 0, "10.0.0.2:80")}, nil, 0, "a b", ""},
		{"one address and all of them", []*pod.Spec{portPod("a", 0, "10.0.0.1:80"), portPod("b", 0, "0.0.0.0:80")}, nil, 0, "a", "b NodePorts host port 80/TCP is taken by pod default/a"},
		{"host network", []*pod.Spec{portPod("a", 0, "80"), onHostNetwork(portPod("b", 0, "80"))}, nil, 0, "a", "b NodePorts host port 80/TCP is taken by pod default/a"},
		{"more important first", []*pod.Spec{portPod("a", 0, "80"), portPod("b", 7, "80")}, nil, 0, "b", "a NodePorts host port 80/TCP is taken by pod default/b"},
		{"C_1_31_5 admitted pods stay admitted", []*pod.Spec{portPod("b", 2_000_001_000, "80")}, []*pod.Spec{portPod("a", 0, "80")}, 0, "", "b NodePorts host port 80/TCP is taken by pod default/a"},
		{"admitted pods are not judged", []*pod.Spec{portPod("c", 0)}, []*pod.Spec{portPod("a", 0, "80"), portPod("b", 0, "80")}, 0, "c", ""},
		{"C_1_31_1 too many", []*pod.Spec{portPod("b", 0), portPod("c", 2_000_000_000)}, []*pod.Spec{portPod("a", 0)}, 2, "c", "b OutOfpods Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"},
		{"the refused hold nothing", []*pod.Spec{portPod("a", 0, "80"), portPod("b", 0, "80", "81"), portPod("c", 0, "81")}, nil, 0, "a c", "b NodePorts host port 80/TCP is taken by pod default/a"},
		{"F43 same uid", []*pod.Spec{renamed(portPod("a", 0), "u"), renamed(portPod("b", 0), "u")}, nil, 0, "a", "b DuplicateUID uid u belongs to pod default/a"},
		{"F43 same key", []*pod.Spec{portPod("a", 0)}, []*pod.Spec{renamed(portPod("a", 0), "other")}, 0, "", "a DuplicatePod another pod already has the name default/a"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			for range 10 {
				ok, refused := plan.Admit(c.want, c.admitted, plan.Node{MaxPods: c.maxPods})
				var names, reasons []string
				for _, s := range ok {
					names = append(names, s.Name)
				}
				for _, r := range refused {
					reasons = append(reasons, r.Spec.Name+" "+r.Reason+" "+cmp.Or(r.Detail, r.Message))
				}
				if got := strings.Join(names, " "); got != c.ok {
					t.Errorf("ok %q, want %q", got, c.ok)
				}
				if got := strings.Join(reasons, "; "); got != c.refused {
					t.Errorf("refused %q, want %q", got, c.refused)
				}
				rand.Shuffle(len(c.want), func(i, j int) { c.want[i], c.want[j] = c.want[j], c.want[i] })
				rand.Shuffle(len(c.admitted), func(i, j int) { c.admitted[i], c.admitted[j] = c.admitted[j], c.admitted[i] })
			}
		})
	}
}

// Shows: C-1.15.1
func TestStartOrder(t *testing.T) {
	t.Parallel()
	created := func(s *pod.Spec, second int64) *pod.Spec {
		s.Pod.CreationTimestamp = metav1.Unix(second, 0)
		return s
	}
	at := func(s *pod.Spec, file string, line int) *pod.Spec {
		s.Origin.File, s.Origin.Line = file, line
		return s
	}
	want := []*pod.Spec{
		portPod("critical", 2_000_001_000),
		portPod("important", 10),
		at(portPod("z", 0), "a.yaml", 1),
		at(portPod("y", 0), "a.yaml", 9),
		at(portPod("a", 0), "b.yaml", 1),
		at(portPod("b", 0), "b.yaml", 1),
		created(portPod("x", 0), 5),
		created(portPod("w", 0), 6),
		created(portPod("v", 0), 7),
		created(portPod("negative", -1), 1),
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, plan.StartOrder)
	if !slices.Equal(got, want) {
		for _, s := range got {
			t.Error(s.Name)
		}
	}
	if plan.StartOrder(want[0], want[0]) != 0 {
		t.Error("a pod comes before itself")
	}
}

// Checking ports of many addresses does not compare all pairs: a pod's author chooses how
// many.
func TestAdmit_PortsOfManyAddresses_AreJudgedOneByOne(t *testing.T) {
	t.Parallel()
	const pods = 150 // comparing all their ports with one another takes minutes
	at := func(name, format string) (list []*pod.Spec) {
		for n := range pods {
			list = append(list, manyPorts(fmt.Sprintf("%s-%d", name, n), pod.MaxPorts, func(i int) v1.ContainerPort {
				return v1.ContainerPort{HostPort: 80, HostIP: fmt.Sprintf(format, n*pod.MaxPorts+i)}
			}))
		}
		return list
	}
	ok, refused := plan.Admit(at("next", "fd00::%x"), at("first", "fd01::%x"), plan.Node{})
	if len(ok) != pods || len(refused) != 0 {
		t.Errorf("%d admitted, refused: %+v", len(ok), refused)
	}
}

// A pod with more ports than the limit, admitted by an older agent, holds no more than the
// limit.
func TestAdmit_PodWithPortsBeyondTheBound_HoldsTheFirst(t *testing.T) {
	t.Parallel()
	first := manyPorts("first", 60_000, func(i int) v1.ContainerPort { return v1.ContainerPort{HostPort: int32(i + 1)} })
	last, beyond := portPod("last", 0, fmt.Sprint(pod.MaxPorts)), portPod("beyond", 0, fmt.Sprint(pod.MaxPorts+1))
	ok, refused := plan.Admit([]*pod.Spec{last, beyond}, []*pod.Spec{first}, plan.Node{})
	if len(ok) != 1 || ok[0] != beyond || len(refused) != 1 {
		t.Errorf("admitted: %v, refused: %+v", ok, refused)
	}
}

// manyPorts returns a pod with n ports.
func manyPorts(name string, n int, port func(i int) v1.ContainerPort) *pod.Spec {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = name, "default", types.UID("uid-"+name)
	ports := make([]v1.ContainerPort, n)
	for i := range ports {
		ports[i] = port(i)
	}
	p.Spec.Containers = []v1.Container{{Name: "app", Ports: ports}}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p}
}

// A port conflicts with the same port at its address and at all addresses.
func TestAdmit_PortOfAnAddress_MeetsThatAndEvery(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, next []string
		meets       bool
	}{
		{[]string{"10.0.0.1:80"}, []string{"10.0.0.2:80"}, false},
		{[]string{"10.0.0.1:80", "10.0.0.2:80"}, []string{"10.0.0.3:80", "10.0.0.2:80"}, true},
		{[]string{"10.0.0.1:80"}, []string{"80"}, true},
		{[]string{"10.0.0.1:80"}, []string{"80/UDP"}, false},
		{[]string{"0.0.0.0:80"}, []string{"10.0.0.1:80"}, true},
		{[]string{"10.0.0.1:80", "80"}, []string{"10.0.0.2:80"}, true},
		{nil, []string{"80"}, false},
	} {
		_, refused := plan.Admit([]*pod.Spec{portPod("next", 0, c.next...)}, []*pod.Spec{portPod("first", 0, c.first...)}, plan.Node{})
		if (len(refused) > 0) != c.meets || c.meets && !strings.Contains(refused[0].Detail, "default/first") {
			t.Errorf("%q after %q: %+v", c.next, c.first, refused)
		}
	}
}
