//go:build full

package managers

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	ours "github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/cpuset/cpusettest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// drawDevices draws the devices of one or two resources. At least one device of each is healthy. Devices
// whose nodes are not known have the last IDs: the kubelet's plugin prefers the first ones, and ours takes these
// devices last.
func drawDevices(t *rapid.T, m ours.Machine) map[string][]listed {
	all := map[string][]listed{}
	for _, name := range []string{"x.com/gpu", "x.com/nic"}[:rapid.IntRange(1, 2).Draw(t, "resources")] {
		nodes := []int64{}
		for range rapid.IntRange(1, 3).Draw(t, "nodes with devices") { // the kubelet tries each set of them
			nodes = append(nodes, int64(rapid.IntRange(0, len(m.Nodes)).Draw(t, "node"))) // the last one is no node
		}
		for i := range rapid.IntRange(1, 6).Draw(t, "devices") {
			d := listed{ID: fmt.Sprint("d", i), Healthy: i == 0 || rapid.IntRange(0, 5).Draw(t, "unhealthy") > 0}
			switch rapid.IntRange(0, 7).Draw(t, "kind of device") {
			case 0:
				d.ID = fmt.Sprint("z", i)
			case 1:
				d.NUMA = []int64{nodes[0], nodes[len(nodes)-1]}
			default:
				d.NUMA = []int64{rapid.SampledFrom(nodes).Draw(t, "node of device")}
			}
			all[name] = append(all[name], d)
		}
	}
	return all
}

// addDevices lets containers of the pods request devices. All containers of a pod request the same number:
// of the devices of an init container, the kubelet chooses any.
func addDevices(t *rapid.T, steps []cpusettest.Step, devices map[string][]listed) {
	for i := range steps {
		for _, resource := range slices.Sorted(maps.Keys(devices)) {
			n := rapid.IntRange(0, 3).Draw(t, "requested")
			for j := range steps[i].Containers {
				if n > 0 && rapid.IntRange(0, 2).Draw(t, "requests") > 0 {
					steps[i].Containers[j] += fmt.Sprintf("+%s:%d", strings.TrimPrefix(resource, "x.com/"), n)
				}
			}
		}
	}
}

// supplyOf returns the devices as our managers see them.
func supplyOf(devices map[string][]listed) map[v1.ResourceName]pod.DeviceSupply {
	all := map[v1.ResourceName]pod.DeviceSupply{}
	for resource, list := range devices {
		s, l := pod.DeviceSupply{Registered: true}, &pod.DeviceLayout{Devices: map[string]pod.DevicePlace{}}
		for _, d := range list {
			l.Devices[d.ID] = pod.DevicePlace{Healthy: d.Healthy, NUMA: d.NUMA}
			if len(d.NUMA) > 0 {
				s.Layout = l
			}
		}
		all[v1.ResourceName(resource)] = s
	}
	return all
}

// located returns the devices of a pod in the kubelet's answer, without resources that have no NUMA nodes: ours
// gives those to a container when it creates it.
func (a *answer) located(supply map[v1.ResourceName]pod.DeviceSupply) map[string]map[string][]string {
	all := map[string]map[string][]string{}
	for container, of := range a.Devices {
		for resource, ids := range of {
			if supply[v1.ResourceName(resource)].Layout == nil {
				continue
			}
			if all[container] == nil {
				all[container] = map[string][]string{}
			}
			all[container][resource] = ids
		}
	}
	return all
}

// reservedOf returns the devices that ours reserves for the containers of a pod.
func reservedOf(s *ours.State, uid string) map[string]map[string][]string {
	all := map[string]map[string][]string{}
	for container, p := range s.Of(uid) {
		if len(p.Devices) > 0 {
			all[container] = p.Devices
		}
	}
	return all
}

// lacksDevices reports whether a refusal is that of a pod for which too few devices are free. The kubelet tries
// the resources of a container in any order. Ours refuses a pod for those without NUMA nodes elsewhere.
func lacksDevices(text string) bool {
	return strings.Contains(text, "requested number of devices unavailable")
}

// compareDevices does the steps with the kubelet's managers and with ours. It returns the first difference, and
// how many pods with devices of NUMA nodes were admitted and refused.
func compareDevices(k *theirs, m ours.Machine, p ours.Policy, devices map[string][]listed, steps []cpusettest.Step) (difference string, admitted, refused int, err error) {
	c := caseOf(m, p)
	c.Devices = devices
	for _, s := range steps {
		c.add(s)
	}
	answers, err := k.ask(c)
	if err != nil {
		return "", 0, 0, err
	}
	a, failure := ours.New(m, p)
	if started := len(answers) != 1 || answers[0].Error == ""; started != (failure == nil) {
		return fmt.Sprintf("start: ours %v, kubelet %s", failure, answers[0].Error), 0, 0, nil
	}
	if failure != nil {
		return "", 0, 0, nil
	}
	s, supply := a.State(), supplyOf(devices)
	s.SetDevices(supply)
	for i, at := range steps {
		switch {
		case i == len(answers) || answers[i].Error != "":
			return "", admitted, refused, nil // the kubelet does not start with its own state
		case at.Action != "add":
			s = do(s, at)
			continue
		}
		is := answers[i]
		got, want := admit(s, at), is.text()
		if lacksDevices(want) && (lacksDevices(got) || len(supply) > len(located(supply))) {
			return "", admitted, refused, nil
		}
		if p.CPU == "none" { // its file has no shared CPUs
			got, want = strings.Split(got, "shared=")[0], strings.Split(want, "shared=")[0]
		}
		if strings.TrimSpace(got) != strings.TrimSpace(want) {
			return fmt.Sprintf("step %d, %s:\nours    %s\nkubelet %s", i, at.Containers, got, want), admitted, refused, nil
		}
		if is.Refused != "" {
			refused++
			continue
		}
		if has, want := reservedOf(s, at.UID), is.located(supply); !reflect.DeepEqual(has, want) {
			return fmt.Sprintf("step %d, %s:\nours    %v\nkubelet %v", i, at.Containers, has, want), admitted, refused, nil
		} else if len(want) > 0 {
			admitted++
		}
	}
	return "", admitted, refused, nil
}

// located returns the resources whose devices have NUMA nodes.
func located(supply map[v1.ResourceName]pod.DeviceSupply) (names []v1.ResourceName) {
	for name, s := range supply {
		if s.Layout != nil {
			names = append(names, name)
		}
	}
	return names
}

// Drawn pods that request devices get the refusals, the CPUs, the memory and the devices that the kubelet's own
// device, CPU, memory and topology managers give them.
//
// Shows: C-1.46.9, C-1.46.11, C-1.46.12
func TestManagers_DrawnDevices_AreTheKubelets(t *testing.T) {
	k := start(t)
	equal, other, admitted, refused := 0, 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		m, _ := drawMachine(rt)
		p := drawPolicy(rt, m)
		p.Topology = rapid.SampledFrom([]string{"best-effort", "restricted", "single-numa-node"}).Draw(rt, "topology policy with devices")
		if len(m.Nodes) > 4 { // the kubelet tries each combination of their sets
			p.Memory, p.ReservedMemory = "None", nil
			delete(p.Reservation, v1.ResourceMemory)
		}
		devices, steps := drawDevices(rt, m), drawSteps(rt, m)
		addDevices(rt, steps, devices)
		difference, yes, no, err := compareDevices(k, m, p, devices, steps)
		admitted, refused = admitted+yes, refused+no
		switch {
		case err != nil:
			rt.Fatal(err)
		case difference == "":
			equal++
		case documented(m, p):
			other++
		default:
			rt.Fatalf("%+v\n%+v\n%+v\n%s", m, p, devices, difference)
		}
	})
	t.Logf("%d sequences are equal, %d have a documented difference; %d pods with devices were admitted, %d pods refused", equal, other, admitted, refused)
	if other*4 > equal || admitted == 0 || refused == 0 {
		t.Errorf("%d of %d sequences have a documented difference, %d pods with devices were admitted, %d pods refused", other, equal+other, admitted, refused)
	}
}
