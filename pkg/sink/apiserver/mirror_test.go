package apiserver

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
)

func staticPod(name, hash string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "static-uid", Annotations: map[string]string{pod.AnnotationConfigHash: hash, pod.AnnotationConfigSource: "file"}},
		Spec:       v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "c", Image: "image"}}},
	}
}

func hasHash(p *v1.Pod, hash string) bool {
	return p != nil && p.Annotations[pod.AnnotationConfigMirror] == hash
}

// TestC_1_13_4_MirrorsWaitForTheNode, and are created right after it.
//
// Shows: C-1.13.4
func TestC_1_13_4_MirrorsWaitForTheNode(t *testing.T) {
	t.Parallel()
	var known atomic.Bool // the test writes it, the sink reads it
	inBubble(t, func(t *testing.T, n *node) {
		n.tell(staticPod("one", "h"), runningStatus(), ofFile)
		pass(10 * time.Minute)
		if sent := n.calls("", ""); len(sent) != 0 {
			t.Fatalf("sent %+v", sent)
		}
		known.Store(true)
		pass(awaitPause + time.Second)
		is := n.pod("one")
		if !hasHash(is, "h") || is.OwnerReferences[0].UID != "node-uid" || is.Status.Phase != v1.PodRunning || is.Status.ObservedGeneration != 0 {
			t.Errorf("mirror %+v", is)
		}
		if sent := n.calls("", ""); len(sent) != 2 {
			t.Errorf("sent %+v, want a creation and a status", sent)
		}
	}, func(c *Config) {
		c.NodeUID = func() types.UID {
			if !known.Load() {
				return ""
			}
			return "node-uid"
		}
	})
}

// TestC_1_13_2_MirrorIsMadeAgain when its hash changes, and when a client deletes it.
//
// Shows: C-1.13.2
func TestC_1_13_2_MirrorIsMadeAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.tell(staticPod("one", "h1"), runningStatus(), ofFile)
		pass(time.Second)
		n.tell(staticPod("one", "h2"), runningStatus(), ofFile)
		pass(time.Second)
		is := n.pod("one")
		if !hasHash(is, "h2") {
			t.Fatalf("mirror %+v", is)
		}
		n.change("one", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		pass(time.Second)
		if now := n.pod("one"); !hasHash(now, "h2") || now.UID == is.UID || now.DeletionTimestamp != nil {
			t.Errorf("mirror %+v", now)
		}
		n.tell(staticPod("one", "h2"), runningStatus(), ofFile, forGood)
		pass(time.Second)
		if n.pod("one") != nil || len(n.loop.entries) != 0 || len(n.hashes) != 0 {
			t.Errorf("mirror %+v, %d entries", n.pod("one"), len(n.loop.entries))
		}
	})
}

// TestC_1_13_2_MirrorThatWentWhileItWasMade: a client deletes it before its creation is
// answered, and the sink creates it again soon.
//
// Shows: C-1.13.2
func TestC_1_13_2_MirrorThatWentWhileItWasMade(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.lags = 100 * time.Millisecond
		n.tell(staticPod("one", "h"), runningStatus(), ofFile)
		pass(50 * time.Millisecond)
		first := n.pod("one")
		if first == nil {
			t.Fatal("it was not made yet")
		}
		n.lose("one")
		pass(2 * time.Second)
		if now := n.pod("one"); !hasHash(now, "h") || now.UID == first.UID {
			t.Errorf("mirror %+v", now)
		}
		if sent := n.calls(http.MethodPatch, "one"); len(sent) != 1 {
			t.Errorf("%d patches, one of them for what had gone: %+v", len(sent), sent)
		}
	})
}

// TestF73_PodThatWentWhileItWasLookedUp does not count as present.
//
// Shows: F73
func TestF73_PodThatWentWhileItWasLookedUp(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		show := n.shows
		n.shows = nil
		p := n.bound("one")
		n.lags = 100 * time.Millisecond
		n.tell(p, p.Status)
		for len(n.calls(http.MethodGet, "one")) == 0 {
			pass(time.Millisecond)
		}
		n.shows = show
		n.lose("one")
		n.tell(p, p.Status, forGood)
		pass(time.Minute)
		n.keeps(t, 0)
	})
}

// TestC_1_13_4_ServerDoesNotKnowTheNode refuses a mirror for a moment. The sink
// logs nothing, and warns only where that lasts.
//
// Shows: C-1.13.4
func TestC_1_13_4_ServerDoesNotKnowTheNode(t *testing.T) {
	t.Parallel()
	for _, goesOn := range []bool{false, true} {
		inBubble(t, func(t *testing.T, n *node) {
			n.says(func(c call) (int, http.Header) {
				if c.method == http.MethodPost && (goesOn || c.at < 100*time.Millisecond) {
					return http.StatusNotFound, http.Header{"Kind": {"node"}, "Message": {`node "n1" not found`}}
				}
				return 0, nil
			})
			n.tell(staticPod("one", "h"), runningStatus(), ofFile)
			pass(10 * time.Second)
			if made := n.pod("one") != nil; made == goesOn || strings.Contains(n.log.String(), "rejects it") != goesOn {
				t.Errorf("it goes on: %t, made %t\n%s", goesOn, made, n.log.String())
			}
		})
	}
}

// TestC_1_13_6_ServerDoesNotKnowTheMirror answers its deletion with "not found".
// The sink still deletes it, though no more input comes.
//
// Shows: C-1.13.6
func TestC_1_13_6_ServerDoesNotKnowTheMirror(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		refused := 0
		n.says(func(c call) (int, http.Header) {
			if c.method == http.MethodDelete && refused == 0 {
				refused++
				return http.StatusNotFound, nil
			}
			return 0, nil
		})
		p := staticPod("one", "h")
		n.tell(p, runningStatus(), ofFile)
		pass(time.Second)
		n.tell(p, runningStatus(), ofFile, forGood)
		pass(10 * time.Second)
		if n.pod("one") != nil || refused != 1 {
			t.Errorf("the mirror stays; refused %d times", refused)
		}
		n.keeps(t, 0)
	})
}

// TestC_1_13_6_OrphansAreDeletedOnceAllLayersAreReady, and not before; the mirror of a static pod
// that stops stays until the pod has stopped.
//
// Shows: C-1.13.6
func TestC_1_13_6_OrphansAreDeletedOnceAllLayersAreReady(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		for _, name := range []string{"left", "kept", "stops"} {
			m := mirrorOf(staticPod(name, "h"), "n1", "node-uid", time.Now())
			m.UID = types.UID("mirror-of-" + name)
			n.server.mu.Lock()
			n.store(m)
			n.server.mu.Unlock()
		}
		n.tell(staticPod("kept", "h"), runningStatus(), ofFile)
		stops := staticPod("stops", "h")
		stops.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		n.tell(stops, runningStatus(), ofFile)
		pass(time.Hour)
		if n.pod("left") == nil {
			t.Fatal("the mirror was removed before its static pod was reported")
		}
		n.Synced()
		pass(orphanGrace / 2)
		if n.pod("left") == nil {
			t.Fatal("the mirror was removed before the report arrived")
		}
		pass(orphanGrace/2 + time.Second)
		if n.pod("left") != nil || n.pod("kept") == nil || n.pod("stops") == nil || n.pod("stops").UID != "mirror-of-stops" {
			t.Errorf("left %v, kept %v, stops %v", n.pod("left"), n.pod("kept"), n.pod("stops"))
		}
		n.tell(stops, runningStatus(), ofFile, forGood)
		pass(time.Second)
		if n.pod("stops") != nil {
			t.Error("the mirror of a pod that is gone stays")
		}
	})
}

// TestC_1_13_8_MirrorThatIsThere is kept where it has the hash; a pod of the name that
// is no mirror is left alone.
//
// Shows: C-1.13.8
func TestC_1_13_8_MirrorThatIsThere(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		show := n.shows
		n.shows = nil
		m := mirrorOf(staticPod("one", "h"), "n1", "node-uid", time.Now())
		m.UID = "was-there"
		n.server.mu.Lock()
		n.store(m)
		n.server.mu.Unlock()
		n.tell(staticPod("one", "h"), runningStatus(), ofFile)
		pass(10 * time.Second)
		if is := n.pod("one"); is.UID != "was-there" || is.Status.Phase != v1.PodRunning || n.log.Len() != 0 {
			t.Errorf("mirror %+v\n%s", is, n.log.String())
		}
		n.shows = show
		taken := n.bound("taken")
		n.tell(staticPod("taken", "h"), runningStatus(), ofFile)
		pass(time.Hour)
		if n.pod("taken").UID != taken.UID || strings.Count(n.log.String(), nameTaken) != 1 {
			t.Errorf("pod %+v\n%s", n.pod("taken"), n.log.String())
		}
	})
}

// here sets the UID of the pod that the runtime shows.
func here(uid types.UID) func(*pod.StatusReport) {
	return func(r *pod.StatusReport) { r.ObservedUID = string(uid) }
}

// contested returns a pod that runs, and a static one that will take its name.
func (n *node) contested(name string) (p, by *v1.Pod) {
	p = n.bound(name)
	n.tell(p, runningStatus(), here(p.UID))
	pass(time.Minute)
	return p, staticPod(name, "h")
}

// TestF75_NameTaken: a pod whose name a static pod has does not stay Ready forever; it
// becomes Failed as soon as nothing of it is left, and not before.
//
// Shows: F75, C-1.13
func TestF75_NameTaken(t *testing.T) {
	t.Parallel()
	for name, there := range map[string]types.UID{"the static pod runs": "static-uid", "the static pod is held": ""} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				p, by := n.contested("taken")
				n.tell(by, runningStatus(), ofFile, here(p.UID))
				pass(time.Hour)
				if is := n.pod("taken"); is.Status.Phase != v1.PodRunning || status(&is.Status, v1.PodReady) != v1.ConditionTrue {
					t.Errorf("while it is there: %+v", is.Status)
				}
				n.tell(by, statusOf(v1.PodPending, "False", waitingFor("ContainerCreating")), ofFile, here(there))
				pass(time.Minute)
				is := n.pod("taken")
				if s := &is.Status; is.UID != p.UID || s.Phase != v1.PodFailed || s.Reason != "NameTaken" || !strings.Contains(s.Message, "/m") ||
					status(s, v1.PodReady) != v1.ConditionFalse || status(s, v1.ContainersReady) != v1.ConditionFalse ||
					s.ContainerStatuses[0].Ready || s.ContainerStatuses[0].State.Terminated == nil || s.ContainerStatuses[0].State.Terminated.ExitCode != 137 {
					t.Errorf("status %+v", s)
				}
				sent := len(n.calls("", ""))
				n.tell(by, runningStatus(), ofFile, here("static-uid"))
				pass(time.Hour)
				if now := len(n.calls("", "")); now != sent || strings.Count(n.log.String(), nameTaken) != 1 {
					t.Errorf("%d requests more\n%s", now-sent, n.log.String())
				}
				n.change("taken", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
				pass(time.Minute)
				if is := n.pod("taken"); !hasHash(is, "h") {
					t.Errorf("deleted, and the name has %+v", is)
				}
			})
		})
	}
}

// TestF75_NameTakenAfterItsEnd: the sink sends the pod's own terminal status that the
// server does not have yet.
//
// Shows: F75, C-1.13
func TestF75_NameTakenAfterItsEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		p, by := n.contested("job")
		n.says(func(call) (int, http.Header) { return http.StatusServiceUnavailable, nil })
		n.tell(p, statusOf(v1.PodSucceeded, "False", endedState(0, "done")), here(p.UID))
		pass(time.Minute)
		n.tell(by, runningStatus(), ofFile, here("static-uid"))
		pass(time.Minute)
		n.says(nil)
		pass(time.Minute)
		if s := n.pod("job").Status; s.Phase != v1.PodSucceeded || s.ContainerStatuses[0].State.Terminated.Message != "done" {
			t.Errorf("status %+v", s)
		}
	})
}

// TestF75_NameTakenAndDeleted: a pod that is deleted while it still stops is removed
// when nothing of it is left, however long its grace period is.
//
// Shows: F75, C-1.13
func TestF75_NameTakenAndDeleted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		p, by := n.contested("slow")
		n.tell(by, runningStatus(), ofFile, here(p.UID))
		n.change("slow", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		pass(10 * time.Minute)
		if is := n.pod("slow"); is == nil || is.UID != p.UID {
			t.Fatalf("while it is there: %+v", is)
		}
		n.tell(by, runningStatus(), ofFile, here("static-uid"))
		pass(time.Minute)
		if is := n.pod("slow"); !hasHash(is, "h") {
			t.Errorf("the name has %+v", is)
		}
	})
}

// TestF75_NameTakenIsRefused: the sink completes the deletion of the pod even if the
// server never accepts that terminal status.
//
// Shows: F75, C-1.13
func TestF75_NameTakenIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		p, by := n.bound("taken"), staticPod("taken", "h")
		n.says(func(c call) (int, http.Header) {
			if c.method == http.MethodPatch {
				return http.StatusUnprocessableEntity, nil
			}
			return 0, nil
		})
		n.tell(by, runningStatus(), ofFile, here("static-uid"))
		pass(time.Hour)
		if tries := len(n.calls(http.MethodPatch, "")); tries < 2 || tries > 100 {
			t.Errorf("%d tries in an hour", tries)
		}
		n.change("taken", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		pass(10 * time.Minute)
		if is := n.pod("taken"); is.UID == p.UID || !hasHash(is, "h") {
			t.Errorf("the name has %+v", is)
		}
	})
}

// TestF75_NameTakenBeforeItBegan: a pod that is bound while its name is taken never
// starts.
//
// Shows: F75, C-1.13
func TestF75_NameTakenBeforeItBegan(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		for name, change := range map[string]func(*v1.PodStatus, *v1.Pod){
			"runs":  func(*v1.PodStatus, *v1.Pod) {},
			"ended": func(s *v1.PodStatus, _ *v1.Pod) { s.Phase = v1.PodSucceeded },
			"goes":  func(_ *v1.PodStatus, p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
			"left":  func(*v1.PodStatus, *v1.Pod) {},
		} {
			by, st := staticPod(name, "h"), runningStatus()
			change(&st, by)
			n.tell(by, st, ofFile, here("static-uid"), func(r *pod.StatusReport) { r.NotDesired = name == "left" })
			n.bound(name)
		}
		pass(time.Minute)
		for name, want := range map[string]v1.PodPhase{"runs": v1.PodFailed, "ended": v1.PodFailed, "goes": v1.PodPending, "left": v1.PodPending} {
			if is := n.pod(name); is.Status.Phase != want {
				t.Errorf("%s: %+v", name, is.Status)
			}
		}
	})
}

// TestF75_RefusedMirror: logged once, retried rarely, and created when the server
// permits it.
//
// Shows: F75
func TestF75_RefusedMirror(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.says(func(c call) (int, http.Header) {
			if c.method == http.MethodPost {
				return http.StatusForbidden, http.Header{"Message": {`violates PodSecurity "restricted:latest"`}}
			}
			return 0, nil
		})
		p := staticPod("one", "h")
		for i := range 360 {
			n.tell(p, restarted(int32(i)), ofFile)
			pass(10 * time.Second)
		}
		if tries := len(n.calls("", "")); tries < 10 || tries > 70 {
			t.Errorf("%d tries in an hour", tries)
		}
		if text := n.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "PodSecurity") {
			t.Errorf("log:\n%s", text)
		}
		n.says(nil)
		pass(4 * time.Minute)
		if is := n.pod("one"); !hasHash(is, "h") || is.Status.ContainerStatuses[0].RestartCount != 359 {
			t.Errorf("mirror %+v", is)
		}
	})
}

// TestMirrorThatWouldBeRefusedIsNotSent: NodeRestriction lets no mirror refer to API
// objects.
//
// Shows: F75
func TestMirrorThatWouldBeRefusedIsNotSent(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*v1.PodSpec){
		"serviceAccountName": func(s *v1.PodSpec) { s.ServiceAccountName = "default" },
		"secret": func(s *v1.PodSpec) {
			s.Volumes = volume(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "x"}})
		},
		"imagePullSecrets": func(s *v1.PodSpec) { s.ImagePullSecrets = []v1.LocalObjectReference{{Name: "x"}} },
		"configMapRef": func(s *v1.PodSpec) {
			s.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "x"}}}}
		},
		"serviceAccountToken": func(s *v1.PodSpec) {
			s.Volumes = volume(v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ServiceAccountToken: &v1.ServiceAccountTokenProjection{}}}}})
		},
		"resourceClaims": func(s *v1.PodSpec) { s.ResourceClaims = []v1.PodResourceClaim{{Name: "x"}} },
		"persistentVolumeClaim": func(s *v1.PodSpec) {
			s.Volumes = volume(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}})
		},
		"csi": func(s *v1.PodSpec) { s.Volumes = volume(v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "x"}}) },
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				p := staticPod("one", "h")
				change(&p.Spec)
				for i := range 10 {
					n.tell(p, restarted(int32(i)), ofFile)
					pass(time.Minute)
				}
				if text := n.log.String(); len(n.calls("", "")) != 0 || strings.Count(text, "\n") != 1 || !strings.Contains(text, what) {
					t.Errorf("sent %+v\n%s", n.calls("", ""), text)
				}
			})
		})
	}
}

func volume(v v1.VolumeSource) []v1.Volume { return []v1.Volume{{Name: "v", VolumeSource: v}} }

// TestC_1_26_15_AMirrorsEndIsNotTakenBack: the next instance has another mirror.
//
// Shows: C-1.26.15, C-1.13
func TestC_1_26_15_AMirrorsEndIsNotTakenBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		p := staticPod("one", "h")
		n.tell(p, statusOf(v1.PodSucceeded, "False", endedState(0, "")), ofFile)
		pass(time.Second)
		first := n.pod("one")
		if first.Status.Phase != v1.PodSucceeded {
			t.Fatalf("mirror %+v", first)
		}
		n.tell(p, runningStatus(), ofFile)
		pass(time.Second)
		if is := n.pod("one"); is.UID == first.UID || is.Status.Phase != v1.PodRunning {
			t.Errorf("mirror %+v", is)
		}
		for _, c := range n.calls(http.MethodPatch, "") {
			if strings.Contains(c.body, string(first.UID)) && strings.Contains(c.body, "Running") {
				t.Errorf("sent %s", c.body)
			}
		}
	})
}

// TestF75_MendedManifestIsTriedAtOnce, though the one before was refused many times.
//
// Shows: F75
func TestF75_MendedManifestIsTriedAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.says(func(call) (int, http.Header) { return http.StatusForbidden, nil })
		n.tell(staticPod("one", "h1"), runningStatus(), ofFile)
		pass(time.Hour)
		n.says(nil)
		n.tell(staticPod("one", "h2"), runningStatus(), ofFile)
		pass(time.Second)
		if is := n.pod("one"); !hasHash(is, "h2") {
			t.Errorf("mirror %+v", is)
		}
	})
}
