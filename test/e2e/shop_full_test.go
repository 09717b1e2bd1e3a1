//go:build full

package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// shopPage is the page of the shop in its first version.
const shopPage = "<h1>The corner shop</h1>\n<ul><li>apples</li><li>bread</li><li>cheese</li></ul>\n<p>version 1</p>"

// shop writes the files of examples/shop, and imports their image. A version that is complete has
// passed its trial, and a slow machine rolls none back. The CronJob starts nothing by itself.
func (s *stage) shop() {
	s.Helper()
	files, err := filepath.Glob(filepath.Join(node.Repo(), "examples/shop/*.yaml"))
	if err != nil || len(files) != 5 {
		s.Fatalf("%v: %v", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		s.must(err)
		s.write(filepath.Base(f), string(text))
	}
	s.edit("web.yaml", "rollback-trial: 15s", "rollback-trial: 0s")
	s.edit("web.yaml", "progressDeadlineSeconds: 120", "progressDeadlineSeconds: 3600")
	s.edit("web.yaml", "periodSeconds: 2\n", "periodSeconds: 2\n            failureThreshold: 100\n") // ready while the database restarts
	s.edit("backup.yaml", "  schedule:", "  suspend: true\n  schedule:")                              // the test may run at that time
	archives, err := node.Images()
	s.must(err)
	for _, a := range archives {
		if strings.Contains(a.Ref, "shop") {
			s.node.Import(s.T, a.File)
		}
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

// visit returns the page of the shop at its node port, over a connection of its own.
func (s *stage) visit() (string, error) {
	client := http.Client{Timeout: wait.Limit, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://127.0.0.1:30080/")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, text)
	}
	return strings.TrimSpace(string(text)), err
}

// shopPods describes the pods of the shop, and excuses them: see ofWorkload.
func (s *stage) shopPods() (all string) {
	s.Helper()
	pods := s.ofWorkload("shop")
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range pods {
		all += "\n" + p.Name + " " + describe(p.Status)
	}
	return all
}

// awaitPage returns when the page holds a text.
func (s *stage) awaitPage(want string) {
	s.Helper()
	s.eventually(func() error {
		pods := s.shopPods()
		page, err := s.visit()
		if err != nil || !strings.Contains(page, want) {
			return fmt.Errorf("the page is %q, not %q: %v%s", page, want, err, pods)
		}
		return nil
	})
}

// whileOpen returns when nodectl prints a text. Until then, every visit of the shop has to succeed.
func (s *stage) whileOpen(text string, args ...string) {
	s.Helper()
	s.eventually(func() error {
		pods := s.shopPods()
		for range 10 {
			if _, err := s.visit(); err != nil {
				neighbors, _ := os.ReadFile("/proc/net/arp")
				s.Errorf("the shop is closed: %v\n%s\n%s\nbefore:%s\nnow:%s", err, s.run("describe", "service", "shop-web").out, neighbors, pods, s.shopPods())
			}
		}
		r := s.run(args...)
		if !strings.Contains(r.out+r.err, text) {
			return fmt.Errorf("nodectl %v: exit code %d, want %q: %s%s%s", args, r.code, text, r.out, r.err, pods)
		}
		return nil
	})
}

// runningContainers returns the IDs of the running containers of the stage, by pod and container.
func (s *stage) runningContainers() map[string]string {
	s.Helper()
	ids := make(map[string]string)
	for _, c := range s.containers("") {
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			ids[c.Labels[pod.LabelPodName]+"/"+c.Metadata.Name] = c.Id
		}
	}
	return ids
}

// powerCycle is reboot, and unmounts each tmpfs.
func (s *stage) powerCycle() {
	s.Helper()
	s.reboot()
	for _, m := range node.Mounts() {
		if strings.HasPrefix(m, s.root+"/") {
			s.must(unix.Unmount(m, unix.MNT_DETACH))
		}
	}
}

// TestShop_Serve_RebootEditsRolloutRollback: the files of examples/shop, as they run in a cluster,
// with other periods. Pods find one another by the names of Services. All of it survives a restart
// of everything. An edit has exactly the effects that the dry run predicts. During a rollout, and
// during the rollback of a version that crashes, every visit succeeds. A claim stays when its pods
// go. The test is not parallel: Services are those of a machine.
//
// Shows: F33, P21, C-1.38.5
func TestShop_Serve_RebootEditsRolloutRollback(t *testing.T) {
	s := newStage(t, shared)
	s.shop()
	a := s.serve("--service-cidr", serviceRange)
	s.says("successfully rolled out", "rollout", "status", "deployment/shop-web")
	s.awaitPage(shopPage)
	s.says("visit from", "logs", "-l", "app=shop-web", "-c", "notes")
	a.leave()
	s.powerCycle()
	a = s.serve("--service-cidr", serviceRange)
	s.awaitPage(shopPage) // the claim is kept, and not filled twice
	s.says("successfully rolled out", "rollout", "status", "deployment/shop-web")
	db := s.runningContainers()["shop-db-0/db"]
	hosts, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/hosts", s.node.Processes(db)[0].Pid))
	if err != nil || !strings.Contains(string(hosts), "\tshop-db-0.shop-db.default.svc.cluster.local\tshop-db-0\n") {
		t.Errorf("the hosts of the database lack its full name: %q, %v", hosts, err)
	}
	a = s.editShop(a)

	s.edit("web.yaml", `VERSION, value: "1"`, `VERSION, value: "2"`)
	s.whileOpen("successfully rolled out", "rollout", "status", "deployment/shop-web", "--revision", "2", "--watch=false")
	s.awaitPage("version 2")
	s.edit("web.yaml", "/etc/shop/page.html", "/etc/shop/pages.html")
	s.whileOpen("rolled back: container web of pod shop-web-", "rollout", "history", "deployment/shop-web")
	s.whileOpen("rollback to revision 2: revision 3 failed", "rollout", "status", "deployment/shop-web", "--watch=false")
	s.awaitPage("version 2")

	s.says("created", "create", "job", "shop-now", "--from=cronjob/shop-backup")
	s.eventually(func() error {
		pods := s.shopPods()
		files, _ := filepath.Glob(filepath.Join(s.root, "volumes/default/shop-backup/data/items-*.jsonl"))
		if len(files) != 1 {
			return fmt.Errorf("backups: %v%s", files, pods)
		}
		if text, err := os.ReadFile(files[0]); err != nil || string(text) != "\"apples\"\n\"bread\"\n\"cheese\"\n" {
			return fmt.Errorf("the backup is %q: %v", text, err)
		}
		return nil
	})
	s.says("condition met", "wait", "job/shop-now", "--for=condition=Complete")
	a.leave()
	s.runonce(0, "--down", "--service-cidr", serviceRange)
	for _, claim := range []string{"data-shop-db-0/data/items.jsonl", "shop-backup/data"} {
		if _, err := os.Stat(filepath.Join(s.root, "volumes/default", claim)); err != nil {
			t.Errorf("a claim was not kept: %v", err)
		}
	}
}

// editShop edits the page, and then, while no agent runs, the title and the password.
func (s *stage) editShop(a *agent) *agent {
	s.Helper()
	before := s.runningContainers()
	s.edit("config.yaml", "<h1>{{.Title}}</h1>", "<h2>{{.Title}}</h2>")
	s.awaitPage("<h2>The corner shop</h2>")
	if now := s.runningContainers(); !maps.Equal(now, before) {
		s.Errorf("an edit of the page: containers %v, before %v", now, before)
	}
	a.leave()
	s.edit("config.yaml", "title: The corner shop", "title: The new shop")
	s.edit("config.yaml", "password: open-sesame", "password: swordfish")
	var restarts []string
	for _, c := range s.dryRun(s.manifests).Changes {
		if c.Op != "UPDATE" || c.Restart.Pod {
			s.Errorf("%s %s, of the whole pod: %v", c.Op, c.Pod.Name, c.Restart.Pod)
		}
		for _, name := range c.Restart.Containers {
			restarts = append(restarts, c.Pod.Name+"/"+name)
		}
		for _, f := range c.Fields {
			if strings.Contains(f.Old+f.New, "sesame") || strings.Contains(f.Old+f.New, "swordfish") {
				s.Errorf("a password is shown: %+v", f)
			}
		}
	}
	if want := []string{"shop-db-0/db"}; !slices.Equal(restarts, want) {
		s.Errorf("the dry run restarts %v, want %v", restarts, want)
	}
	a = s.serve("--service-cidr", serviceRange)
	s.eventually(func() error {
		now := s.runningContainers()
		if id := now["shop-db-0/db"]; id == "" || id == before["shop-db-0/db"] {
			return fmt.Errorf("the database runs with the old password, or not: %q%s", id, s.shopPods())
		}
		delete(now, "shop-db-0/db")
		old := maps.Clone(before)
		delete(old, "shop-db-0/db")
		if !maps.Equal(now, old) {
			s.Errorf("a new password: containers %v, before %v", now, old)
		}
		return nil
	})
	s.awaitPage("apples")
	s.says("2/2", "get", "deployments", "shop-web")
	return a
}
