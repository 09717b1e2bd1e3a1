package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/test/node"
)

// An end is a pod's final state, as its manifest alone determines it.
type end string

const (
	runs      end = "runs"      // its containers run, and it is Ready
	succeeds  end = "succeeds"  // phase Succeeded
	fails     end = "fails"     // phase Failed
	loops     end = "loops"     // Always, and a container ends again and again
	stuck     end = "stuck"     // Pending: it cannot start
	unwritten end = "unwritten" // its manifest never was one
)

// artist draws pods.
type artist struct {
	*rand.Rand
	port int32 // host port given out last
}

func (a *artist) chance(percent int) bool { return a.IntN(100) < percent }

func pick[T any](a *artist, from ...T) T { return from[a.IntN(len(from))] }

// draw draws a pod and its end.
func (a *artist) draw(name, scratch string) (*v1.Pod, end) {
	p := &v1.Pod{}
	p.APIVersion, p.Kind, p.Name, p.Namespace = "v1", "Pod", name, namespace
	p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1 + a.IntN(3)))
	p.Spec.RestartPolicy = pick(a, v1.RestartPolicyAlways, v1.RestartPolicyAlways, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	p.Spec.HostNetwork = a.chance(60)
	p.Spec.Volumes = []v1.Volume{volume("data", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})}
	if a.chance(50) {
		p.Spec.Volumes = append(p.Spec.Volumes, volume("x", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: scratch}}))
	}
	for i := range a.IntN(10) / 4 {
		p.Spec.InitContainers = append(p.Spec.InitContainers, a.initContainer(p, i))
	}
	if a.chance(25) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, a.sidecar(p))
	}
	how := runs
	for i := range 1 + a.IntN(10)/5 {
		c := container(p, fmt.Sprintf("c%d", i))
		how = a.life(p, &c, i, how)
		a.furnish(p, &c, i)
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p, a.misfortune(p, how)
}

func volume(name string, source v1.VolumeSource) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: source}
}

func container(p *v1.Pod, name string) v1.Container {
	c := v1.Container{Name: name, Image: node.Stamp, ImagePullPolicy: v1.PullIfNotPresent}
	for _, v := range p.Spec.Volumes {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return c
}

func (a *artist) initContainer(p *v1.Pod, i int) v1.Container {
	c := container(p, fmt.Sprintf("i%d", i))
	if a.chance(25) && p.Spec.RestartPolicy != v1.RestartPolicyNever {
		c.Args = []string{"crash", fmt.Sprintf("/data/i%d", i), "3"}
	}
	c.Args = append(c.Args, "append", "/data/order", "sleep", fmt.Sprint(time.Duration(a.IntN(300))*time.Millisecond))
	return c
}

func (a *artist) sidecar(p *v1.Pod) v1.Container {
	c := container(p, "side")
	c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	c.Args = []string{"write", "/data/side", "up", "forever"}
	if a.chance(50) {
		c.StartupProbe = a.probe(command("exists", "/data/side"), 60)
	}
	if a.chance(30) {
		c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: command("print", "bye").Exec}}
	}
	return c
}

// life draws a container's actions, and returns the pod's end.
func (a *artist) life(p *v1.Pod, c *v1.Container, i int, how end) end {
	once := []string{"crash", fmt.Sprintf("/data/c%d", i), "3"}
	short := fmt.Sprint(time.Duration(100+a.IntN(2000)) * time.Millisecond)
	chance := a.IntN(100)
	switch p.Spec.RestartPolicy {
	case v1.RestartPolicyAlways:
		switch {
		case chance < 75:
			c.Args = []string{"forever"}
		case chance < 92:
			c.Args = slices.Concat(once, []string{"forever"})
		default:
			c.Args, how = []string{"sleep", short, "exit", "1"}, loops
		}
	case v1.RestartPolicyOnFailure:
		c.Args = []string{"sleep", short}
		if chance < 35 {
			c.Args = slices.Concat(once, c.Args)
		}
		if how == runs {
			how = succeeds
		}
	default:
		c.Args = []string{"sleep", short}
		if how == runs {
			how = succeeds
		}
		if chance < 30 {
			c.Args, how = append(c.Args, "exit", "4"), fails
		}
	}
	return how
}

// furnish gives a container settings that do not change when it starts or exits.
func (a *artist) furnish(p *v1.Pod, c *v1.Container, i int) {
	if a.chance(30) {
		limit := resource.MustParse(pick(a, "48Mi", "64Mi", "96Mi"))
		c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: limit}
		c.Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("8Mi"), v1.ResourceCPU: resource.MustParse("5m")}
	}
	if a.chance(15) {
		c.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: command("append", "/data/hooks").Exec}}
	}
	if a.chance(20) {
		if c.Lifecycle == nil {
			c.Lifecycle = &v1.Lifecycle{}
		}
		c.Lifecycle.PreStop = pick(a,
			&v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1}},
			&v1.LifecycleHandler{Exec: command("sleep", "300ms").Exec},
			&v1.LifecycleHandler{Exec: command("exit", "1").Exec},
			&v1.LifecycleHandler{Exec: command("forever").Exec})
	}
	if a.chance(10) {
		c.TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError
	}
	if p.Spec.RestartPolicy != v1.RestartPolicyAlways || !a.chance(50) {
		return
	}
	// Files that fail its probes: the soak makes them, in the volume x.
	ill := fmt.Sprintf("/x/%s-%s", p.Name, c.Name)
	web, health := fmt.Sprintf(":%d", 8000+i), fmt.Sprintf(":%d", 9000+i)
	handler := command("exists", "/data")
	if !p.Spec.HostNetwork {
		c.Args = append([]string{"unready", ill, "serve", web, "health", health}, c.Args...)
		handler = pick(a,
			v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt(8000 + i)}},
			v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt(8000 + i)}},
			v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: int32(9000 + i)}},
			handler)
		if a.chance(20) {
			a.port++
			c.Ports = []v1.ContainerPort{{ContainerPort: int32(8000 + i), HostPort: 21000 + a.port%9000}}
		}
	}
	if a.chance(60) {
		c.ReadinessProbe = a.probe(handler, 2)
	}
	if a.chance(40) {
		c.LivenessProbe = a.probe(handler, 3)
		c.LivenessProbe.InitialDelaySeconds = 2
	}
	if a.chance(30) {
		c.StartupProbe = a.probe(handler, 60)
	}
}

func (a *artist) probe(h v1.ProbeHandler, failures int32) *v1.Probe {
	return &v1.Probe{ProbeHandler: h, PeriodSeconds: int32(1 + a.IntN(2)), TimeoutSeconds: 3, FailureThreshold: failures}
}

func command(args ...string) v1.ProbeHandler {
	return v1.ProbeHandler{Exec: &v1.ExecAction{Command: append([]string{"/app"}, args...)}}
}

// misfortune gives about one pod in ten a fault that keeps it from its end.
func (a *artist) misfortune(p *v1.Pod, how end) end {
	first := &p.Spec.Containers[0]
	switch a.IntN(80) {
	case 0:
		first.Image, first.ImagePullPolicy = "nodectl.dev/test/absent:1", v1.PullNever
		return stuck
	case 1:
		c := container(p, "never")
		c.Args = []string{"exit", "9"}
		p.Spec.InitContainers = append([]v1.Container{c}, p.Spec.InitContainers...)
		if p.Spec.RestartPolicy == v1.RestartPolicyNever {
			return fails
		}
		return stuck
	case 2:
		first.Command = []string{"/absent"}
		if p.Spec.RestartPolicy == v1.RestartPolicyNever {
			return fails
		}
		return loops
	case 3:
		p.Spec.NodeSelector = map[string]string{"soak": "elsewhere"}
		return stuck
	case 4:
		p.Spec.ActiveDeadlineSeconds = ptr.To(int64(2))
		first.Args = []string{"forever"}
		first.ReadinessProbe, first.LivenessProbe, first.StartupProbe = nil, nil, nil
		return fails
	case 5:
		first.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("24Mi")}
		first.Resources.Requests = nil
		first.Args = []string{"alloc", "64", "forever"}
		if p.Spec.RestartPolicy == v1.RestartPolicyNever {
			return fails
		}
		return loops
	}
	return how
}

// broken are invalid manifests.
var broken = []string{
	"",
	"apiVersion: v1\nkind: Pod\nmetadata: {name: half\nspec:\n  containers:\n  - name",
	"{{ not yaml at all",
	"\x00\x01\x02\xff",
	"apiVersion: v1\nkind: Pod\nmetadata: {name: missing, namespace: soak}\nspec: {containers: []}\n",
	"apiVersion: v1\nkind: Pod\nmetadata: {name: typo, namespace: soak}\nspec: {containres: [{name: a, image: b}]}\n",
	"apiVersion: v1\nkind: Deployment\nmetadata: {name: other}\n",
}
