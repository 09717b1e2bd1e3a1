package cpusettest

import (
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Devices returns the devices of plugins, one resource a text: "gpu a@0 b@0,1 c!@1 d" are devices of x.com/gpu on
// NUMA nodes. c is not healthy, and the nodes of d are not known.
func Devices(t testing.TB, texts ...string) map[v1.ResourceName]pod.DeviceSupply {
	t.Helper()
	all := map[v1.ResourceName]pod.DeviceSupply{}
	for _, text := range texts {
		words := strings.Fields(text)
		s := pod.DeviceSupply{Registered: true}
		l := &pod.DeviceLayout{Devices: map[string]pod.DevicePlace{}, Users: map[string]map[string][]string{}}
		for _, word := range words[1:] {
			id, nodes, located := strings.Cut(word, "@")
			name := strings.TrimSuffix(id, "!")
			d := pod.DevicePlace{Healthy: name == id}
			for n := range strings.SplitSeq(nodes, ",") {
				if !located {
					break
				}
				at, err := strconv.ParseInt(n, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				d.NUMA, s.Layout = append(d.NUMA, at), l
			}
			if d.Healthy {
				s.Healthy, s.Usable = s.Healthy+1, s.Usable+1
			}
			l.Devices[name] = d
		}
		all[v1.ResourceName("x.com/"+words[0])] = s
	}
	return all
}
