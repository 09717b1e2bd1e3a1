package cpusettest

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// Pod returns a pod. "a=2" is a container with two CPUs, "i:a=2" an init container, "s:a=2" a
// sidecar. Each has 1 GiB of memory, or "a=2/4Gi", and "a=2/4Gi/64Mi" has huge pages of 2 MiB, too.
// "a=2<4" has a larger limit of CPUs than its request. "a=2+gpu:1+nic:2" has devices of x.com/gpu and x.com/nic.
func Pod(uid string, list ...string) *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Name = types.UID(uid), uid
	for _, text := range list {
		kind, rest, named := strings.Cut(text, ":")
		if !named || kind != "i" && kind != "s" {
			kind, rest = "", text
		}
		c := container(rest)
		switch kind {
		case "i":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		case "s":
			always := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

func container(text string) v1.Container {
	words := strings.Split(text, "+")
	name, asks, _ := strings.Cut(words[0], "=")
	cpu, memory, has := strings.Cut(asks, "/")
	if !has {
		memory = "1Gi"
	}
	memory, pages, huge := strings.Cut(memory, "/")
	cpu, most, higher := strings.Cut(cpu, "<")
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	if huge {
		list["hugepages-2Mi"] = resource.MustParse(pages)
	}
	for _, word := range words[1:] {
		of, n, _ := strings.Cut(word, ":")
		list[v1.ResourceName("x.com/"+of)] = resource.MustParse(n)
	}
	c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Limits: list, Requests: list.DeepCopy()}}
	if higher {
		c.Resources.Limits[v1.ResourceCPU] = resource.MustParse(most)
	}
	return c
}
