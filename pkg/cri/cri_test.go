package cri_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// wanted returns a spec with the containers c0, c1, … one per image.
func wanted(name string, images ...string) *pod.Spec {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	s := &pod.Spec{
		Key: pod.KeyOf(p), Pod: p, Hash: "v1-spec", SandboxHash: "v1-box", ContainerHashes: map[string]string{},
		Origin: pod.Origin{Source: "file", Location: "/etc/manifests"},
	}
	for i, image := range images {
		c := fmt.Sprintf("c%d", i)
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c, Image: image})
		s.ContainerHashes[c] = "v1-" + c
	}
	return s
}

// life is one sandbox of a pod with its containers, as start makes it.
type life struct {
	sandbox    string
	containers map[string]string
}

// start creates and starts all containers of want.
func start(t testing.TB, r *cri.Runtime, want *pod.Spec, attempt uint32) life {
	t.Helper()
	ctx := t.Context()
	id, err := r.RunSandbox(ctx, pod.SandboxRequest{Want: want, Instance: 1, Attempt: attempt})
	if err != nil {
		t.Fatal(err)
	}
	l := life{sandbox: id, containers: map[string]string{}}
	for _, c := range want.Pod.Spec.Containers {
		fetch(t, r, want, c.Image)
		l.containers[c.Name] = create(t, r, want, id, c.Name, attempt)
		if err := r.StartContainer(ctx, l.containers[c.Name]); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// fetch pulls an image that is missing.
func fetch(t testing.TB, r *cri.Runtime, want *pod.Spec, image string) {
	t.Helper()
	id, err := r.FindImage(t.Context(), want, image)
	if err == nil && id == "" {
		_, err = r.FetchImage(t.Context(), want, image, "", "")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, r *cri.Runtime, want *pod.Spec, sandbox, container string, attempt uint32) string {
	t.Helper()
	id, err := r.CreateContainer(t.Context(), pod.CreateRequest{
		Want: want, Container: container, Sandbox: &pod.Sandbox{ID: sandbox, Instance: 1}, Attempt: attempt, Streak: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestPod_StartedContainers_AreReadBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1", PodLogsDir: t.TempDir()})
		want := wanted("web", "sleep", "exit-3-after-5s")
		l := start(t, r, want, 4)
		time.Sleep(6 * time.Second)
		synctest.Wait()

		a, err := r.Pod(t.Context(), want.Key)
		if err != nil {
			t.Fatal(err)
		}
		box := a.Sandbox
		if a.UID != "uid-web" || box == nil || box.ID != l.sandbox || !box.Ready || box.Attempt != 4 || box.Instance != 1 ||
			box.SpecHash != "v1-spec" || box.SandboxHash != "v1-box" || box.Layer != "file:/etc/manifests" || box.Grace != -1 || len(box.IPs) != 1 {
			t.Errorf("UID %q, sandbox %+v", a.UID, box)
		}
		began := time.Now().Add(-6 * time.Second)
		c := a.Containers["c0"]
		if c.State != pod.StateRunning || c.ID != l.containers["c0"] || c.SandboxID != l.sandbox || c.Attempt != 4 || c.Restarts != 4 ||
			c.Hash != "v1-c0" || c.CrashStreak != 2 || c.Image != "sleep" || !strings.HasPrefix(c.ImageID, "sha256:") ||
			!c.StartedAt.Equal(began) || !c.FinishedAt.IsZero() || !strings.HasSuffix(c.LogPath, "/default_web_uid-web/c0/4.log") {
			t.Errorf("running %+v", c)
		}
		c = a.Containers["c1"]
		if c.State != pod.StateExited || c.ExitCode != 3 || c.Reason != "Error" || !c.FinishedAt.Equal(began.Add(5*time.Second)) {
			t.Errorf("exited %+v", c)
		}
		if len(a.Dead) != 0 || len(a.Older) != 0 {
			t.Errorf("left over: %+v %+v", a.Dead, a.Older)
		}
	})
}

func TestNewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		want := wanted("web", "sleep")
		var lives []life
		for i := range 3 {
			l := start(t, r, want, uint32(i))
			lives = append(lives, l)
			if i < 2 {
				if err := r.StopSandbox(t.Context(), l.sandbox); err != nil {
					t.Fatal(err)
				}
			}
		}
		a, err := r.Pod(t.Context(), want.Key)
		if err != nil {
			t.Fatal(err)
		}
		if a.Sandbox.ID != lives[2].sandbox || a.Containers["c0"].ID != lives[2].containers["c0"] {
			t.Errorf("newest: %s %s", a.Sandbox.ID, a.Containers["c0"].ID)
		}
		var older, dead []uint32
		for _, b := range a.Older {
			older = append(older, b.Attempt)
		}
		for _, c := range a.Dead {
			dead = append(dead, c.Attempt)
		}
		if want := []uint32{1, 0}; !slices.Equal(older, want) || !slices.Equal(dead, want) {
			t.Errorf("older %v, dead %v", older, dead)
		}
	})
}

// Shows: F28
func TestF28_OnlyOurOwnIsSeen(t *testing.T) {
	rt := critest.New()
	ours, other := rt.CRI(cri.Config{Node: "n1"}), rt.CRI(cri.Config{Node: "n2"})
	start(t, ours, wanted("b", "sleep"), 0)
	start(t, ours, wanted("a", "sleep"), 0)
	start(t, other, wanted("web", "sleep"), 0)
	if err := rt.RunForeign(pod.Key{Namespace: "default", Name: "theirs"}, "x"); err != nil {
		t.Fatal(err)
	}
	all, err := ours.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, a := range all {
		keys = append(keys, a.Key.String())
	}
	if want := []string{"default/a", "default/b"}; !slices.Equal(keys, want) {
		t.Errorf("Pods = %v, want %v", keys, want)
	}
	for _, name := range []string{"theirs", "web", "missing"} {
		key := pod.Key{Namespace: "default", Name: name}
		if a, err := ours.Pod(t.Context(), key); err != nil || !a.Empty() || a.Key != key {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	if prints, err := ours.Relist(t.Context()); err != nil || len(prints) != 2 {
		t.Errorf("Relist = %v, %v", prints, err)
	}
}

func TestRelistChangesWithStateAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		want := wanted("web", "sleep")
		relist := func() uint64 {
			m, err := r.Relist(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return m[want.Key]
		}
		seen := []uint64{relist()}
		changed := func(what string) {
			now := relist()
			if slices.Contains(seen, now) {
				t.Errorf("%s: the fingerprint is one of before", what)
			}
			seen = append(seen, now)
		}
		l := start(t, r, want, 0)
		changed("start")
		time.Sleep(time.Hour)
		if relist() != seen[1] {
			t.Error("the fingerprint changes with time")
		}
		rt.Exit(want.Key, "c0", 1)
		changed("exit")
		if err := r.RemoveContainer(t.Context(), l.containers["c0"], false); err != nil {
			t.Fatal(err)
		}
		changed("removal")
		if err := r.StopSandbox(t.Context(), l.sandbox); err != nil {
			t.Fatal(err)
		}
		changed("sandbox stopped")
	})
}

// A container that vanishes between list and status is left out; that is no error.
func TestVanishedBetweenListAndStatus(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := wanted("web", "sleep", "sleep")
	start(t, r, want, 0)
	rt.Fault(critest.Fault{Method: "ContainerStatus", Container: "c1", Err: status.Error(codes.NotFound, "gone")})
	a, err := r.Pod(t.Context(), want.Key)
	if _, there := a.Containers["c1"]; err != nil || there || len(a.Containers) != 1 {
		t.Errorf("%+v, %v", a.Containers, err)
	}
}

// A pod whose status call hangs does not affect other pods, and is never read in part.
//
// Shows: F22
func TestF22_HungStatusIsIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		for _, n := range []string{"a", "hung", "z"} {
			start(t, r, wanted(n, "sleep", "sleep"), 0)
		}
		hung := pod.Key{Namespace: "default", Name: "hung"}
		rt.Fault(critest.Fault{Method: "ContainerStatus", Pod: hung, Container: "c1", Hang: true})
		began := time.Now()
		all, err := r.Pods(t.Context())
		if !errors.Is(err, cri.ErrTimeout) || !strings.Contains(err.Error(), "read pod default/hung: ") || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if len(all) != 2 || all[0].Name != "a" || all[1].Name != "z" || len(all[0].Containers) != 2 {
			t.Errorf("%+v", all)
		}
		began = time.Now()
		if _, err := r.Pod(t.Context(), all[0].Key); err != nil || time.Since(began) != 0 {
			t.Errorf("another pod: %v after %s", err, time.Since(began))
		}
	})
}

func TestReady(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	if got, err := r.Ready(t.Context()); err != nil || got != (pod.RuntimeReady{Runtime: true, Network: true}) {
		t.Errorf("%+v, %v", got, err)
	}
	rt.SetReady(true, false, "Network plugin returns error: cni plugin not initialized")
	if got, err := r.Ready(t.Context()); err != nil || !got.Runtime || got.Network || got.NetworkMessage != "Network plugin returns error: cni plugin not initialized" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestRuntimesOwnPullReasons(t *testing.T) {
	for _, word := range []string{"RegistryUnavailable", "SignatureValidationFailed"} {
		rt := critest.New()
		rt.Fault(critest.Fault{Method: "PullImage", Err: status.Error(codes.Unknown, word+": some text")})
		_, err := rt.CRI(cri.Config{Node: "n1"}).FetchImage(t.Context(), wanted("web", "remote"), "remote", "", "")
		if start := (*pod.StartError)(nil); !errors.As(err, &start) || start.Reason != word {
			t.Errorf("%v", err)
		}
	}
}

func TestCreateContainer_NotInThePod_IsAFinalError(t *testing.T) {
	r := critest.New().CRI(cri.Config{Node: "n1"})
	want := wanted("web", "sleep")
	_, err := r.CreateContainer(t.Context(), pod.CreateRequest{Want: want, Container: "missing", Sandbox: &pod.Sandbox{}})
	if start := (*pod.StartError)(nil); !errors.As(err, &start) || start.Reason != "CreateContainerConfigError" || !start.Final {
		t.Errorf("%v", err)
	}
}

func TestExecSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		id := start(t, r, wanted("web", "sleep"), 0).containers["c0"]
		exec := func(cmd ...string) (int32, string, error) {
			code, out, err := r.ExecSync(t.Context(), id, cmd, 1500*time.Millisecond)
			return code, string(out), err
		}
		if code, _, err := exec("false"); code != 1 || err != nil {
			t.Errorf("false: %d, %v", code, err)
		}
		if _, out, err := exec("echo", "hi"); out != "[echo hi]\n" || err != nil {
			t.Errorf("echo: %q, %v", out, err)
		}
		began := time.Now()
		if _, _, err := exec("sleep", "10"); !errors.Is(err, cri.ErrExecTimeout) || time.Since(began) != 2*time.Second {
			t.Errorf("sleep: %v after %s, want ErrExecTimeout after the whole seconds of 1.5 s", err, time.Since(began))
		}
		// A runtime that hangs is not reported as a failure of the command.
		rt.Fault(critest.Fault{Method: "ExecSync", Hang: true})
		if _, _, err := exec("true"); errors.Is(err, cri.ErrExecTimeout) || !errors.Is(err, cri.ErrTimeout) {
			t.Errorf("hung runtime: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		// F81: containerd never ends a command whose call is cancelled while it starts.
		if _, _, err := r.ExecSync(ctx, id, []string{"true"}, time.Minute); err == nil || time.Since(began) != 2500*time.Millisecond {
			t.Errorf("the caller left: %v after %s", err, time.Since(began))
		}
	})
}
