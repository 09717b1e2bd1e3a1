package image_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nodectl/nodectl/pkg/image"
)

// Each verification policy decides whether a pod without credentials may use an image that is
// present: one that was there before, and one that another pod pulled with its secret.
//
// Shows: C-1.39.9, C-1.39.6
func TestVerificationPolicy_PresentImage_PodWithoutCredentials(t *testing.T) {
	for _, c := range []struct {
		policy            string
		preloaded, pulled bool // the pod may use it without a pull
		listed            bool // the same for a pulled image of the allowlist
	}{
		{policy: "", preloaded: true},
		{policy: image.NeverVerifyPreloadedImages, preloaded: true},
		{policy: image.NeverVerify, preloaded: true, pulled: true, listed: true},
		{policy: image.NeverVerifyAllowlistedImages, listed: true},
		{policy: image.AlwaysVerify},
	} {
		t.Run(c.policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRegistries()
				r.present["r.io/preloaded:1"] = "sha256:pre"
				m := on(t, r, t.TempDir(), func(cfg *image.Config) {
					cfg.Verification, cfg.Allowlist = c.policy, []string{"list.io/*"}
				})
				defer m.stop()
				for _, name := range []string{"r.io/app:1", "list.io/app:1"} {
					r.lets[name] = "u:p"
					host, _, _ := strings.Cut(name, "/")
					if err := m.PullImage(t.Context(), with(wanted("owner", name), secret("pull", "", host, "u", "p")), "c0"); err != nil {
						t.Fatal(err)
					}
				}
				pulls := len(r.allPulls())
				for name, usable := range map[string]bool{"r.io/preloaded:1": c.preloaded, "r.io/app:1": c.pulled, "list.io/app:1": c.listed} {
					if err := m.PullImage(t.Context(), never(wanted("other", name)), "c0"); (err == nil) != usable {
						t.Errorf("%s with pull policy Never: error %v, want usable %v", name, err, usable)
					}
					_ = m.PullImage(t.Context(), wanted("other", name), "c0")
					if asked := len(r.allPulls()) > pulls; asked == usable {
						t.Errorf("%s: asked the registry %v, want %v", name, asked, !usable)
					}
					pulls = len(r.allPulls())
				}
			})
		})
	}
}

// The allowlist compares names as pods write them, without tag and digest.
//
// Shows: C-1.39.9
func TestAllowlist_Patterns_MatchNamesAsWritten(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct {
		pattern, image string
		exempt         bool
	}{
		{"busybox", "busybox", true},
		{"busybox", "busybox:1" + digest, true},
		{"busybox", "busybox2", false},
		{"busybox", "docker.io/library/busybox", false},
		{"docker.io/library/busybox", "busybox", false},
		{"r.io:5000/a", "r.io:5000/a:1", true},
		{"r.io/a", "r.io/a/b", false},
		{"r.io/*", "r.io/a/b" + digest, true},
		{"r.io/*", "r.io.evil.example/a", false},
		{"r.io/a/*", "r.io/ab", false},
	} {
		t.Run(fmt.Sprint(c.pattern, " ", c.image), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRegistries()
				name := c.image
				if !strings.Contains(name, "@") && !strings.HasSuffix(name, ":1") {
					name += ":latest"
				}
				r.present[name] = "sha256:here"
				m := on(t, r, t.TempDir(), func(cfg *image.Config) {
					cfg.Verification, cfg.Allowlist = image.NeverVerifyAllowlistedImages, []string{c.pattern}
				})
				defer m.stop()
				if err := m.PullImage(t.Context(), never(wanted("a", c.image)), "c0"); (err == nil) != c.exempt {
					t.Errorf("error %v, want exempt %v", err, c.exempt)
				}
			})
		})
	}
}
