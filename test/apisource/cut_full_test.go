//go:build full

package apisource

import (
	"fmt"
	"net/http"
	"path"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/cluster"
)

// counted notes the requests through a proxy, and holds them up on demand.
type counted struct {
	mu     sync.Mutex // guards the fields below
	asked  []string   // "list pods", "watch secrets"
	closed chan struct{}
}

func (c *counted) pass(_ http.ResponseWriter, r *http.Request) bool {
	c.mu.Lock()
	closed, query := c.closed, r.URL.Query()
	what := path.Base(r.URL.Path)
	switch {
	case r.Method != http.MethodGet:
		what = "post " + what
	case query.Get("watch") == "true":
		what = "watch " + what
	case query.Get("limit") == "1":
		what = "one of " + what
	default:
		what = "list " + what
	}
	c.asked = append(c.asked, what)
	c.mu.Unlock()
	if closed != nil {
		<-closed
	}
	return false
}

// After the connection between a node and its API server is cut, every watch resumes where it
// stopped, and nothing is listed. Objects that were changed, deleted or recreated meanwhile
// still arrive.
//
// Shows: F70
func TestF70_CutWatchesGoOnWithoutLists(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	p := newProxy(t, c)
	var through counted
	p.says(through.pass)
	var names []v1.EnvFromSource
	for i := range 20 {
		name := fmt.Sprintf("m%02d", i)
		create(t, c, "configmaps", fmt.Sprintf(`{"metadata": {"name": %q}, "data": {"k": "1"}}`, name))
		names = append(names, v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}})
	}
	one := cluster.Pod("n1", "one")
	one.Spec.Containers[0].EnvFrom = names
	c.CreatePod(t, one)
	was := c.CreatePod(t, cluster.Pod("n1", "again"))
	c.CreatePod(t, cluster.Pod("n1", "gone"))
	l := sourcetest.Listen(t, newSource(t, p.kubeconfig(t), "n1"))
	all := map[string]string{}
	text := func() (out string) {
		for i := range 20 {
			if value := all[fmt.Sprintf("m%02d", i)]; value != "" {
				out += fmt.Sprintf(" configmap/default/m%02d=%s", i, value)
			}
		}
		return out[1:]
	}
	for i := range 20 {
		all[fmt.Sprintf("m%02d", i)] = "1"
	}
	becomes(t, l, text())
	change := func(to string) { // and each watch has delivered something, so it is established
		t.Helper()
		for name := range all {
			if all[name] != "" {
				patch(t, c, "configmaps", name, fmt.Sprintf(`{"data": {"k": %q}}`, to))
				all[name] = to
			}
		}
		becomes(t, l, text())
	}
	change("2")
	c.PatchPod(t, "default", "one", `{"metadata": {"labels": {"a": "b"}}}`)
	for w := l.Set(); w.Pod("one").Pod.Labels["a"] != "b"; w = l.Set() {
	}

	through.mu.Lock()
	before, open := len(through.asked), make(chan struct{}) // closed when requests pass again
	through.closed = open
	through.mu.Unlock()
	p.CloseClientConnections()
	patch(t, c, "configmaps", "m00", `{"data": {"k": "3"}}`)
	remove(t, c, "configmaps", "m01")
	remove(t, c, "configmaps", "m02")
	create(t, c, "configmaps", `{"metadata": {"name": "m02"}, "data": {"k": "4"}}`)
	c.DeletePod(t, "default", "gone", 0)
	c.DeletePod(t, "default", "again", 0)
	is := c.CreatePod(t, cluster.Pod("n1", "again"))
	close(open)

	all["m00"], all["m01"], all["m02"] = "3", "", "4"
	becomes(t, l, text())
	create(t, c, "configmaps", `{"metadata": {"name": "m01"}}`)
	all["m01"] = "0"
	change("5")
	c.PatchPod(t, "default", "one", `{"metadata": {"labels": {"a": "c"}}}`)
	w := l.Set()
	for ; w.Pod("one").Pod.Labels["a"] != "c"; w = l.Set() {
	}
	if got := w.Pod("again"); w.Pod("gone") != nil || got == nil || got.UID() != string(is.UID) || is.UID == was.UID {
		t.Errorf("pods %q, again is %+v", w.Contents(), got)
	}
	through.mu.Lock()
	defer through.mu.Unlock()
	asked := map[string]int{}
	for _, what := range through.asked[before:] {
		asked[what]++
	}
	// A watch may end once more on a busy machine; nothing else is asked for.
	for what, least := range map[string]int{"one of pods": 1, "watch configmaps": 20, "watch pods": 1} {
		if n := asked[what]; n < least || n > 5*least {
			t.Errorf("%s: %d times, want %d", what, n, least)
		}
		delete(asked, what)
	}
	if len(asked) > 0 {
		t.Errorf("asked for %v too", asked)
	}
}
