package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// configMap is an object that pods may name.
func configMap(name, text string) *pod.Object {
	m := &v1.ConfigMap{Data: map[string]string{"text": text}}
	m.Namespace, m.Name = "default", name
	return &pod.Object{
		Key: pod.Key{Namespace: "default", Name: name}, Kind: pod.KindConfigMap, Hash: podspec.HashObject(m.Data), Object: m,
		Origin: pod.Origin{Source: "file", Location: "/m", File: "/m/objects.yaml", Line: 1},
	}
}

// mounting gives the pod's container a volume of a ConfigMap.
func mounting(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "config", MountPath: "/config"}}
	}
}

func annotated(key, value string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Annotations = map[string]string{key: value} }
}

// C-1.37.6: a changed object is set up at once, and restarts nothing; nor does a later agent.
//
// Shows: C-1.37.6
func TestC_1_37_6_ChangedDataIsPutAndRestartsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.hold(configMap("page", "one"), configMap("other", "x"))
		m.src.set(mkpod("web", mounting("page")))
		m.arrive()
		before := m.disk.setUps
		m.src.hold(configMap("page", "two"), configMap("other", "x"))
		m.pass(time.Second)
		if m.disk.setUps != before+1 || !strings.Contains(m.rt.State(), "web/app attempt=0 running") {
			t.Errorf("set up %d times, want one more than %d\n%s", m.disk.setUps, before, m.rt.State())
		}
		m.src.hold(configMap("page", "two"), configMap("other", "y")) // an object of another pod
		m.again()
		m.pass(time.Minute)
		if m.disk.setUps != before+1 || !strings.Contains(m.rt.State(), "web/app attempt=0 running") {
			t.Errorf("set up %d times, want %d\n%s", m.disk.setUps, before+1, m.rt.State())
		}
	})
}

// With the annotation set, a change restarts the containers that use the object; a later agent
// knows which data the container runs with.
func TestRestartOnChange_RestartsWhatUsesTheObject(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		beside := func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "beside", Image: "app:1", ImagePullPolicy: v1.PullIfNotPresent})
		}
		m.src.hold(configMap("page", "one"))
		m.src.set(mkpod("web", mounting("page"), beside, annotated(pod.AnnotationRestartOnChange, "true")))
		m.arrive()
		m.src.hold(configMap("page", "two"))
		m.pass(time.Minute)
		m.again()
		m.pass(time.Minute)
		for _, want := range []string{"web/app attempt=1 running", "web/beside attempt=0 running"} {
			if !strings.Contains(m.rt.State(), want) {
				t.Errorf("not %s:\n%s", want, m.rt.State())
			}
		}
	})
}

// C-1.39: an edit whose image cannot be pulled stops no container. It takes effect once the
// image can be pulled.
//
// Shows: C-1.39
func TestC_1_39_PullBeforeStop(t *testing.T) {
	for name, edit := range map[string]func(*v1.Pod){
		"a container": image("app:2"),
		"the pod":     func(p *v1.Pod) { image("app:2")(p); p.Spec.HostNetwork = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.src.set(mkpod("web"))
				m.arrive()
				m.rt.SetImage("app:2", false)
				lift := m.rt.Fault(critest.Fault{Method: "PullImage", Err: errors.New("no such host")})
				m.src.set(mkpod("web", edit))
				m.pass(5 * time.Minute)
				if !strings.Contains(m.rt.State(), "web/app attempt=0 running") {
					t.Errorf("what ran was stopped for an image that is not there:\n%s", m.rt.State())
				}
				m.again()
				m.pass(time.Minute)
				if !strings.Contains(m.rt.State(), "web/app attempt=0 running") {
					t.Errorf("by the next agent:\n%s", m.rt.State())
				}
				lift()
				m.pass(6 * time.Minute)
				if s := m.rt.State(); !strings.Contains(s, "web/app attempt=1 running") && !strings.Contains(s, "web/app attempt=0 running") || m.phase("web") != "Running" {
					t.Errorf("%s:\n%s", m.phase("web"), s)
				}
				if img := m.disk.last(webKey).pod.Status.ContainerStatuses[0].Image; !strings.Contains(img, "app:2") {
					t.Errorf("it runs image %s", img)
				}
			})
		})
	}
}

// C-1.35.9: a pod whose emptyDir exceeds its limit is Failed with that reason, also for the
// next agent; an edit starts it again.
//
// Shows: C-1.35.9
func TestC_1_35_9_EvictedForItsDisk(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		limit := resource.MustParse("1Mi")
		filling := func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "cache", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
		}
		const message = `Usage of EmptyDir volume "cache" exceeds the limit "1Mi".`
		m.src.set(mkpod("web", filling), mkpod("db"))
		m.arrive()
		m.disk.mu.Lock()
		m.disk.over = map[string]string{"uid-web": message, "uid-db": message}
		m.disk.mu.Unlock()
		m.pass(measurementPeriod + time.Second) // the loop handles a round's result before the next round
		if st := m.disk.last(webKey).pod.Status; st.Reason != "Evicted" {
			t.Errorf("after one round: %s %s", st.Phase, st.Reason)
		}
		m.again()
		m.pass(time.Minute)
		st := m.disk.last(webKey).pod.Status
		if st.Phase != v1.PodFailed || st.Reason != "Evicted" || st.Message != message {
			t.Errorf("%s %s %q", st.Phase, st.Reason, st.Message)
		}
		if m.phase("db") != "Running" {
			t.Errorf("a pod without a limit is %s", m.phase("db"))
		}
		m.disk.mu.Lock()
		m.disk.over = nil
		m.disk.mu.Unlock()
		m.src.set(mkpod("web", filling, image("app:2")), mkpod("db"))
		m.pass(time.Minute)
		if m.phase("web") != "Running" {
			t.Errorf("edited, it is %s", m.phase("web"))
		}
	})
}
