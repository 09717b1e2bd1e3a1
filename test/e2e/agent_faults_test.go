package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	adapter "github.com/nodectl/nodectl/pkg/cri"
	parser "github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/test/criproxy"
)

// TestF2_KilledBetweenCreateAndStart: the next agent starts a created container if it is
// still desired. Otherwise it removes the container, which never ran, and creates another in
// its place.
//
// Shows: F2
func TestF2_KilledBetweenCreateAndStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args string // of the manifest that the next agent finds
		want string // its mutating calls
	}{
		"wanted": {"append, /x/main, forever", "StartContainer"},
		"edited": {"append, /x/other, forever", "RemoveContainer CreateContainer StartContainer"},
	} {
		t.Run(name, func(t *testing.T) {
			s := parallelStage(t)
			e := s.executioner()
			text := func(args string) string {
				return manifest("web", []string{container("main", args, scratchMount)}, s.scratchVolume())
			}
			a := s.serve()
			e.arm(a, moment{n: 2}) // RunPodSandbox, CreateContainer
			s.write("web.yaml", text("append, /x/main, forever"))
			e.disarm(s)
			made := s.containers("web")
			if len(made) != 1 || made[0].State != cri.ContainerState_CONTAINER_CREATED {
				t.Fatalf("containers after the kill: %v", made)
			}
			before := len(e.Mutations())
			s.write("web.yaml", text(c.args))
			s.serve()
			was := s.awaitRunning("web", "main")
			s.awaitReady("web", true)
			if got := strings.Join(e.Mutations()[before:], " "); got != c.want {
				t.Errorf("calls of the next agent: %s, want %s", got, c.want)
			}
			if now := s.containers("web"); len(now) != 1 || (now[0].Id == made[0].Id) != (name == "wanted") {
				t.Errorf("containers: %v, made was %s", now, made[0].Id)
			}
			for _, l := range lives.of(s.name) {
				if l.id != was["main"].id {
					t.Errorf("%s ran, too", l)
				}
			}
			if st := s.status("web").Status; containerStatus(st, "main").RestartCount != 0 {
				t.Errorf("status: %s", describe(st))
			}
			wanted, other := "main", "other"
			if name == "edited" {
				wanted, other = other, wanted
			}
			s.awaitStamps(wanted, 1)
			if n := s.stamps(other); n != 0 {
				t.Errorf("what is not wanted started %d times", n)
			}
		})
	}
}

// formerly returns a spec with the hashes of the previous version, as it wrote them into
// labels, annotations and records.
func formerly(now *pod.Spec) *pod.Spec {
	old := *now
	old.Earlier = nil
	of := func(name, hash string) string {
		if was, ok := now.Earlier[name]; ok {
			return was
		}
		_, digest, _ := strings.Cut(hash, "-")
		return "v1-" + digest
	}
	old.SandboxHash = of("", now.SandboxHash)
	old.ContainerHashes = make(map[string]string, len(now.ContainerHashes))
	for name, hash := range now.ContainerHashes {
		old.ContainerHashes[name] = of(name, hash)
	}
	return &old
}

// TestF16_PodOfTheFormerVersion: the agent adopts a pod with the hashes of the previous version
// without a call that changes anything, with its record and without. An edit then restarts only the
// containers that it affects.
//
// Shows: F16
func TestF16_PodOfTheFormerVersion(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprint("record ", kept), func(t *testing.T) {
			s := parallelStage(t).oftenSynced()
			p := s.through(criproxy.Hooks{})
			text := manifest("web", []string{
				container("main", "forever", "resources: {limits: {cpu: 500m, memory: 64Mi}}"), container("side", "forever"),
			}, "initContainers:", container("init", "print, done"))
			file := filepath.Join(s.manifests, "web.yaml")
			read, _ := parser.Parse([]byte(text), parser.Options{
				Node: s.name, Source: "file", Location: s.manifests, File: file, Static: true,
			})
			if len(read.Pods) != 1 {
				t.Fatal(read.Problems)
			}
			old := formerly(read.Pods[0])
			if old.SandboxHash == read.Pods[0].SandboxHash || old.ContainerHash("main")[2:] == read.Pods[0].ContainerHash("main")[2:] {
				t.Fatalf("the former rules said nothing else: %v", old.ContainerHashes)
			}
			rt, err := adapter.Dial(adapter.Config{Endpoint: s.node.Endpoint, Node: s.name, RootDir: s.root, PodLogsDir: s.logs, CgroupParent: s.node.CgroupParent})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = rt.Close() })
			box, err := rt.RunSandbox(t.Context(), pod.SandboxRequest{Want: old, Instance: 1, Attempt: 0})
			for _, name := range []string{"init", "main", "side"} {
				var id string
				if err == nil {
					id, err = rt.CreateContainer(t.Context(), pod.CreateRequest{Want: old, Container: name, Sandbox: &pod.Sandbox{ID: box, Instance: 1}})
				}
				if err == nil {
					err = rt.StartContainer(t.Context(), id)
				}
			}
			if err == nil && kept {
				err = record.New(s.root).Save(pod.Record{Key: old.Key, UID: old.UID(), Want: old, Instance: 1, Attempts: map[string]uint32{"": 1}, StartTime: time.Now()})
			}
			if err != nil {
				t.Fatal(err)
			}
			was := s.awaitRunning("web", "main", "side")
			s.write("web.yaml", text)
			s.serve()
			s.awaitReady("web", true)
			s.quiet(p)
			if made := p.Mutations(); len(made) > 0 {
				t.Errorf("mutating calls: %v", made)
			}
			s.untouched("web", was)
			if slices.Contains(s.readiness("web"), false) {
				t.Errorf("readiness was reported as %v", s.readiness("web"))
			}

			s.write("web.yaml", strings.Replace(text, "name: side, ", "name: side, env: [{name: A, value: b}], ", 1))
			var now map[string]running
			s.eventually(func() (err error) {
				if now, err = s.runningNow("web", "main", "side"); err == nil && now["side"].id == was["side"].id {
					err = errors.New("the edited container still runs")
				}
				return err
			})
			if now["main"] != was["main"] {
				t.Errorf("main was %+v, is %+v", was["main"], now["main"])
			}
		})
	}
}
