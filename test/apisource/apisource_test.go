package apisource

import (
	"fmt"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/suite"
)

// server is shared by all tests of the first tier.
var server = suite.Once(func(t testing.TB) *cluster.Cluster {
	return cluster.Start(t, cluster.RBAC(), cluster.APIs("certificates.k8s.io/v1beta1"),
		cluster.APIServerArgs("--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true"))
})

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// TestOnOneServer runs the tests that leave the server as it is. It runs before the others
// and not in parallel with them: the suite counts goroutines.
func TestOnOneServer(t *testing.T) {
	c := server(t)
	nodes := 0
	node := func() string { nodes++; return fmt.Sprintf("n%d", nodes) }
	t.Run("Conforms", func(t *testing.T) {
		sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture { return fixture(t, c, node()) })
	})
	t.Run("C_1_8_LifeOfAPod", func(t *testing.T) { lifeOfAPod(t, c, node()) })
	t.Run("C_1_8_MirrorPodsAreLeftOut", func(t *testing.T) { mirrorPods(t, c, node()) })
	t.Run("F71_ManyPages", func(t *testing.T) { manyPages(t, c, node()) })
	t.Run("F73_RecreatedWithAnotherUID", func(t *testing.T) { recreated(t, c, node()) })
}

// lifeOfAPod: the engine gets an update for each change of a pod on the server (C-1.2.8,
// C-1.2.9).
func lifeOfAPod(t *testing.T, c *cluster.Cluster, node string) {
	next := ops(t, newSource(t, c.AdminKubeconfig(t), node))
	c.CreatePod(t, cluster.Pod(node, "one"))
	added := next("ADD one")
	is := c.GetPod(t, "default", "one")
	if added.UID() != string(is.UID) || added.Pod.Annotations[pod.AnnotationConfigSource] != "api" || added.Pod.Name != "one" {
		t.Errorf("pod %+v, the server has %+v", added.Pod.ObjectMeta, is.ObjectMeta)
	}
	c.PatchPod(t, "default", "one", `{"status": {"phase": "Running"}}`, "status")
	if p := next("RECONCILE one"); p.Pod.Status.Phase != v1.PodRunning {
		t.Errorf("phase %q", p.Pod.Status.Phase)
	}
	c.PatchPod(t, "default", "one", `{"metadata": {"labels": {"a": "b"}}}`)
	next("UPDATE one")
	c.DeletePod(t, "default", "one", 30)
	if p := next("DELETE one"); p.Pod.DeletionTimestamp == nil || *p.Pod.DeletionGracePeriodSeconds != 30 {
		t.Errorf("deletion %v, grace %v", p.Pod.DeletionTimestamp, p.Pod.DeletionGracePeriodSeconds)
	}
	c.DeletePod(t, "default", "one", 0)
	next("REMOVE one", "DELETE one") // its grace becomes 0 first
}

func mirrorPods(t *testing.T, c *cluster.Cluster, node string) {
	mirror := func(name string) *v1.Pod {
		p := cluster.Pod(node, name)
		p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "hash", pod.AnnotationConfigSource: "file"}
		return p
	}
	c.CreatePod(t, mirror("static-a"))
	l := sourcetest.Listen(t, newSource(t, c.AdminKubeconfig(t), node))
	l.Set().Holds(t)
	c.CreatePod(t, mirror("static-b"))
	c.CreatePod(t, cluster.Pod(node, "ordinary"))
	w := l.Set()
	w.Holds(t, "ordinary")
	w.Names(t, "ordinary")
}

// manyPages: more pods than one page has are one complete set.
func manyPages(t *testing.T, c *cluster.Cluster, node string) {
	var want []string
	for i := range 520 {
		want = append(want, fmt.Sprintf("p%03d", i))
		c.CreatePod(t, cluster.Pod(node, want[i]))
	}
	sourcetest.Listen(t, newSource(t, c.AdminKubeconfig(t), node)).Set().Holds(t, want...)
}

func recreated(t *testing.T, c *cluster.Cluster, node string) {
	c.CreatePod(t, cluster.Pod(node, "again"))
	next := ops(t, newSource(t, c.AdminKubeconfig(t), node))
	first := next("ADD again")
	c.DeletePod(t, "default", "again", 0)
	is := c.CreatePod(t, cluster.Pod(node, "again"))
	var got *pod.Spec
	for got == nil || got.UID() == first.UID() {
		// One burst is an UPDATE, two are a REMOVE and an ADD; before them the server sets
		// the grace period to 0.
		got = next("", "UPDATE again", "DELETE again", "REMOVE again", "ADD again")
	}
	if got.UID() != string(is.UID) {
		t.Errorf("UID %s, the server has %s", got.UID(), is.UID)
	}
}

// The server is down at the start, comes up, dies under the source, and comes back with other
// pods: the pods stay meanwhile (F50, F70). It is the server of all tests: this test runs
// before the parallel ones.
//
// Shows: F70
func TestF70_Outage(t *testing.T) {
	c := server(t)
	c.CreatePod(t, cluster.Pod("outage", "stays"))
	c.CreatePod(t, cluster.Pod("outage", "goes"))
	kubeconfig := c.AdminKubeconfig(t)
	c.APIServer.Kill(t)
	l := sourcetest.Listen(t, newSource(t, kubeconfig, "outage"))
	if got, want := l.Error().Error(), c.URL+": connection refused"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	c.APIServer.Start(t)
	first := settled(l)
	first.Holds(t, "stays", "goes")
	c.APIServer.Kill(t)
	_ = l.Error()
	c.APIServer.Start(t)
	back := settled(l)
	back.Holds(t, "stays", "goes")
	back.Names(t)
	if back.Pod("stays") != first.Pod("stays") {
		t.Error("the unchanged pod is another pointer")
	}
	c.DeletePod(t, "default", "goes", 0)
	for w := l.Set(); len(w.Contents()) != 1; w = l.Set() {
	}
}

// settled returns the next set; a server that is starting gives various errors.
func settled(l *sourcetest.Listener) sourcetest.Result {
	for {
		if w := l.Next(); w.Err == nil {
			return w
		}
	}
}

// A node's own credentials are enough, and another node's are refused.
//
// Shows: F72
func TestF72_NodeCredentials(t *testing.T) {
	t.Parallel()
	c := server(t)
	c.CreateNode(t, "reads")
	c.CreatePod(t, cluster.Pod("reads", "read"))
	sourcetest.Listen(t, newSource(t, c.NodeKubeconfig(t, "reads"), "reads")).Set().Holds(t, "read")
	l := sourcetest.Listen(t, newSource(t, c.NodeKubeconfig(t, "other"), "reads"))
	if err := l.Error(); !strings.Contains(err.Error(), "HTTP 403") {
		t.Errorf("error %q", err)
	}
}
