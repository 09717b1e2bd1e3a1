package image_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Shows: C-1.39.2
func TestC_1_39_2_PullPolicies(t *testing.T) {
	for _, c := range []struct {
		image  string
		policy v1.PullPolicy
		want   string // the prefix of the error; "" is success
		final  bool
		pulls  int
	}{
		{"r.io/here:1", v1.PullIfNotPresent, "", false, 0},
		{"r.io/here:1", v1.PullNever, "", false, 0},
		{"r.io/here:1", v1.PullAlways, "", false, 1},
		{"r.io/here:1", "", "", false, 0},
		{"r.io/here", "", "", false, 1}, // latest: always
		{"r.io/here", v1.PullIfNotPresent, "", false, 0},
		{"r.io/remote:1", v1.PullIfNotPresent, "", false, 1},
		{"r.io/here@sha256:" + strings.Repeat("a", 64), "", "", false, 1},
		{"r.io/remote:1", v1.PullNever, `ErrImageNeverPull: Container image "r.io/remote:1" is not present with pull policy of Never`, true, 0},
		{"r.io/missing:1", v1.PullIfNotPresent, "ErrImagePull: pull image r.io/missing:1: not found", false, 1},
		{"r.io/missing", v1.PullAlways, "ErrImagePull: pull image r.io/missing:latest: not found", false, 1},
		{"UPPER:::", v1.PullAlways, `InvalidImageName: image "UPPER:::": invalid reference format`, true, 0},
		{"", v1.PullAlways, `InvalidImageName: image ""`, true, 0},
		{"nodectl.dev/pause:1", v1.PullAlways, `ErrImagePull: image "nodectl.dev/pause:1": the name is reserved for the bundled runtime`, true, 0},
		{"nodectl.dev/pause@sha256:" + strings.Repeat("a", 64), "", `ErrImagePull: image "nodectl.dev/pause@`, true, 0},
	} {
		for _, volume := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %s %t", c.image, c.policy, volume), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRegistries()
					r.present["r.io/here:1"], r.present["r.io/here:latest"], r.present["r.io/main:1"] = "sha256:1", "sha256:2", "sha256:3"
					m := on(t, r, t.TempDir())
					defer m.stop()
					want := wanted("web", c.image)
					want.Pod.Spec.Containers[0].ImagePullPolicy = c.policy
					if volume {
						want = wanted("web", "r.io/main:1")
						want.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data"}}
						want.Pod.Spec.Volumes = []v1.Volume{
							{Name: "other", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "r.io/missing:unmounted"}}},
							{Name: "data", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: c.image, PullPolicy: c.policy}}},
						}
					}
					err := m.PullImage(t.Context(), want, "c0")
					wanted := c.want
					if volume {
						wanted = strings.Replace(wanted, ": ", ": volume data: ", 1)
					}
					var start *pod.StartError
					switch {
					case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), wanted)):
						t.Errorf("%v, want %s", err, wanted)
					case c.want != "" && (!errors.As(err, &start) || start.Final != c.final):
						t.Errorf("%#v", err)
					}
					if n := len(r.allPulls()); n != c.pulls {
						t.Errorf("%d pulls, want %d: %q", n, c.pulls, r.allPulls())
					}
				})
			})
		}
	}
}

func TestPullImage_RequestAndLog_NameImageAndPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		m := on(t, r, t.TempDir())
		defer m.stop()
		if err := m.PullImage(t.Context(), wanted("web", "r.io/app:1"), "c0"); err != nil {
			t.Fatal(err)
		}
		meta := r.last.GetSandboxConfig().GetMetadata()
		if meta.GetName() != "web" || meta.GetNamespace() != "default" || meta.GetUid() != "uid-web" || r.last.GetAuth() != nil ||
			r.last.GetImage().GetAnnotations()["a"] != "b" || r.last.GetSandboxConfig().GetAnnotations()["a"] != "b" {
			t.Errorf("%v", r.last)
		}
		if line := `msg="Pulling image" image=r.io/app:1 pod=default/web`; !strings.Contains(m.log.String(), line) {
			t.Errorf("the log lacks %s:\n%s", line, m.log)
		}
		if err := m.PullImage(t.Context(), wanted("web", "r.io/app:1"), "missing"); err == nil || !strings.HasPrefix(err.Error(), "CreateContainerConfigError: ") {
			t.Errorf("%v", err)
		}
	})
}

// Pods that need the same image share its pull. It continues when one of them stops waiting, and is
// cancelled when the last one does.
//
// Shows: F30
func TestF30_OneFlightPerImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		m := on(t, r, t.TempDir())
		defer m.stop()
		first, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := m.PullImage(first, wanted("first", "r.io/app:1"), "c0"); !errors.Is(err, context.Canceled) {
				t.Errorf("the first: %v", err)
			}
		})
		for i := range 20 {
			wg.Go(func() {
				if err := m.PullImage(t.Context(), wanted(fmt.Sprintf("p%d", i), "r.io/app:1"), "c0"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if got := m.Pulls(); len(got) != 1 || got[0].Image != "r.io/app:1" || got[0].Waiting {
			t.Errorf("%+v", got)
		}
		leave()
		wg.Wait()
		if got := r.allPulls(); len(got) != 1 || r.ended != 0 || len(m.Pulls()) != 0 {
			t.Errorf("%q, %d ended, %v", got, r.ended, m.Pulls())
		}

		r.hang["slow.io"] = true
		alone, leave := context.WithCancel(t.Context())
		wg.Go(func() { _ = m.PullImage(alone, wanted("a", "slow.io/app:1"), "c0") })
		wg.Go(func() { _ = m.PullImage(alone, wanted("b", "slow.io/app:1"), "c0") })
		synctest.Wait()
		leave()
		wg.Wait()
		synctest.Wait()
		if r.ended != 1 || len(m.Pulls()) != 0 {
			t.Errorf("%d pulls ended, %v", r.ended, m.Pulls())
		}
		r.hang["slow.io"] = false
		if err := m.PullImage(t.Context(), wanted("c", "slow.io/app:1"), "c0"); err != nil {
			t.Errorf("after the pull that was given up: %v", err)
		}
	})
}

// When a Puller ends, every waiting pull returns an error and no goroutine is left.
func TestRun_Ends_WaitingPullsReturnAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.hang["slow.io"] = true
		m := on(t, r, t.TempDir())
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if err := m.PullImage(t.Context(), wanted("a", fmt.Sprintf("slow.io/app:%d", i)), "c0"); err == nil {
					t.Error("pulled")
				}
			})
		}
		synctest.Wait()
		m.stop()
		wg.Wait()
		if err := m.PullImage(t.Context(), wanted("b", "slow.io/app:9"), "c0"); err == nil || r.now["slow.io"] != 0 {
			t.Errorf("%v, %d under way", err, r.now["slow.io"])
		}
	})
}

// One registry hangs: its own pods wait, the others run within seconds.
//
// Shows: M21, F30
func TestM21_RegistryHangs_OtherRegistriesAreNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.hang["hung.io"] = true
		m := on(t, r, t.TempDir())
		defer m.stop()
		began := time.Now()
		ctx, leave := context.WithCancel(t.Context())
		var others, hung sync.WaitGroup
		for i := range 20 {
			registry, wg := "r.io", &others
			if i%4 == 0 {
				registry, wg = "hung.io", &hung
			}
			wg.Go(func() {
				err := m.PullImage(ctx, wanted(fmt.Sprintf("p%d", i), fmt.Sprintf("%s/app:%d", registry, i)), "c0")
				if (err == nil) != (registry == "r.io") {
					t.Errorf("%s: %v", registry, err)
				}
			})
		}
		others.Wait()
		if took := time.Since(began); took != 5*time.Second { // 15 images, 3 at a time, 1 s each
			t.Errorf("the others took %s", took)
		}
		waiting := 0
		for _, p := range m.Pulls() {
			if p.Waiting {
				waiting++
			}
		}
		if r.most["r.io"] != 3 || r.most["hung.io"] != 3 || len(m.Pulls()) != 5 || waiting != 2 || len(r.allPulls()) != 18 {
			t.Errorf("at once: %v; %v, %d pulls", r.most, m.Pulls(), len(r.allPulls()))
		}
		leave() // one after the other: the first to leave makes room for the next
		hung.Wait()
		synctest.Wait()
		if len(m.Pulls()) != 0 || r.now["hung.io"] != 0 {
			t.Errorf("%v, under way %v", m.Pulls(), r.now)
		}
	})
}

func TestObserve_Pulls_HaveAStartAndAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o observer
		m := on(t, newRegistries(), t.TempDir(), func(c *image.Config) { c.Observe = o.observe })
		defer m.stop()
		_ = m.PullImage(t.Context(), wanted("a", "r.io/app:1"), "c0")
		_ = m.PullImage(t.Context(), wanted("a", "r.io/missing:1"), "c0")
		synctest.Wait()
		if want := []string{
			"r.io/app:1 false <nil>", "r.io/app:1 true <nil>",
			"r.io/missing:1 false <nil>", "r.io/missing:1 true ErrImagePull: pull image r.io/missing:1: not found",
		}; !slices.Equal(o.text, want) {
			t.Errorf("%q", o.text)
		}
	})
}

// A password is in no log, no error and no file, whatever a registry repeats; and only root
// can read the files.
//
// Shows: I8
func TestPullImage_Password_IsInNoLogErrorOrFile(t *testing.T) {
	const canary = "c4nary/+pass word"
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.repeats = true
		r.lets["r.io/app:1"], r.lets["r.io/good:1"] = "other:login", "u:"+canary
		dir := t.TempDir()
		config := filepath.Join(dir, "config.json")
		if err := os.WriteFile(config, fmt.Appendf(nil, `{"auths":{"r.io":{"username":"node","password":%q}}}`, canary+"2"), 0o600); err != nil {
			t.Fatal(err)
		}
		broken := secret("broken", "", "r.io", "u", canary)
		broken.Data[v1.DockerConfigJsonKey] = fmt.Appendf(nil, `{"auths":{"r.io":{"password":%q,}}`, canary)
		m := on(t, r, dir, func(c *image.Config) { c.DockerConfigs = []string{config} })
		defer m.stop()
		secrets := []*v1.Secret{broken, secret("pull", "", "r.io", "u", canary)}
		err := m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), secrets...), "c0")
		if err == nil || len(r.allPulls()) != 2 {
			t.Fatalf("%v, %q", err, r.allPulls())
		}
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/good:1"), secrets...), "c0"); err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		all.WriteString(err.Error())
		all.WriteString(m.log.String())
		if err := filepath.WalkDir(filepath.Join(dir, "image_manager"), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s is %s", path, info.Mode())
			}
			if d.Type().IsRegular() {
				b, err := os.ReadFile(path)
				all.Write(b)
				return err
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(all.String(), "c4nary") || strings.Contains(all.String(), "YzRuYXJ5") {
			t.Errorf("%s", all.String())
		}
		if !strings.Contains(all.String(), "Ignoring pull secret") || !strings.Contains(all.String(), "sha256:r.io/good:1") {
			t.Errorf("nothing was looked at: %s", all.String())
		}
		var rec map[string]any
		files, _ := filepath.Glob(filepath.Join(dir, "image_manager", "pulled", "*"))
		if len(files) != 1 {
			t.Fatalf("%v", files)
		}
		if js, err := os.ReadFile(files[0]); err != nil || json.Unmarshal(js, &rec) != nil {
			t.Errorf("%s, %v", js, err)
		}
	})
}

// TestC_D_PullsHaveEvents: every waiting pod gets its own progress of the pull: how long the pull
// took and how long that pod waited.
//
// Shows: Appendix D
func TestC_D_PullsHaveEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := on(t, newRegistries(), t.TempDir(), func(c *image.Config) { c.PerRegistry = 1 })
		defer m.stop()
		pull := func(want *pod.Spec) string {
			var b strings.Builder
			progress := func(n pod.PullProgress) {
				fmt.Fprintf(&b, "%s %t %t %s %s; ", n.Image, n.Present, n.Pulled, n.Took, n.Waited)
			}
			if err := m.Puller.PullImage(t.Context(), want, "c0", progress); err != nil {
				fmt.Fprintf(&b, "failed; ")
			}
			return b.String()
		}
		var wg sync.WaitGroup
		got := make([]string, 2)
		for i := range got {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				got[i] = pull(wanted(fmt.Sprint("p", i), fmt.Sprintf("r.io/app:%d", i)))
			})
		}
		wg.Wait()
		for i, want := range []string{
			"r.io/app:0 false false 0s 0s; r.io/app:0 false true 1s 1s; ",
			"r.io/app:1 false false 0s 0s; r.io/app:1 false true 1s 1.999s; ",
		} {
			if got[i] != want {
				t.Errorf("%q, want %q", got[i], want)
			}
		}
		if got, want := pull(wanted("p2", "r.io/app:0")), "r.io/app:0 true false 0s 0s; "; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got, want := pull(wanted("p3", "r.io/missing:1")), "r.io/missing:1 false false 0s 0s; failed; "; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
