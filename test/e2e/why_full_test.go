//go:build full

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/node"
)

// deadMount mounts a FUSE file system whose process never answers. It returns a function that
// ends it, which also runs at the end of the test.
func (s *stage) deadMount(dir string) (end func()) {
	s.Helper()
	s.must(os.Mkdir(dir, 0o755))
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	s.must(err)
	s.must(unix.Mount("test-disk", dir, "fuse.why", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device)))
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = unix.Close(device) // every request to it fails now
	}
	s.Cleanup(end)
	return end
}

// silent is a server that accepts connections and never answers. It returns its address.
func (s *stage) silent() string {
	s.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	s.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// shim returns the process that supervises the containers of a running pod.
func (s *stage) shim(name string) int {
	s.Helper()
	box := s.sandbox(name)
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	s.must(err)
	for _, file := range all {
		text, err := os.ReadFile(file)
		words := strings.Split(string(text), "\x00")
		if err != nil || !strings.Contains(words[0], "containerd-shim") || !slices.Contains(words, box.GetId()) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		s.must(err)
		return pid
	}
	s.Fatalf("pod %s has no shim", name)
	return 0
}

// why waits until nodectl why names all of words for a pod.
func (s *stage) why(name string, words ...string) {
	s.Helper()
	s.eventually(func() error {
		r := s.run("why", s.full(name))
		for _, w := range words {
			if !strings.Contains(r.out, w) {
				return fmt.Errorf("why %s does not name %q: exit code %d\n%s%s", name, w, r.code, r.out, r.err)
			}
		}
		return nil
	})
}

// A mount, a network plugin, a registry, a hook, a probe and a shim hang, each for one pod.
// nodectl why names each of them; the other pods stay ready and are not touched, others start,
// and each pod continues when its dependency answers again.
//
// Shows: F22
func TestWhy_DependenciesHang_EachIsNamedAndAffectsOnePod(t *testing.T) {
	t.Parallel()
	s := newStage(t, node.New(t))
	n := s.network()
	s.serve()
	well := []string{"well1", "well2", "well3"}
	for _, name := range append(well, "shimmed") {
		s.write(name+".yaml", simple(name))
	}
	before := map[string]map[string]running{}
	for _, name := range well {
		s.awaitReady(name, true)
		before[name] = s.awaitRunning(name, "main")
	}
	s.awaitReady("shimmed", true)
	s.why("well1", "running; waits for nothing")

	dead := filepath.Join(s.scratch, "dead")
	mend := s.deadMount(dead)
	s.write("mounted.yaml", manifest("mounted", []string{container("main", "forever", "volumeMounts: [{name: data, mountPath: /data}]")},
		"hostNetwork: true", "volumes: [{name: data, hostPath: {path: "+dead+", type: Directory}}]"))
	s.why("mounted", dead+" (fuse.why from test-disk) does not answer", "Processes:", "(agent)")

	registry := s.silent()
	s.write("pulled.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: pulled}\nspec:\n  hostNetwork: true\n  containers:\n  - {name: main, image: '"+registry+"/app:1'}\n")
	s.why("pulled", "pull-image main: pull of image "+registry+"/app:1 from "+registry, registry+": it does not answer")

	s.write("hooked.yaml", manifest("hooked", []string{container("main", "forever", "lifecycle: {postStart: {sleep: {seconds: 600}}}")},
		"hostNetwork: true", "terminationGracePeriodSeconds: 700"))
	s.why("hooked", "run-hook main: postStart hook of container main: sleep 600 s")

	_, port, err := net.SplitHostPort(s.silent())
	s.must(err)
	s.write("probed.yaml", manifest("probed", []string{container("main", "forever",
		"readinessProbe: {httpGet: {host: 127.0.0.1, port: "+port+", path: /ready}, timeoutSeconds: 100, periodSeconds: 100}")}, "hostNetwork: true"))
	s.why("probed", "readiness probe of container main: GET 127.0.0.1:"+port+"/ready")

	shim := s.shim("shimmed")
	s.must(unix.Kill(shim, unix.SIGSTOP))
	s.Cleanup(func() { _ = unix.Kill(shim, unix.SIGCONT) })
	s.remove("shimmed.yaml")
	s.why("shimmed", "stop-container main: runtime call StopContainer", fmt.Sprint(shim), "(shim), stopped by a signal (T)")

	lock, err := os.Open(filepath.Join(n.ipam()["dataDir"].(string), n.whole["name"].(string), "lock"))
	s.must(err)
	s.must(unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	s.write("networked.yaml", simple("networked"))
	s.why("networked", "run-sandbox: runtime call RunPodSandbox", "bridge (network plugin)")

	for i := range 5 {
		name := fmt.Sprint("late", i)
		s.write(name+".yaml", manifest(name, []string{container("main", "forever")}, "hostNetwork: true"))
		s.awaitReady(name, true)
	}
	for _, name := range well {
		if all := s.readiness(name); slices.Contains(all[slices.Index(all, true):], false) {
			t.Errorf("readiness of %s changed: %v", name, all)
		}
		s.untouched(name, before[name])
	}

	s.must(lock.Close())
	s.awaitReady("networked", true)
	s.must(unix.Kill(shim, unix.SIGCONT))
	s.awaitGone("shimmed")
	mend()
	s.remove("mounted.yaml")
	s.awaitGone("mounted")
	for _, name := range []string{"pulled", "hooked", "probed"} {
		s.remove(name + ".yaml")
		s.awaitGone(name)
	}
	if r := s.run("why", "absent"); r.code != 1 || !strings.Contains(r.err, "pod absent not found") {
		t.Errorf("why of an absent pod: exit code %d\n%s%s", r.code, r.out, r.err)
	}
}
