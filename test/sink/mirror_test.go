package sink

import (
	"context"
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/said"
)

// fromFile makes a report one of a static pod.
func fromFile(r *pod.StatusReport) {
	r.Origin = pod.Origin{Source: "file", Location: "/etc/nodectl/manifests"}
}

// staticPod is a pod as a file's layer has it.
func staticPod(node, name, hash string) *v1.Pod {
	p := cluster.Pod(node, name)
	p.UID = "0b7f-static"
	p.CreationTimestamp = metav1.Now()
	p.Annotations = map[string]string{pod.AnnotationConfigHash: hash, pod.AnnotationConfigSource: "file"}
	p.Labels = map[string]string{"app": "static"}
	p.Status = v1.PodStatus{Phase: v1.PodPending}
	return p
}

func withHash(hash string) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		return p != nil && p.DeletionTimestamp == nil && p.Annotations[v1.MirrorPodAnnotationKey] == hash
	}
}

// mirror: C-1.13.1, C-1.13.2, C-1.13.5, C-1.27.6.
func mirror(t *testing.T, a *agent) {
	p := staticPod(a.name, "static", "h1")
	a.says(p, running(p, true), fromFile)
	is := a.until(t, "static", "running", phase(v1.PodRunning))
	if is.UID == p.UID || is.Annotations[v1.MirrorPodAnnotationKey] != "h1" || is.Annotations[pod.AnnotationConfigSource] != "file" || is.Annotations[pod.AnnotationConfigSeen] == "" || is.Labels["app"] != "static" {
		t.Errorf("mirror %+v", is.ObjectMeta)
	}
	if o := is.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].UID != a.uid || !*o[0].Controller {
		t.Errorf("owners %+v", o)
	}
	if is.Status.ObservedGeneration != 0 || find(is, v1.PodReady).Status != v1.ConditionTrue {
		t.Errorf("status %+v", is.Status)
	}
	// Another hash makes another mirror pod.
	edited := staticPod(a.name, "static", "h2")
	a.says(edited, running(edited, true), fromFile)
	second := a.until(t, "static", "of the new hash", withHash("h2"))
	a.until(t, "static", "running", phase(v1.PodRunning))
	// Deleting a mirror pod deletes nothing else; the agent creates it again.
	a.c.DeletePod(t, "default", "static", 30)
	third := a.until(t, "static", "new", func(p *v1.Pod) bool { return withHash("h2")(p) && p.UID != second.UID })
	a.c.DeletePod(t, "default", "static", 0)
	a.until(t, "static", "new", func(p *v1.Pod) bool { return withHash("h2")(p) && p.UID != third.UID })
	a.until(t, "static", "running", phase(v1.PodRunning))
	a.says(edited, ended(edited, v1.PodRunning, 0), fromFile, goneForGood)
	a.until(t, "static", "gone", missing)
}

// orphans: mirror pods of a previous agent stay until all sources are ready.
func orphans(t *testing.T, a *agent) {
	p, kept := staticPod(a.name, "left", "h"), staticPod(a.name, "kept", "h")
	a.says(p, running(p, true), fromFile)
	a.says(kept, running(kept, true), fromFile)
	a.until(t, "left", "running", phase(v1.PodRunning))
	before := a.until(t, "kept", "running", phase(v1.PodRunning))

	other := &agent{c: a.c, name: a.name, uid: a.uid, log: new(said.Log), lastReports: a.lastReports}
	other.run(t)
	other.says(kept, running(kept, true), fromFile)
	// An agent that creates a deleted mirror pod again has the server's state.
	witness := staticPod(a.name, "witness", "h")
	other.says(witness, running(witness, true), fromFile)
	first := a.until(t, "witness", "running", phase(v1.PodRunning))
	a.c.DeletePod(t, "default", "witness", 0)
	a.until(t, "witness", "another", func(p *v1.Pod) bool { return p != nil && p.UID != first.UID })
	if a.c.GetPod(t, "default", "left") == nil {
		t.Fatal("the mirror was deleted before all sources were ready")
	}
	a.says(p, running(p, true), fromFile, goneForGood) // or the first agent makes it again
	p = staticPod(a.name, "orphan", "h")
	a.says(p, running(p, true), fromFile)
	a.until(t, "orphan", "there", there)
	a.stop()
	other.Synced()
	other.until(t, "left", "gone", missing)
	other.until(t, "orphan", "gone", missing)
	if is := a.c.GetPod(t, "default", "kept"); is == nil || is.UID != before.UID || is.ResourceVersion != before.ResourceVersion {
		t.Error("the mirror of a pod that is there was touched")
	}
	other.wire.forbidden(t)
}

// mirrorsComeBack: a mirror pod that is no longer ours is made again; an ordinary pod of that
// name is left alone.
func mirrorsComeBack(t *testing.T, a *agent) {
	c := a.c
	c.CreatePod(t, cluster.Pod("", "taken")) // it has a node later, or never
	p := staticPod(a.name, "taken", "h")
	a.says(p, running(p, true), fromFile)
	own := staticPod(a.name, "own", "h")
	a.says(own, running(own, true), fromFile)
	a.until(t, "own", "running", phase(v1.PodRunning))
	a.log.Has(t, 1, "another pod has its name")
	if is := c.GetPod(t, "default", "taken"); is == nil || is.Annotations[v1.MirrorPodAnnotationKey] != "" {
		t.Error("a pod that is no mirror was touched")
	}
	if n := len(a.wire.of(http.MethodPost, "")); n > 4 {
		t.Errorf("%d tries", n)
	}
}

// nameTaken: a pod ends when a static pod takes its name, and the server accepts that.
func nameTaken(t *testing.T, a *agent) {
	p := a.c.CreatePod(t, cluster.Pod(a.name, "web"))
	a.says(p, running(p, true))
	a.until(t, "web", "ready", ready(true))
	by := staticPod(a.name, "web", "h")
	a.says(by, running(by, true), fromFile, func(r *pod.StatusReport) { r.ObservedUID = string(by.UID) })
	is := a.until(t, "web", "failed", phase(v1.PodFailed))
	if is.UID != p.UID || is.Status.Reason != "NameTaken" || find(is, v1.PodReady).Status != v1.ConditionFalse || is.Status.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("status %+v", is.Status)
	}
	a.c.DeletePod(t, "default", "web", 0)
	a.until(t, "web", "the mirror", withHash("h"))
}

// mirrorsRefused: the agent does not send mirrors that the server would reject. It logs a refusal
// once and retries rarely; other pods are not affected.
func mirrorsRefused(t *testing.T, a *agent) {
	named := staticPod(a.name, "named", "h")
	named.Spec.ServiceAccountName = "default"
	a.says(named, running(named, true), fromFile)
	nowhere := staticPod(a.name, "nowhere", "h")
	nowhere.Namespace = "missing"
	a.says(nowhere, running(nowhere, true), fromFile)
	good := staticPod(a.name, "good", "h")
	a.says(good, running(good, true), fromFile)
	a.until(t, "good", "running", phase(v1.PodRunning))
	const rounds = 10
	for i := range rounds {
		for _, p := range []*v1.Pod{nowhere, named, good} {
			a.says(p, running(p, i%2 == 1), fromFile)
		}
		a.until(t, "good", "as it was reported", ready(i%2 == 1))
	}
	const create = "POST /api/v1/namespaces/missing/pods "
	a.wire.said.Has(t, 2, create)
	if a.log.Count("Static pod has no mirror") != 2 || a.log.Count("service account") != 1 || a.log.Count(`namespaces \"missing\" not found`)+a.log.Count("namespaces \\\\\"missing\\\\\" not found") == 0 {
		t.Errorf("log:\n%s", a.log)
	}
	if tries := a.wire.said.Count(create); tries >= rounds {
		t.Errorf("%d tries, as many as reports", tries)
	}
	n := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "missing"}}
	if err := a.c.Client(t).Post().Resource("namespaces").Body(n).Do(context.Background()).Error(); err != nil {
		t.Fatal(err)
	}
	a.wire.said.Has(t, 1, create+"201\n")
	if a.c.GetPod(t, "missing", "nowhere") == nil {
		t.Error("the mirror does not come when there is a namespace")
	}
}
