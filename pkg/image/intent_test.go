package image_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/image"
)

func runtimeAt(endpoint string) func(*image.Config) {
	return func(c *image.Config) { c.Endpoint = endpoint }
}

// TestUnknownPull_AnotherRuntimeLacksTheImage_OtherPodsCannotUseIt: an agent is killed during a pull
// with a secret, and the next agent uses another runtime. When an agent uses the first runtime again,
// pods without the secret cannot use the image.
//
// Shows: C-1.39.6
func TestUnknownPull_AnotherRuntimeLacksTheImage_OtherPodsCannotUseIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, dir := newRegistries(), newRegistries(), t.TempDir()
		first.lets["r.io/app:1"], second.lets["r.io/app:1"] = "u:p", "u:p"
		s := secret("pull", "", "r.io", "u", "p")
		killedInPull(t, first, dir, s)
		first.present["r.io/app:1"] = "sha256:app" // pulled

		m := on(t, second, dir, runtimeAt("second"))
		if err := m.PullImage(t.Context(), wanted("b", "r.io/app:1"), "c0"); err == nil {
			t.Error("the registry does not ask for the secret")
		}
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), s), "c0"); err != nil {
			t.Error(err)
		}
		m.stop()

		m = on(t, first, dir, runtimeAt("first"))
		defer m.stop()
		if err := m.PullImage(t.Context(), wanted("b", "r.io/app:1"), "c0"); err == nil || !strings.HasPrefix(err.Error(), "ErrImagePull: ") {
			t.Errorf("without the secret: %v", err)
		}
		if left := m.intents(t); len(left) != 0 {
			t.Errorf("intents left: %v", left)
		}
	})
}

// killedInPull leaves the directory of an agent on the runtime "first" that was killed during a pull
// of r.io/app:1.
func killedInPull(t *testing.T, r *registries, dir string, s *v1.Secret) {
	t.Helper()
	r.hang["r.io"] = true
	away := t.TempDir()
	m := on(t, r, away, runtimeAt("first"))
	ctx, die := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.PullImage(ctx, with(wanted("a", "r.io/app:1"), s), "c0")
	}()
	synctest.Wait()
	if err := os.CopyFS(filepath.Join(dir, "image_manager"), os.DirFS(filepath.Join(away, "image_manager"))); err != nil {
		t.Fatal(err)
	}
	die()
	<-done
	m.stop()
	r.hang["r.io"] = false
}

// TestUnknownPull_ImageIsRemovedFromAnotherRuntime_RecordStays: an image has a record of another
// runtime, and a pull with an unknown outcome brings it to this one, too.
//
// Shows: C-1.39.6
func TestUnknownPull_ImageIsRemovedFromAnotherRuntime_RecordStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, dir := newRegistries(), newRegistries(), t.TempDir()
		first.lets["r.io/app:1"], second.lets["r.io/app:1"] = "u:p", "u:p"
		s := secret("pull", "", "r.io", "u", "p")
		killedInPull(t, first, dir, s)
		first.present["r.io/app:1"] = "sha256:r.io/app:1" // pulled

		m := on(t, second, dir, runtimeAt("second"))
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), s), "c0"); err != nil {
			t.Error(err)
		}
		m.stop()
		m = on(t, first, dir, runtimeAt("first"))
		if err := m.PullImage(t.Context(), wanted("b", "r.io/other:1"), "c0"); err != nil { // settles the intent
			t.Error(err)
		}
		m.stop()
		m = on(t, second, dir, runtimeAt("second"))
		m.RemoveRecord("sha256:r.io/app:1", time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)) // files have the time of the machine
		m.stop()

		m = on(t, first, dir, runtimeAt("first"))
		defer m.stop()
		if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err == nil {
			t.Error("a pod without the secret may use the image")
		}
	})
}

// TestUnknownPull_IntentOfAnOlderAgent_IsRead: it has no runtime, so that any runtime settles it.
//
// Shows: C-1.39.6
func TestUnknownPull_IntentOfAnOlderAgent_IsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, dir := newRegistries(), t.TempDir()
		r.lets["r.io/app:1"] = "u:p"
		killedInPull(t, r, dir, secret("pull", "", "r.io", "u", "p"))
		m := on(t, r, dir, runtimeAt("second"))
		defer m.stop()
		for _, file := range m.intents(t) {
			if err := os.WriteFile(file, []byte(`"r.io/app:1"`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r.present["r.io/app:1"] = "sha256:app" // pulled
		if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err == nil {
			t.Error("a pod without the secret may use the image")
		}
		if left := m.intents(t); len(left) != 0 {
			t.Errorf("intents left: %v", left)
		}
	})
}

// TestUnknownPull_OnAnotherRuntime_ClosesNothingHere: an agent is killed during a pull with a
// secret, and the next agent uses another runtime, into which the image is imported. Every pod may
// use it there, and pods without the secret still cannot use that of the first runtime.
//
// Shows: C-1.39.6, C-1.39.9
func TestUnknownPull_OnAnotherRuntime_ClosesNothingHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, dir := newRegistries(), newRegistries(), t.TempDir()
		killedInPull(t, first, dir, secret("pull", "", "r.io", "u", "p"))
		first.present["r.io/app:1"] = "sha256:app"    // pulled
		second.present["r.io/app:1"] = "sha256:other" // imported

		m := on(t, second, dir, runtimeAt("second"))
		if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err != nil {
			t.Error(err)
		}
		m.stop()
		m = on(t, first, dir, runtimeAt("first"))
		defer m.stop()
		if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err == nil {
			t.Error("a pod without the secret may use the image of the first runtime")
		}
	})
}

// TestIntent_CannotBeRead_Stays: it may be of another runtime. Each pull fails until it can be read.
//
// Shows: C-1.39.6
func TestIntent_CannotBeRead_Stays(t *testing.T) {
	for _, name := range []string{"r.io/app:1", "r.io/other:1"} {
		synctest.Test(t, func(t *testing.T) {
			r, dir := newRegistries(), t.TempDir()
			killedInPull(t, r, dir, secret("pull", "", "r.io", "u", "p"))
			m := on(t, r, dir, runtimeAt("second"))
			defer m.stop()
			file := m.intents(t)[0]
			js, err := os.ReadFile(file)
			if err != nil || os.Remove(file) != nil || os.Mkdir(file, 0o700) != nil { // a directory cannot be read as a file
				t.Fatal("cannot replace the intent", err)
			}
			if err := m.PullImage(t.Context(), wanted("a", name), "c0"); err == nil {
				t.Error("the pull does not fail")
			}
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, js, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := m.PullImage(t.Context(), wanted("a", name), "c0"); err != nil {
				t.Error(err)
			}
			if is, err := os.ReadFile(file); err != nil || string(is) != string(js) {
				t.Errorf("the intent is %q, want %q: %v", is, js, err)
			}
		})
	}
}

// TestIntent_CannotBeReadDuringPull_Stays: the end of the pull does not remove it.
//
// Shows: C-1.39.6
func TestIntent_CannotBeReadDuringPull_Stays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.hang["r.io"] = true
		m := on(t, r, t.TempDir(), runtimeAt("first"))
		defer m.stop()
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = m.PullImage(ctx, wanted("a", "r.io/app:1"), "c0")
		}()
		synctest.Wait()
		file := m.intents(t)[0]
		if os.Remove(file) != nil || os.Mkdir(file, 0o700) != nil {
			t.Fatal("cannot replace the intent")
		}
		<-done
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	})
}
