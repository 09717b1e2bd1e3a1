package cri_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// wanted returns a spec with one container per image.
func wanted(name string, images ...string) *pod.Spec {
	grace := int64(30)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			Labels:      map[string]string{"app": name, pod.LabelNode: "stolen"},
			Annotations: map[string]string{"note": "kept"},
		},
		Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace},
	}
	s := &pod.Spec{
		Key: pod.KeyOf(p), Pod: p, Hash: "v1-spec", SandboxHash: "v1-box", ContainerHashes: map[string]string{},
		Origin: pod.Origin{Source: "file", Location: "/etc/manifests"},
	}
	for i, image := range images {
		c := "c" + string(rune('0'+i))
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c, Image: image})
		s.ContainerHashes[c] = "v1-" + c
	}
	return s
}

// start makes and starts everything of want.
func start(t *testing.T, r *cri.Runtime, want *pod.Spec) {
	t.Helper()
	ctx := t.Context()
	id, err := r.RunSandbox(ctx, want, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range want.Pod.Spec.Containers {
		if err := r.PullImage(ctx, want, c.Name); err != nil {
			t.Fatal(err)
		}
		cid, err := r.CreateContainer(ctx, pod.CreateRequest{Want: want, Container: c.Name, Sandbox: &pod.Sandbox{ID: id, Instance: 1}, Streak: 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.StartContainer(ctx, cid); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		if err := rt.RunForeign(pod.Key{Namespace: "default", Name: "theirs"}, "x"); err != nil {
			t.Fatal(err)
		}
		want := wanted("web", "sleep", "exit-3-after-5s")
		start(t, r, want)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		all, err := r.Pods(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("Pods = %v, %v; want one", all, err)
		}
		t.Logf("%+v\n%+v\n%+v", all[0].Key, all[0].Sandbox, all[0].Containers)
		c := all[0].Containers["c1"]
		if c.State != pod.StateExited || c.ExitCode != 3 || c.CrashStreak != 2 || c.FinishedAt.Sub(c.StartedAt) != 5*time.Second {
			t.Errorf("c1 = %+v", c)
		}
		t.Log(strings.Join(rt.Transcript(), "\n"))
	})
}

func TestDownAndUp(t *testing.T) {
	rt := critest.New()
	r, err := cri.Dial(cri.Config{Endpoint: critest.Serve(t, rt), Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	start(t, r, wanted("web", "sleep"))
	rt.Crash()
	_, err = r.Pods(t.Context())
	if !errors.Is(err, cri.ErrUnavailable) {
		t.Fatal(err)
	}
	t.Log(err)
	if err := rt.Restart(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for {
		_, err = r.Pods(context.Background())
		if err == nil {
			break
		}
		if time.Since(began) > 5*time.Second {
			t.Fatal(err)
		}
	}
	t.Log(time.Since(began))
}
