//go:build full

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

// network is the pod network's configuration on a node of its own.
type network struct {
	*stage
	file    string
	whole   map[string]any
	edition int
}

func (s *stage) network() *network {
	s.Helper()
	found, err := filepath.Glob(filepath.Join(s.node.RootDir, "*/cni/*.conflist"))
	if err != nil || len(found) != 1 {
		s.Fatalf("configurations of the pod network: %v, %v", found, err)
	}
	n := &network{stage: s, file: found[0]}
	text, err := os.ReadFile(n.file)
	if err == nil {
		err = json.Unmarshal(text, &n.whole)
	}
	if err != nil {
		s.Fatal(err)
	}
	return n
}

func (n *network) bridge() map[string]any { return n.whole["plugins"].([]any)[0].(map[string]any) }
func (n *network) ipam() map[string]any   { return n.bridge()["ipam"].(map[string]any) }

// set applies the configuration.
func (n *network) set() {
	n.Helper()
	n.edition++
	edition := fmt.Sprint("edition-", n.edition)
	n.whole["edition"] = edition
	text, err := json.Marshal(n.whole)
	if err == nil {
		err = os.WriteFile(n.file, text, 0o600)
	}
	if err != nil {
		n.Fatal(err)
	}
	n.eventually(func() error {
		r, err := n.node.Runtime.Status(n.Context(), &cri.StatusRequest{Verbose: true})
		if err == nil && !strings.Contains(fmt.Sprint(r.Info), edition) {
			err = errors.New("the runtime has not read the network's configuration")
		}
		return err
	})
}

// addresses are the leases of the IPAM plugin.
func (n *network) addresses() []string {
	dir := filepath.Join(n.ipam()["dataDir"].(string), n.whole["name"].(string))
	all, _ := filepath.Glob(filepath.Join(dir, "[0-9]*.*.*.*"))
	return all
}

// TestF29_NetworkPlugin: a network without a free address, or whose plugin is slow or fails,
// delays the pods that need it, whose status has the plugin's error, and no pod on the host's
// network. The pods start and stop when the network works again, and no address leaks,
// however often that happens.
//
// Shows: F29
func TestF29_NetworkPlugin(t *testing.T) {
	t.Parallel()
	s := newStage(t, node.New(t))
	n := s.network()
	subnet, _, _ := strings.Cut(s.node.Subnet, "/")
	n.ipam()["ranges"] = [][]map[string]string{{{"subnet": subnet + "/29"}}} // five addresses for pods
	n.set()
	s.serve()
	const room = 5
	for i := range room {
		s.write(fmt.Sprint("p", i, ".yaml"), simple(fmt.Sprint("p", i)))
	}
	for i := range room {
		s.awaitRunning(fmt.Sprint("p", i), "main")
	}
	s.write("late.yaml", simple("late"))
	says := func(name, words string) {
		t.Helper()
		st := s.awaitStatus(name, "waits with "+words, func(st v1.PodStatus) bool { return strings.Contains(waiting(st, "main").Message, words) })
		if st.Phase != v1.PodPending {
			t.Errorf("%s: %s", name, describe(st))
		}
	}
	host := func(name string) {
		t.Helper()
		s.write(name+".yaml", manifest(name, []string{container("main", "forever")}, "hostNetwork: true"))
		s.awaitRunning(name, "main")
	}
	says("late", "no IP addresses available")
	host("host1")
	s.remove("p0.yaml")
	s.awaitRunning("late", "main")
	for range 2 { // twice as many starts as there are addresses
		for i := range room {
			name := fmt.Sprint("p", i)
			if i == 0 {
				continue
			}
			s.remove(name + ".yaml")
			s.awaitGone(name)
			s.write(name+".yaml", simple(name))
		}
		for i := 1; i < room; i++ {
			s.awaitRunning(fmt.Sprint("p", i), "main")
		}
	}
	if all := n.addresses(); len(all) != room {
		t.Errorf("%d addresses are taken by %d pods: %v", len(all), room, all)
	}

	// The plugin waits for its lock.
	for i := 1; i < room; i++ {
		s.remove(fmt.Sprint("p", i, ".yaml"))
		s.awaitGone(fmt.Sprint("p", i))
	}
	lock, err := os.Open(filepath.Join(n.ipam()["dataDir"].(string), n.whole["name"].(string), "lock"))
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.write("slow.yaml", simple("slow"))
	s.remove("late.yaml")
	host("host2")
	if err := lock.Close(); err != nil { // and the lock is free
		t.Fatal(err)
	}
	s.awaitRunning("slow", "main")
	s.awaitGone("late")

	// There is no such plugin.
	n.bridge()["type"] = "missing"
	n.set()
	s.write("none.yaml", simple("none"))
	says("none", `failed to find plugin "missing"`)
	s.remove("slow.yaml")
	host("host3")
	n.bridge()["type"] = "bridge"
	n.set()
	s.awaitRunning("none", "main")
	s.awaitGone("slow")
	s.invariants()
	for _, f := range s.files() {
		s.remove(f)
	}
	for _, name := range []string{"none", "host1", "host2", "host3"} {
		s.awaitGone(name)
	}
	if all := n.addresses(); len(all) > 0 {
		t.Errorf("addresses are left: %v", all)
	}
	s.nothingLeft()
}
