package engine

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// resourced gives a pod's first container resources; a change of memory restarts it.
func resourced(p *v1.Pod) {
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")},
		Limits:   v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")},
	}
	p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
}

func hasResources(p place) bool {
	return lives0(p) && len(p.spec.Pod.Spec.Containers[0].Resources.Limits) > 0
}

// sidecar adds a sidecar to a pod.
func sidecar(p *v1.Pod) {
	always := v1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: "proxy", Image: "proxy:1", ImagePullPolicy: v1.PullIfNotPresent, RestartPolicy: &always})
}

func proxy(p *v1.Pod) int {
	return slices.IndexFunc(p.Spec.InitContainers, func(c v1.Container) bool { return c.Name == "proxy" })
}

func hasSidecar(p place) bool { return lives0(p) && proxy(p.spec.Pod) >= 0 }

func dependsOn(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		annotations := map[string]string{}
		maps.Copy(annotations, p.Annotations)
		annotations[pod.AnnotationDependsOn] = name
		p.Annotations = annotations
	}
}

// lifecycleRows are the generator's rows of resources, hooks, sidecars and dependencies.
func (s *scenery) lifecycleRows() map[string]func() []expectation {
	edit := func(which func(place) bool, says string, edits ...func(*v1.Pod)) func() []expectation {
		return func() []expectation {
			p, ok := s.plain(which)
			if !ok {
				return nil
			}
			s.put(p.layer, p.file, s.again(p.layer, p.file, p.spec, edits...))
			return []expectation{{key: p.spec.Key, says: says}}
		}
	}
	// fresh writes a new pod into a layer that can be read.
	fresh := func(name string, edits ...func(*v1.Pod)) pod.Key {
		layer := s.r.IntN(2)
		if s.layers[layer].err != nil {
			layer = 1 - layer
		}
		spec := s.spec(layer, s.path(layer, name), name, edits...)
		s.put(layer, spec.Origin.File, spec)
		return spec.Key
	}
	app := func(edit func(*v1.Container)) func(*v1.Pod) {
		return func(p *v1.Pod) { s.news++; edit(&p.Spec.Containers[0]) }
	}
	return map[string]func() []expectation{
		"M30": edit(hasResources, "UPDATE resize app[cpu]", app(func(c *v1.Container) {
			c.Resources.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(100+s.news), resource.DecimalSI)
		})),
		"M31": edit(hasResources, "UPDATE [app]", app(func(c *v1.Container) {
			c.Resources.Limits[v1.ResourceMemory] = *resource.NewQuantity(int64(64+s.news)<<20, resource.BinarySI)
		})),
		"M32": edit(func(p place) bool { return lives0(p) && !hasResources(p) }, "UPDATE pod", resourced),
		"M33": edit(lives0, "UPDATE", app(func(c *v1.Container) {
			c.TerminationMessagePath = fmt.Sprint("/message-", s.news)
			hooks := v1.Lifecycle{PostStart: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1}}}
			if c.Lifecycle != nil {
				hooks.StopSignal = c.Lifecycle.StopSignal
			}
			c.Lifecycle = &hooks
		})),
		"M34": edit(func(p place) bool { return lives0(p) && p.spec.Pod.Spec.OS == nil }, "UPDATE [app]", func(p *v1.Pod) {
			interrupt := v1.SIGINT
			p.Spec.OS = &v1.PodOS{Name: v1.Linux}
			p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: &interrupt}
		}),
		"M35": edit(hasSidecar, "UPDATE [proxy]", func(p *v1.Pod) {
			s.news++
			p.Spec.InitContainers[proxy(p)].Image = fmt.Sprintf("proxy:%d", s.news)
		}),
		"M36": edit(lives0, "UPDATE", func(p *v1.Pod) {
			if i := proxy(p); i >= 0 {
				p.Spec.InitContainers = slices.Delete(p.Spec.InitContainers, i, i+1)
			} else {
				sidecar(p)
			}
		}),
		"M37": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			on, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			s.put(p.layer, p.file, s.again(p.layer, p.file, p.spec, dependsOn(on.spec.Name)))
			return []expectation{{key: p.spec.Key, says: "UPDATE"}}
		},
		"M38": func() []expectation {
			a, b, c := s.fresh(), s.fresh(), s.fresh()
			return []expectation{
				{key: fresh(a, dependsOn(b+":ready")), says: "reject"}, {key: fresh(b, dependsOn(a)), says: "reject"},
				{key: fresh(c, dependsOn(c+":done")), says: "reject"},
			}
		},
		"M39": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			// Of two layers, the one that answered first would win.
			on, ok := s.plain(func(on place) bool { return lives0(on) && on.layer == p.layer })
			if !ok {
				return nil
			}
			s.put(p.layer, p.file, s.again(p.layer, p.file, p.spec, dependsOn(on.spec.Name), s.nextImage))
			s.put(on.layer, on.file, s.again(on.layer, on.file, on.spec, dependsOn(p.spec.Name), s.nextImage))
			return []expectation{{key: p.spec.Key, says: "reject"}, {key: on.spec.Key, says: "reject"}}
		},
		"M40": func() []expectation {
			return []expectation{{key: fresh(s.fresh(), dependsOn("missing")), says: "ADD waits"}}
		},
	}
}
