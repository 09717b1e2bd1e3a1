package device

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
)

// listed returns devices by name; a name that ends in "!" is unhealthy.
func listed(names ...string) map[string]Device {
	all := make(map[string]Device)
	for _, n := range names {
		id := strings.TrimSuffix(n, "!")
		all[id] = Device{ID: id, Healthy: id == n}
	}
	return all
}

// Choose follows the kubelet's order: devices that the container had, those of init containers,
// those that the plugin prefers, any other.
//
// Shows: C-1.31.6
func TestChoose_StatesOfANode_GiveDevicesOrAReason(t *testing.T) {
	t.Parallel()
	const waiting = "WaitsForDevicePlugin: waiting for a device plugin: "
	for _, it := range []struct {
		name      string
		ask       Ask
		preferred []string
		want      string
	}{
		{"no plugin", Ask{Number: 1}, nil, waiting + "cannot allocate unregistered device x.com/gpu"},
		{"none healthy", Ask{Number: 1, Registered: true, Devices: listed("a!")}, nil, waiting + "no healthy devices present; cannot allocate unhealthy devices x.com/gpu"},
		{"no list yet", Ask{Number: 1, Registered: true}, nil, waiting + "no healthy devices present; cannot allocate unhealthy devices x.com/gpu"},
		{"held", Ask{Number: 1, Registered: true, Held: []string{"b"}, Devices: listed("a", "b"), InUse: map[string]bool{"b": true}, Unknown: "x"}, nil, "b"},
		{"held unhealthy", Ask{Number: 1, Registered: true, Held: []string{"b"}, Devices: listed("a", "b!")}, nil, waiting + "previously allocated devices are no longer healthy; cannot allocate unhealthy devices x.com/gpu"},
		{"held and gone", Ask{Number: 1, Registered: true, Held: []string{"c"}, Devices: listed("a")}, nil, waiting + "previously allocated devices are no longer healthy; cannot allocate unhealthy devices x.com/gpu"},
		{"held another number", Ask{Number: 2, Registered: true, Held: []string{"a"}, Devices: listed("a", "b")}, nil, "a,b"},
		{"others not known", Ask{Number: 1, Registered: true, Devices: listed("a"), Unknown: "not known yet"}, nil, waiting + "not known yet"},
		{"of an init container", Ask{Number: 1, Registered: true, Reusable: []string{"b"}, Devices: listed("a", "b"), InUse: map[string]bool{"b": true}}, []string{"a"}, "b"},
		{"of an init container and more", Ask{Number: 2, Registered: true, Reusable: []string{"c"}, Devices: listed("a", "b", "c"), InUse: map[string]bool{"c": true}}, []string{"b"}, "b,c"},
		{"preferred", Ask{Number: 2, Registered: true, Devices: listed("a", "b", "c", "d")}, []string{"d", "b"}, "b,d"},
		{"preferred too few", Ask{Number: 3, Registered: true, Devices: listed("a", "b", "c", "d")}, []string{"d"}, "a,b,d"},
		{"preferred too many", Ask{Number: 1, Registered: true, Devices: listed("a", "b", "c")}, []string{"c", "b", "a"}, "c"},
		{"preferred of others", Ask{Number: 1, Registered: true, Devices: listed("a", "b", "c!"), InUse: map[string]bool{"b": true}}, []string{"b", "c", "z", "a", "a"}, "a"},
		{"too few", Ask{Number: 2, Registered: true, Devices: listed("a", "b", "c!"), InUse: map[string]bool{"a": true}}, nil, "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for x.com/gpu. Requested: 2, Available: 1, which is unexpected"},
	} {
		it.ask.Resource = "x.com/gpu"
		c, err := Choose(it.ask)
		got := strings.Join(c.Complete(it.preferred).Devices, ",")
		if err != nil {
			got = err.Error()
		}
		if got != it.want {
			t.Errorf("%s: %q, want %q", it.name, got, it.want)
		}
	}
}

// A container gets devices of the NUMA nodes of its admission first, and the plugin prefers among
// these. If they are too few, it gets all of them, and then devices of other nodes before devices
// without nodes, as with the kubelet. With a policy that guarantees the nodes, it waits then. It gets devices that
// are reserved for other containers only if the rest is too small.
//
// Shows: C-1.46.12
func TestChoose_ContainerHasNUMANodes_GetsDevicesNearThem(t *testing.T) {
	t.Parallel()
	on := func(of map[string]Device, nodes map[string][]int64) map[string]Device {
		for id, n := range nodes {
			d := of[id]
			d.NUMA = n
			of[id] = d
		}
		return of
	}
	const waiting = "WaitsForDevicePlugin: waiting for a device plugin: too few healthy devices x.com/gpu are free on NUMA nodes 0"
	all := on(listed("a", "b", "c", "d", "e"), map[string][]int64{"b": {0}, "c": {0, 1}, "d": {1}, "e": {1}})
	for _, it := range []struct {
		name      string
		ask       Ask
		preferred []string
		want      string
	}{
		{"no preference of the container", Ask{Number: 2, Devices: all}, nil, "a,b"},
		{"one node", Ask{Number: 2, Devices: all, Near: []int{1}}, nil, "c,d"},
		{"preferred on the node", Ask{Number: 2, Devices: all, Near: []int{1}}, []string{"b", "e", "c"}, "c,e"},
		{"as many as needed, not asked", Ask{Number: 3, Devices: all, Near: []int{1}}, []string{"a", "b"}, "c,d,e"},
		{"too few near", Ask{Number: 3, Devices: all, Near: []int{0}}, nil, "b,c,d"},
		{"too few near, others preferred", Ask{Number: 3, Devices: all, Near: []int{0}}, []string{"a"}, "a,b,c"},
		{"all", Ask{Number: 5, Devices: all, Near: []int{0}}, nil, "a,b,c,d,e"},
		{"none near", Ask{Number: 2, Devices: all, Near: []int{7}}, nil, "b,c"},
		{"none near, of an init container", Ask{Number: 2, Devices: all, Near: []int{0}, Reusable: []string{"e"}, InUse: map[string]bool{"e": true}}, nil, "b,e"},
		{"in use", Ask{Number: 1, Devices: all, Near: []int{0}, InUse: map[string]bool{"b": true, "c": true}}, nil, "d"},
		{"held elsewhere", Ask{Number: 1, Devices: all, Near: []int{0}, Held: []string{"e"}}, nil, "e"},
		{"no device has nodes", Ask{Number: 1, Devices: listed("a", "b"), Near: []int{1}}, []string{"b"}, "b"},
		{"no other nodes", Ask{Number: 3, Devices: all, Near: []int{1}, Only: true}, nil, "c,d,e"},
		{"no other nodes, too few", Ask{Number: 3, Devices: all, Near: []int{0}, Only: true}, nil, waiting},
		{"no other nodes, of an init container", Ask{Number: 3, Devices: all, Near: []int{0}, Only: true, Reusable: []string{"e"}, InUse: map[string]bool{"e": true}}, nil, "b,c,e"},
		{"no other nodes, and no device has nodes", Ask{Number: 1, Devices: listed("a", "b"), Near: []int{1}, Only: true}, nil, "a"},
		{"reserved", Ask{Number: 1, Devices: all, Near: []int{0}, Reserved: map[string]bool{"b": true}}, []string{"b"}, "c"},
		{"reserved, and the rest is of other nodes", Ask{Number: 1, Devices: all, Near: []int{0}, Only: true, Reserved: map[string]bool{"b": true, "c": true}}, nil, "b"},
		{"reserved, and the rest is too small", Ask{Number: 2, Devices: listed("a", "b"), Reserved: map[string]bool{"b": true}}, nil, "a,b"},
	} {
		it.ask.Resource, it.ask.Registered = "x.com/gpu", true
		c, err := Choose(it.ask)
		c = c.Complete(it.preferred)
		got := strings.Join(c.Devices, ",")
		if err != nil {
			got = err.Error()
		}
		if got != it.want || c.Missing != 0 {
			t.Errorf("%s: %s, %d missing; want %s", it.name, got, c.Missing, it.want)
		}
	}
}

// Containers of random pods get devices that no other pod has, whatever a plugin prefers, also
// after another agent has read them back from the runtime.
func TestChoose_AnySequence_NeverSharesADevice(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		var names []string
		for i := range 8 {
			names = append(names, fmt.Sprint("d", i))
		}
		all := listed(names...)
		have := make(claims)
		for step := range 60 {
			uid := fmt.Sprint("uid", r.IntN(5))
			want := requesting(uid, r.IntN(3)+1)
			mine := have.of(uid, want.Key)
			name := want.Pod.Spec.Containers[0].Name
			if r.IntN(3) == 0 {
				have.keep(uid, nil)
				continue
			}
			if step%9 == 0 { // another agent
				have = restored(have)
				mine = have.of(uid, want.Key)
			}
			number := pod.DeviceRequests(want.Pod, &want.Pod.Spec.Containers[0])["x.com/gpu"]
			held, _ := find(mine.containers[name], "x.com/gpu")
			if len(held.Devices) != number {
				mine.drop(name, func(string) bool { return true })
			}
			c, err := Choose(Ask{
				Resource: "x.com/gpu", Number: number, Held: held.Devices, InUse: have.inUse("x.com/gpu"),
				Reusable: mine.reusable(want, name, "x.com/gpu"), Devices: all, Registered: true,
			})
			if err != nil {
				continue
			}
			r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			c = c.Complete(names[:r.IntN(len(names))])
			if len(c.Devices) != number || c.Missing != 0 || c.Kept && !slices.Equal(c.Devices, held.Devices) {
				t.Fatalf("seed %d: %+v for %d", seed, c, number)
			}
			mine.set(name, pod.DeviceAllocation{Resource: "x.com/gpu", Devices: c.Devices})
			owner := make(map[string]*podClaims)
			have.each("x.com/gpu", func(p *podClaims, _, id string) {
				if other := owner[id]; other != nil {
					t.Fatalf("seed %d: %s is of %v and %v", seed, id, other.key, p.key)
				}
				owner[id] = p
			})
		}
	}
}

// restored returns the claims that an agent reads back from the runtime.
func restored(old claims) claims {
	c := make(claims)
	for uid, p := range old {
		c.adopt(pod.DeviceHolder{Key: p.key, UID: uid, Containers: maps.Clone(p.containers)})
	}
	return c
}

// requesting returns a pod of one container that requests devices.
func requesting(uid string, number int) *pod.Spec {
	p := &v1.Pod{}
	p.Namespace, p.Name = "default", "pod-"+uid
	p.Spec.Containers = []v1.Container{gpus("c", number)}
	return specOf(p, uid)
}

// specOf returns the spec of a pod with a UID.
func specOf(p *v1.Pod, uid string) *pod.Spec {
	p.UID = types.UID(uid)
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p}
}

func gpus(name string, number int) v1.Container {
	c := v1.Container{Name: name}
	if number > 0 {
		c.Resources.Limits = v1.ResourceList{"x.com/gpu": *apiresource.NewQuantity(int64(number), apiresource.DecimalSI)}
	}
	return c
}

// A container takes over the devices of init containers before it. A sidecar keeps its devices, and
// a regular container keeps the devices that it took over.
//
// Shows: C-1.31.7
func TestReusable_InitContainersAndSidecars_FollowTheKubelet(t *testing.T) {
	t.Parallel()
	p := &v1.Pod{}
	p.Name = "p"
	sidecar := gpus("side", 1)
	always := v1.ContainerRestartPolicyAlways
	sidecar.RestartPolicy = &always
	p.Spec.InitContainers = []v1.Container{gpus("one", 2), sidecar, gpus("two", 1)}
	p.Spec.Containers = []v1.Container{gpus("c", 1), gpus("d", 1)}
	want, c := specOf(p, "u"), make(claims)
	mine := c.of("u", want.Key)
	for _, it := range []struct{ container, reusable, takes string }{
		{"one", "", "a,b"}, {"side", "a,b", "a"}, {"two", "b", "b"}, {"c", "b", "b"}, {"d", "", "e"}, {"two", "", "b"},
	} {
		if got := strings.Join(mine.reusable(want, it.container, "x.com/gpu"), ","); got != it.reusable {
			t.Errorf("%s may take %q, want %q", it.container, got, it.reusable)
		}
		mine.set(it.container, pod.DeviceAllocation{Resource: "x.com/gpu", Devices: strings.Split(it.takes, ",")})
	}
}

// A registration that the node must not use is rejected, in the kubelet's words.
func TestCheck_RegistrationsAndEndpoints_AreRefusedWhereTheyAreWrong(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gpu", "kubernetes.io/gpu", "requests.x.com/gpu", "x.com/", "x.com/a/b", "../x", "x.com/" + strings.Repeat("a", 64), "X_Y/z"} {
		if err := checkRegistration([]string{"v1beta1"}, name); err == nil || !strings.Contains(err.Error(), "is invalid") {
			t.Errorf("resource %q: %v", name, err)
		}
	}
	if err := checkRegistration([]string{"v1beta1"}, "x.com/gpu"); err != nil {
		t.Error(err)
	}
	if err := checkRegistration([]string{"v1"}, "x.com/gpu"); err == nil || !strings.Contains(err.Error(), "is not supported by kubelet") {
		t.Errorf("version v1: %v", err)
	}
	for _, name := range []string{"", ".", "..", "../a.sock", "a/b", "/run/a.sock", "kubelet.sock", ".hidden"} {
		if checkEndpoint(name) == nil {
			t.Errorf("endpoint %q is accepted", name)
		}
	}
	var start *pod.StartError
	if _, err := Choose(Ask{Resource: "x.com/gpu"}); !errors.As(err, &start) || start.Final {
		t.Errorf("%v", err)
	}
}

// The devices that admission reserves for a container are left to it. Containers that request them earlier get
// others, also of its own pod, unless it uses them after they have exited.
//
// Shows: C-1.46.12
func TestReserve_DevicesOfOthers_AreLeftToThem(t *testing.T) {
	t.Parallel()
	all := []pod.DeviceReservation{
		{UID: "u", Container: "init", Resource: "x.com/gpu", Devices: []string{"a"}},
		{UID: "u", Container: "c", Resource: "x.com/gpu", Devices: []string{"a", "b"}},
		{UID: "v", Container: "c", Resource: "x.com/gpu", Devices: []string{"d"}},
		{UID: "v", Container: "c", Resource: "x.com/nic", Devices: []string{"e"}},
	}
	for of, want := range map[[2]string]string{{"u", "init"}: "b,d", {"u", "c"}: "d", {"v", "c"}: "a,b", {"w", "c"}: "a,b,d"} {
		got := slices.Sorted(maps.Keys(reservedFor(all, of[0], of[1], "x.com/gpu")))
		if strings.Join(got, ",") != want {
			t.Errorf("%v: %v, want %s", of, got, want)
		}
	}
}

// Supply shows the devices by NUMA node with the containers that have them, if the plugin names a node.
//
// Shows: C-1.46.11
func TestSupply_DevicesHaveNodes_ShowsTheirLayout(t *testing.T) {
	t.Parallel()
	p := New(Config{})
	p.resources["x.com/gpu"] = &resource{devices: map[string]Device{"a": {ID: "a", Healthy: true, NUMA: []int64{1}}, "b": {ID: "b"}}}
	p.resources["x.com/nic"] = &resource{devices: listed("n")}
	p.Adopt([]pod.DeviceHolder{{
		UID: "u", Containers: map[string][]pod.DeviceAllocation{"c": {{Resource: "x.com/gpu", Devices: []string{"a"}}, {Resource: "x.com/nic", Devices: []string{"n"}}}},
		Others: []pod.DeviceAllocation{{Resource: "x.com/gpu", Devices: []string{"b"}}},
	}}, true)
	supply := p.Supply()
	if supply["x.com/nic"].Layout != nil {
		t.Errorf("%+v", supply["x.com/nic"])
	}
	got, want := fmt.Sprintf("%+v", supply["x.com/gpu"].Layout), "&{Devices:map[a:{Healthy:true NUMA:[1]} b:{Healthy:false NUMA:[]}] Users:map[u:map[:[b] c:[a]]]}"
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
