package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/node"
)

// shop is the examples' set of pods that need one another: files of examples/shop, on free
// ports.
func (s *stage) shop() {
	s.Helper()
	db, web := freePort(s.T), freePort(s.T)
	files, err := filepath.Glob(filepath.Join(node.Repo(), "examples/shop/*.yaml"))
	if err != nil || len(files) != 4 {
		s.Fatalf("%v: %v", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		s.must(err)
		s.write(filepath.Base(f), strings.NewReplacer("hostPort: 8090", "hostPort: "+db, "$(NODE_IP):8090", "$(NODE_IP):"+db, "hostPort: 8091", "hostPort: "+web).Replace(string(text)))
	}
}

// edit replaces text in a file of the stage, as an editor does.
func (s *stage) edit(file, old, new string) {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.manifests, file))
	s.must(err)
	if !strings.Contains(string(text), old) {
		s.Fatalf("%s does not hold %q", file, old)
	}
	s.write(file, strings.Replace(string(text), old, new, 1))
}

// A database with a claim and a password, a job that fills it, a front end with a page,
// probes and a sidecar: one command starts them, they survive a restart of everything, and an
// edit changes exactly what the dry run predicts.
//
// Shows: F33, P21
func TestShop_OneCommand_Reboot_Edits(t *testing.T) {
	t.Parallel()
	s := newStage(t, node.New(t)) // with host ports
	s.shop()
	s.excuse("shop-db") // it restarts with its password: the checker does not read config objects
	archives, err := node.Images()
	s.must(err)
	for _, a := range archives {
		if strings.Contains(a.Ref, "shop") {
			s.node.Import(t, a.File)
		}
	}
	report := s.runonce(0, "--until", "ready", "--timeout", "60s")
	if n := len(report.Pods); n != 3 {
		t.Fatalf("%d pods, want 3", n)
	}
	page := func() string { return s.page(s.sandbox("shop-web").Network.Ip+":8080", "/") }
	const first = "<h1>The corner shop</h1>\n<ul><li>apples</li><li>bread</li><li>cheese</li></ul>"
	if got := page(); got != first {
		t.Errorf("the page is %q", got)
	}
	s.awaitLog("shop-web", "notes", 0, "visit from")

	// A reboot: nothing runs, no tmpfs is mounted.
	s.reboot()
	for _, m := range node.Mounts() {
		if strings.HasPrefix(m, s.root+"/") {
			s.must(unix.Unmount(m, unix.MNT_DETACH))
		}
	}
	a := s.serve()
	s.awaitReady("shop-db", true)
	s.awaitReady("shop-web", true)
	if st := s.status("shop-migrate").Status; st.Phase != v1.PodSucceeded {
		t.Errorf("the job that had ended: %s", describe(st))
	}
	if got := page(); got != first {
		t.Errorf("after the reboot the page is %q: the claim was not kept, or filled twice", got)
	}

	db, web := s.awaitRunning("shop-db", "db"), s.awaitRunning("shop-web", "notes", "web")
	// The page's file changes at once, and nothing restarts.
	s.edit("config.yaml", "<h1>{{.Title}}</h1>", "<h2>{{.Title}}</h2>")
	s.eventually(func() error {
		if got := page(); !strings.HasPrefix(got, "<h2>") {
			return fmt.Errorf("the page is %q", got)
		}
		return nil
	})
	// A change that only environments use: the dry run names no restart of the whole pod.
	a.leave()
	s.edit("config.yaml", "title: The corner shop", "title: The new shop")
	s.edit("config.yaml", "password: open-sesame", "password: swordfish")
	plan := s.dryRun(s.manifests)
	var restarts []string
	for _, c := range plan.Changes {
		if c.Op != "UPDATE" || c.Restart.Pod {
			t.Errorf("%s %s, of the whole pod: %v", c.Op, c.Pod.Name, c.Restart.Pod)
		}
		for _, name := range c.Restart.Containers {
			restarts = append(restarts, strings.TrimSuffix(c.Pod.Name, "-"+s.name)+"/"+name)
		}
		for _, f := range c.Fields {
			if strings.Contains(f.Old+f.New, "sesame") || strings.Contains(f.Old+f.New, "swordfish") {
				t.Errorf("a password is shown: %+v", f)
			}
		}
	}
	if want := []string{"shop-db/db"}; !slices.Equal(restarts, want) {
		t.Errorf("the dry run restarts %v, want %v", restarts, want)
	}
	s.serve()
	s.eventually(func() error {
		if now, err := s.runningNow("shop-db", "db"); err != nil || now["db"].id == db["db"].id {
			return fmt.Errorf("the database runs with the old password: %v", err)
		}
		return nil
	})
	s.awaitReady("shop-db", true)
	s.eventually(func() error {
		if got := page(); !strings.Contains(got, "apples") {
			return fmt.Errorf("with the new password the page is %q", got)
		}
		return nil
	})
	s.untouched("shop-web", web)

	// Another image: the pod keeps the old one until the new one is there.
	s.edit("web.yaml", "image: nodectl.dev/examples/shop:1\n      imagePullPolicy: IfNotPresent\n      args: [web", "image: nodectl.dev/examples/shop:2\n      imagePullPolicy: Never\n      args: [web")
	s.eventually(func() error {
		if !strings.Contains(page(), "apples") {
			return fmt.Errorf("the page is gone")
		}
		return nil
	})
	s.untouched("shop-web", web)

	// When the pods are removed, the claim stays; only a command deletes it.
	claim := filepath.Join(s.root, "volumes/default/shop-db")
	for _, f := range []string{"web.yaml", "db.yaml", "migrate.yaml"} {
		s.remove(f)
	}
	for _, name := range []string{"shop-web", "shop-db", "shop-migrate"} {
		s.awaitGone(name)
	}
	if _, err := os.Stat(claim); err != nil {
		t.Errorf("the claim's directory: %v", err)
	}
}
