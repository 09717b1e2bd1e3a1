package image_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/pod"
)

// A pod without the secret cannot use an image that was pulled with it. Every pod may use an image
// that was present before.
//
// Shows: C-1.39.6
func TestC_1_39_6_SecretPulledImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		r.present["r.io/preloaded:1"] = "sha256:pre"
		dir := t.TempDir()
		m := on(t, r, dir)
		s := secret("pull", "", "r.io", "u", "p")
		pulls := 0
		step := func(what string, want *pod.Spec, pulled int, failure string) {
			t.Helper()
			err := m.PullImage(t.Context(), want, "c0")
			if (err == nil) != (failure == "") || err != nil && !strings.HasPrefix(err.Error(), failure) {
				t.Errorf("%s: %v", what, err)
			}
			if n := len(r.allPulls()); n != pulls+pulled {
				t.Errorf("%s: %d pulls, want %d: %q", what, n-pulls, pulled, r.allPulls())
			}
			pulls = len(r.allPulls())
		}
		step("the first", with(wanted("a", "r.io/app:1"), s), 1, "")
		step("again", with(wanted("a", "r.io/app:1"), s), 0, "")
		step("the same login in another secret", with(wanted("b", "r.io/app:1"), secret("other", "", "r.io", "u", "p")), 0, "")
		step("without", wanted("c", "r.io/app:1"), 1, "ErrImagePull: ")
		step("never, without", never(wanted("c", "r.io/app:1")), 0, `ErrImageNeverPull: Container image "r.io/app:1" is not present with pull policy of Never`)
		step("never, with", never(with(wanted("c", "r.io/app:1"), s)), 0, "")
		step("with another login", with(wanted("d", "r.io/app:1"), secret("pull", "", "r.io", "u", "wrong")), 1, "ErrImagePull: ")
		r.present["r.io/alias:1"] = "sha256:r.io/app:1"
		step("under another name", wanted("e", "r.io/alias:1"), 1, "")
		step("preloaded", wanted("f", "r.io/preloaded:1"), 0, "")
		step("preloaded, never", never(wanted("f", "r.io/preloaded:1")), 0, "")
		step("pulled without", wanted("g", "r.io/free:1"), 1, "")
		step("pulled without, again", with(wanted("h", "r.io/free:1"), s), 0, "")

		m.stop()
		m = on(t, r, dir) // restart the agent
		defer m.stop()
		step("after a restart", with(wanted("a", "r.io/app:1"), s), 0, "")
		step("without, after a restart", wanted("c", "r.io/app:1"), 1, "ErrImagePull: ")

		// A Secret from an API server is identified by its UID, whatever it contains.
		api := secret("api", "uid-1", "r.io", "u", "p")
		step("from an API server", with(wanted("i", "r.io/app:1"), api), 0, "")
		step("with a new password", with(wanted("i", "r.io/app:1"), secret("api", "uid-1", "r.io", "u", "new")), 0, "")
		step("another of its name", with(wanted("i", "r.io/app:1"), secret("api", "uid-2", "r.io", "u", "newer")), 1, "ErrImagePull: ")
	})
}

// The author of a static source chooses the UID of its Secret. With the UID of an API
// server's Secret and another password, the registry decides.
func TestSecretPulledImages_StaticSecretWithACopiedUID_TheRegistryIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		m := on(t, r, t.TempDir())
		defer m.stop()
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), secret("pull", "uid-1", "r.io", "u", "p")), "c0"); err != nil {
			t.Fatal(err)
		}
		static := with(wanted("b", "r.io/app:1"), secret("pull", "uid-1", "r.io", "u", "guessed"))
		static.Data.Object(pod.KindSecret, "pull").Origin.Source = "file"
		err := m.PullImage(t.Context(), static, "c0")
		if err == nil || !strings.HasPrefix(err.Error(), "ErrImagePull: ") || len(r.allPulls()) != 2 {
			t.Errorf("%v after %q", err, r.allPulls())
		}
	})
}

// If the agent is killed during a pull with a secret, pods without the secret cannot use the image.
//
// Shows: C-1.39.6
func TestC_1_39_6_AgentIsKilledDuringPull_OtherPodsCannotUseTheImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		dir := t.TempDir()
		m := on(t, r, dir)
		r.hang["r.io"] = true
		ctx, die := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = m.PullImage(ctx, with(wanted("a", "r.io/app:1"), secret("pull", "", "r.io", "u", "p")), "c0")
		})
		synctest.Wait()
		kept := filepath.Join(t.TempDir(), "kept")
		if err := os.CopyFS(kept, os.DirFS(dir)); err != nil { // as kill -9 leaves it
			t.Fatal(err)
		}
		die()
		wg.Wait()
		m.stop()
		r.hang["r.io"] = false
		r.present["r.io/app:1"], r.present["r.io/alias:1"] = "sha256:app", "sha256:app" // pulled
		r.lets["r.io/alias:1"] = "u:p"
		m = on(t, r, kept)
		defer m.stop()
		for _, name := range []string{"r.io/alias:1", "r.io/app:1"} {
			if err := m.PullImage(t.Context(), wanted("b", name), "c0"); err == nil || !strings.HasPrefix(err.Error(), "ErrImagePull: ") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(kept, "image_manager", "pulling", "*")); len(left) != 0 {
			t.Errorf("intents left: %v", left)
		}
	})
}

// If a pull with a secret has an unknown outcome, pods without the secret cannot use the image, at
// once or later.
//
// Shows: C-1.39.6
func TestC_1_39_6_UnknownOutcome_OtherPodsCannotUseTheImage(t *testing.T) {
	for name, c := range map[string]struct {
		end   func() error
		leave bool
		late  time.Duration
		away  time.Duration // how long the runtime does not answer
	}{
		"the runtime dies": {end: func() error { return status.Error(codes.Unavailable, "error reading from server: EOF") }},
		"the runtime is away for long": {
			end:  func() error { return status.Error(codes.Unavailable, "error reading from server: EOF") },
			away: time.Minute,
		},
		"the runtime is on its way down":     {end: func() error { return status.Error(codes.Canceled, "context canceled") }},
		"the runtime's deadline":             {end: func() error { return status.Error(codes.DeadlineExceeded, "late") }},
		"our deadline":                       {},
		"the last one leaves":                {leave: true},
		"the last one leaves too late":       {leave: true, late: time.Second},
		"the last one leaves, and then away": {leave: true, away: time.Minute},
	} {
		for _, wait := range []time.Duration{0, 10 * time.Second, 2 * time.Minute} {
			if wait < c.late || wait < c.away {
				continue
			}
			for _, policy := range []string{"always", "if not present"} {
				t.Run(fmt.Sprintf("%s, %s, after %s", name, policy, wait), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						r := newRegistries()
						r.lets["r.io/app:1"], r.ends, r.late = "u:p", map[string]func() error{"r.io/app:1": c.end}, c.late
						m := on(t, r, t.TempDir())
						defer m.stop()
						s := secret("pull", "", "r.io", "u", "p")
						first := with(wanted("a", "r.io/app:1"), s)
						if policy == "always" {
							first = always(first)
						}
						ctx, leave := context.WithCancel(t.Context())
						defer leave()
						if c.leave {
							time.AfterFunc(time.Minute, leave)
						}
						if err := m.PullImage(ctx, first, "c0"); err == nil {
							t.Fatal("the pull did not fail")
						}
						r.mu.Lock()
						r.away = c.away > 0
						r.mu.Unlock()
						time.Sleep(c.away)
						synctest.Wait()
						r.mu.Lock()
						r.away = false
						r.mu.Unlock()
						time.Sleep(wait - c.away)
						pulls := len(r.allPulls())
						if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err == nil || !strings.HasPrefix(err.Error(), "ErrImageNeverPull: ") {
							t.Errorf("never, without: %v", err)
						}
						if err := m.PullImage(t.Context(), wanted("b", "r.io/app:1"), "c0"); err == nil || !strings.HasPrefix(err.Error(), "ErrImagePull: ") {
							t.Errorf("without: %v", err)
						}
						if err := m.PullImage(t.Context(), with(wanted("b", "r.io/app:1"), s), "c0"); err != nil {
							t.Errorf("with: %v", err)
						}
						if got := r.allPulls()[pulls:]; !slices.Equal(got, []string{"r.io/app:1", "r.io/app:1 u:p"}) {
							t.Errorf("pulls: %q", got)
						}
						if err := m.PullImage(t.Context(), never(with(wanted("b", "r.io/app:1"), s)), "c0"); err != nil {
							t.Errorf("never, with: %v", err)
						}
						time.Sleep(10 * time.Second)
						synctest.Wait()
						if err := m.PullImage(t.Context(), wanted("c", "r.io/free:1"), "c0"); err != nil {
							t.Error(err)
						}
						if left := m.intents(t); len(left) != 0 {
							t.Errorf("intents left: %v", left)
						}
						if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err == nil {
							t.Error("a pod without the secret may use the image")
						}
					})
				})
			}
		}
	}
}

// After a cancelled pull that left no image, every pod may use an image that is imported later. Every
// pod may also use an image that was present before a pull that failed or had no secret.
//
// Shows: C-1.39.6
func TestC_1_39_6_CancelledPullLeftNoImage_EveryPodMayUseALaterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		m := on(t, r, t.TempDir())
		defer m.stop()
		s := secret("pull", "", "r.io", "u", "p")
		look := func(what string, failed error, intents int) {
			t.Helper()
			if failed == nil {
				t.Errorf("%s: no error", what)
			}
			if left := m.intents(t); len(left) != intents {
				t.Errorf("%s: intents left: %v", what, left)
			}
		}
		look("not found", m.PullImage(t.Context(), with(wanted("a", "r.io/missing:1"), s), "c0"), 0)
		looks := r.looks
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/ok:1"), s), "c0"); err != nil || r.looks-looks != 3 {
			t.Errorf("%v, %d questions to the runtime", err, r.looks-looks)
		}

		r.hang["r.io"] = true
		given := func(want *pod.Spec) error {
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			err := m.PullImage(ctx, want, "c0")
			synctest.Wait()
			return err
		}
		look("given up", given(with(wanted("a", "r.io/app:1"), s)), 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		look("given up, later", errors.New(""), 0)
		r.mu.Lock()
		r.present["r.io/app:1"], r.present["r.io/pre:1"], r.present["r.io/pre:2"] = "sha256:app", "sha256:pre", "sha256:pre2"
		r.mu.Unlock()
		look("there before, without a secret", given(always(wanted("a", "r.io/pre:1"))), 0)
		r.hang["r.io"] = false
		r.lets["r.io/pre:2"] = "other:login"
		look("there before, refused", m.PullImage(t.Context(), always(with(wanted("a", "r.io/pre:2"), s)), "c0"), 0)
		for _, name := range []string{"r.io/app:1", "r.io/pre:1", "r.io/pre:2"} {
			if err := m.PullImage(t.Context(), never(wanted("b", name)), "c0"); err != nil {
				t.Error(err)
			}
		}
	})
}

// A cancelled pull does not change an existing pulled record, and the intent stays while another
// pull of the image runs.
//
// Shows: C-1.39.6
func TestC_1_39_6_CancelledPull_KeepsRecordAndIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		m := on(t, r, t.TempDir())
		defer m.stop()
		s := secret("pull", "", "r.io", "u", "p")
		if err := m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), s), "c0"); err != nil {
			t.Fatal(err)
		}
		r.hang["r.io"] = true
		short, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		long, leave := context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.PullImage(short, always(with(wanted("b", "r.io/app:1"), s)), "c0") })
		wg.Go(func() {
			_ = m.PullImage(long, always(with(wanted("c", "r.io/app:1"), secret("other", "", "r.io", "u", "q"))), "c0")
		})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if left := m.intents(t); len(left) != 1 {
			t.Errorf("while one goes on: %v", left)
		}
		wg.Wait()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if left := m.intents(t); len(left) != 0 {
			t.Errorf("intents left: %v", left)
		}
		if err := m.PullImage(t.Context(), never(with(wanted("d", "r.io/app:1"), s)), "c0"); err != nil {
			t.Error(err)
		}
		if err := m.PullImage(t.Context(), never(wanted("d", "r.io/app:1")), "c0"); err == nil {
			t.Error("a pod without the secret may use the image")
		}
	})
}

// If the runtime cannot inspect the image of a pull with an unknown outcome, pods without the secret
// cannot use that image, and other images are not delayed.
//
// Shows: C-1.39.6
func TestC_1_39_6_ImageCannotBeInspected_OtherImagesArePulled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.ends = map[string]func() error{"r.io/app:1": func() error { return status.Error(codes.Unavailable, "EOF") }}
		m := on(t, r, t.TempDir())
		defer m.stop()
		_ = m.PullImage(t.Context(), with(wanted("a", "r.io/app:1"), secret("pull", "", "r.io", "u", "p")), "c0")
		r.mu.Lock()
		r.broken = map[string]bool{"r.io/app:1": true}
		r.mu.Unlock()
		time.Sleep(10 * time.Second)
		if err := m.PullImage(t.Context(), wanted("b", "other.io/app:1"), "c0"); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.broken = nil
		r.mu.Unlock()
		if err := m.PullImage(t.Context(), never(wanted("b", "r.io/app:1")), "c0"); err == nil {
			t.Error("a pod without the secret may use the image")
		}
	})
}

// A pull whose outcome cannot be recorded does not delay other images.
//
// Shows: C-1.39.6
func TestC_1_39_6_OutcomeCannotBeRecorded_OtherImagesArePulled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.hang["r.io"] = true
		dir := t.TempDir()
		m := on(t, r, dir)
		ctx, die := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.PullImage(ctx, wanted("a", "r.io/app:1"), "c0") })
		synctest.Wait()
		kept := filepath.Join(t.TempDir(), "kept")
		if err := os.CopyFS(kept, os.DirFS(dir)); err != nil { // as kill -9 leaves it
			t.Fatal(err)
		}
		die()
		wg.Wait()
		m.stop()
		if left, _ := filepath.Glob(filepath.Join(kept, "image_manager", "pulling", "*")); len(left) != 1 {
			t.Fatalf("intents left: %v", left)
		}
		if err := os.WriteFile(filepath.Join(kept, "image_manager", "pulled"), nil, 0o600); err != nil { // no record fits in there
			t.Fatal(err)
		}
		r.present["r.io/app:1"] = "sha256:app"
		m = on(t, r, kept)
		defer m.stop()
		if err := m.PullImage(t.Context(), wanted("b", "other.io/app:1"), "c0"); err != nil {
			t.Error(err)
		}
	})
}

// With a damaged pulled record, each pod must ask the registry.
//
// Shows: C-1.39.6
func TestC_1_39_6_DamagedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistries()
		r.lets["r.io/app:1"] = "u:p"
		m := on(t, r, t.TempDir())
		defer m.stop()
		want := with(wanted("a", "r.io/app:1"), secret("pull", "", "r.io", "u", "p"))
		if err := m.PullImage(t.Context(), want, "c0"); err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(m.dir, "image_manager", "pulled", "*"))
		if len(files) != 1 {
			t.Fatalf("%v", files)
		}
		for _, content := range []string{"", "{", `{"image":"sha256:another","repos":{"r.io/app":{"node":true}}}`} {
			if err := os.WriteFile(files[0], []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := m.PullImage(t.Context(), wanted("b", "r.io/app:1"), "c0"); err == nil {
				t.Errorf("%q: a pod without the secret may use the image", content)
			}
		}
		if err := m.PullImage(t.Context(), want, "c0"); err != nil || len(r.allPulls()) != 5 {
			t.Errorf("%v, %q", err, r.allPulls())
		}
		if err := m.PullImage(t.Context(), want, "c0"); err != nil || len(r.allPulls()) != 5 {
			t.Errorf("written again: %v, %q", err, r.allPulls())
		}
	})
}
