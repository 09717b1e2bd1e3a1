package apisource

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/cluster"
)

// TestOnOneServer holds what leaves the server as it is. It runs before the
// others and not beside them: the suite counts goroutines.
func TestOnOneServer(t *testing.T) {
	c := cluster.Start(t)
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

// lifeOfAPod: what the server does to a pod is what the engine hears (C-1.2.8,
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
	c.CreatePod(t, cluster.Pod(node, "one"))
	w := l.Set()
	w.Holds(t, "one")
	w.Names(t, "one")
}

// manyPages: more pods than one page has are one complete set.
func manyPages(t *testing.T, c *cluster.Cluster, node string) {
	var want []string
	for i := range 520 {
		want = append(want, fmt.Sprintf("p%03d", i))
		c.CreatePod(t, cluster.Pod(node, want[i]))
	}
	start := time.Now()
	sourcetest.Listen(t, newSource(t, c.AdminKubeconfig(t), node)).Set().Holds(t, want...)
	t.Logf("the first set of %d pods took %s", len(want), time.Since(start).Round(time.Millisecond))
}

func recreated(t *testing.T, c *cluster.Cluster, node string) {
	c.CreatePod(t, cluster.Pod(node, "again"))
	next := ops(t, newSource(t, c.AdminKubeconfig(t), node))
	first := next("ADD again")
	c.DeletePod(t, "default", "again", 0)
	is := c.CreatePod(t, cluster.Pod(node, "again"))
	var got *pod.Spec
	for got == nil || got.UID() == first.UID() {
		// One burst is an UPDATE, two are a REMOVE and an ADD; before them the
		// server sets a grace of 0.
		got = next("", "UPDATE again", "DELETE again", "REMOVE again", "ADD again")
	}
	if got.UID() != string(is.UID) {
		t.Errorf("UID %s, the server has %s", got.UID(), is.UID)
	}
}

// The server is not there at the start, comes, dies under the source, and comes
// back with other pods: the pods stand meanwhile (F50, F70).
func TestF70_Outage(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.CreatePod(t, cluster.Pod("n1", "one"))
	c.CreatePod(t, cluster.Pod("n1", "two"))
	kubeconfig := c.AdminKubeconfig(t)
	c.APIServer.Kill(t)
	l := sourcetest.Listen(t, newSource(t, kubeconfig, "n1"))
	if got, want := l.Error().Error(), c.URL+": connection refused"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	c.APIServer.Start(t)
	first := settled(l)
	first.Holds(t, "one", "two")
	c.APIServer.Kill(t)
	_ = l.Error()
	c.APIServer.Start(t)
	back := settled(l)
	back.Holds(t, "one", "two")
	back.Names(t)
	if back.Pod("one") != first.Pod("one") {
		t.Error("the unchanged pod is another pointer")
	}
	c.DeletePod(t, "default", "two", 0)
	for w := l.Set(); len(w.Contents()) != 1; w = l.Set() {
	}
}

// settled returns the next set; a server that is starting says this and that.
func settled(l *sourcetest.Listener) sourcetest.Word {
	for {
		if w := l.Next(); w.Err == nil {
			return w
		}
	}
}

// The server says 410 Gone in its own way to a watch that wants to begin before
// everything it keeps; the list that follows has all that happened.
func TestF71_Gone(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.CreatePod(t, cluster.Pod("n1", "was"))
	c.Compact(t)
	c.APIServer.Restart(t) // or it remembers what etcd does not
	p := newProxy(t, c)
	var watches, lists atomic.Int32
	p.says(func(_ http.ResponseWriter, r *http.Request) bool {
		query := r.URL.Query()
		if !query.Has("watch") {
			lists.Add(1)
			return false
		}
		if watches.Add(1) == 1 {
			c.DeletePod(t, "default", "was", 0)
			c.CreatePod(t, cluster.Pod("n1", "is"))
			query.Set("resourceVersion", "1")
			r.URL.RawQuery = query.Encode()
		}
		return false
	})
	l := sourcetest.Listen(t, newSource(t, p.kubeconfig(t), "n1"))
	l.Set().Holds(t, "was")
	w := l.Set()
	w.Holds(t, "is")
	w.Names(t, "is", "was")
	if lists.Load() < 2 {
		t.Error("the set did not come from a list")
	}
}

// etcd's data is set back to a backup while the agent runs: pods made since go,
// but not before a second list agrees; the others are not touched; what happens
// then is seen, though its resource versions are of the past.
func TestF71_RestoredFromBackup(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.CreatePod(t, cluster.Pod("n1", "kept"))
	backup := c.Snapshot(t)
	for i := range 20 {
		c.PatchPod(t, "default", "kept", fmt.Sprintf(`{"metadata": {"annotations": {"n": "%d"}}}`, i))
	}
	c.CreatePod(t, cluster.Pod("n1", "new"))
	l := sourcetest.Listen(t, newSource(t, c.AdminKubeconfig(t), "n1"))
	l.Set().Holds(t, "kept", "new")
	c.Restore(t, backup)
	back := time.Now()
	warned := false
	w := l.Next()
	for ; w.Err != nil; w = l.Next() {
		warned = warned || strings.Contains(w.Err.Error(), "restored from a backup")
	}
	if !warned {
		t.Error("the source says nothing of the past")
	}
	w.Holds(t, "kept")
	w.Names(t, "kept", "new")
	t.Logf("confirmed %s after the server was back", time.Since(back).Round(time.Millisecond))
	c.CreatePod(t, cluster.Pod("n1", "new"))
	l.Set().Holds(t, "kept", "new")
	c.DeletePod(t, "default", "kept", 0)
	for w := l.Set(); len(w.Contents()) != 1; w = l.Set() {
	}
}

// A client certificate expires and is replaced in its files; a token is revoked
// and replaced in its file; neither needs a restart, and no pod goes.
func TestF72_ExpiredCertificateAndToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens, token := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "token")
	write(t, tokens, "first,tom,1\n")
	write(t, token, "first")
	c := cluster.Start(t, cluster.APIServerArgs("--token-auth-file="+tokens))
	c.CreatePod(t, cluster.Pod("n1", "one"))

	byToken := c.AdminKubeconfig(t)
	text, err := os.ReadFile(byToken)
	if err != nil {
		t.Fatal(err)
	}
	byToken = filepath.Join(dir, "kubeconfig")
	head, _, found := strings.Cut(string(text), "users:")
	if !found {
		t.Fatalf("kubeconfig %s", text)
	}
	write(t, byToken, head+"users: [{name: admin, user: {tokenFile: token}}]\n")
	holder := sourcetest.Listen(t, newSource(t, byToken, "n1"))
	holder.Patience = time.Minute // a server that starts slowly is asked more and more rarely
	holder.Set().Holds(t, "one")
	write(t, tokens, "second,tom,1\n")
	c.APIServer.Restart(t)
	for !strings.Contains(holder.Error().Error(), "HTTP 401: the server does not accept our credentials") {
	}
	write(t, token, "second")
	settled(holder).Holds(t, "one")

	byCertificate := c.Kubeconfig(t, cluster.Identity{User: "kim", NotAfter: time.Now().Add(-time.Minute)})
	l := sourcetest.Listen(t, newSource(t, byCertificate, "n1"))
	if err := l.Error(); !strings.Contains(err.Error(), "HTTP 401") {
		t.Errorf("error %q", err)
	}
	c.Kubeconfig(t, cluster.Identity{User: "kim"}) // over the same files
	settled(l).Holds(t, "one")
}

// The server's certificate comes from another authority, as after a rotation:
// an error until the kubeconfig's file names that one.
func TestF72_RotatedCA(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.CreatePod(t, cluster.Pod("n1", "one"))
	w := newWire(t, c.URL)
	kubeconfig := rewrite(t, c.AdminKubeconfig(t), w.address())
	l := sourcetest.Listen(t, newSource(t, kubeconfig, "n1"))
	l.Patience = time.Minute // a server whose watches are cut is asked more and more rarely
	first := l.Set()
	first.Holds(t, "one")
	other := cluster.NewAuthority(t, filepath.Dir(c.Authority.File), "other")
	other.Issue(t, "apiserver", cluster.Identity{User: "apiserver", Hosts: []string{"127.0.0.1"}})
	cutting, enough := context.WithCancel(t.Context())
	defer enough()
	var cutter sync.WaitGroup
	cutter.Go(func() {
		// The server reads its certificate again in its own time, and a watch that goes on
		// over the old one says no word.
		again := time.NewTicker(time.Second)
		defer again.Stop()
		for cutting.Err() == nil {
			w.cut()
			select {
			case <-again.C:
			case <-cutting.Done():
			}
		}
	})
	for {
		word := l.Next()
		if word.Err != nil && strings.Contains(word.Err.Error(), "signed by an authority that the kubeconfig does not name") {
			break
		}
	}
	enough()
	cutter.Wait()
	text, err := os.ReadFile(other.File)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(filepath.Dir(kubeconfig), "ca.crt"), string(text))
	back := settled(l)
	back.Holds(t, "one")
	if back.Pod("one") != first.Pod("one") {
		t.Error("the pod is another pointer")
	}
}

// A node's own credentials are enough, and another node's are refused.
func TestF72_NodeCredentials(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.RBAC())
	c.CreateNode(t, "n1")
	c.CreatePod(t, cluster.Pod("n1", "one"))
	sourcetest.Listen(t, newSource(t, c.NodeKubeconfig(t, "n1"), "n1")).Set().Holds(t, "one")
	l := sourcetest.Listen(t, newSource(t, c.NodeKubeconfig(t, "n2"), "n1"))
	if err := l.Error(); !strings.Contains(err.Error(), "HTTP 403") {
		t.Errorf("error %q", err)
	}
}

// Every byte vanishes and no connection is closed: HTTP/2 pings find out within
// about a minute, long before the watch would have ended.
func TestF70_BlackHole(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.CreatePod(t, cluster.Pod("n1", "one"))
	w := newWire(t, c.URL)
	ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
	defer stop()
	var start time.Time
	pods := 0
	for set := range newSource(t, rewrite(t, c.AdminKubeconfig(t), w.address()), "n1").Sets(ctx) {
		switch pods = set.Files.Len(); pods {
		case 1:
			c.CreatePod(t, cluster.Pod("n1", "two"))
		case 2: // the watch is up
			w.each(func(c *conn) { c.dead.Store(true) })
			c.CreatePod(t, cluster.Pod("n1", "three"))
			start = time.Now()
		}
		if pods == 3 {
			break
		}
	}
	if pods != 3 {
		t.Fatal("the source never noticed")
	}
	t.Logf("found out after %s", time.Since(start).Round(time.Second))
}
