package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

var (
	sum   = "sha256:" + strings.Repeat("a", 64)
	other = "sha256:" + strings.Repeat("b", 64)
)

// TestImagePatterns: the images that a pattern matches, and similar ones that it does
// not.
func TestImagePatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern  string
		yes, not []string
	}{
		{"*", []string{"nginx", "a.com/b/c:1", "localhost:5000/x@" + sum}, []string{"", "UPPER", "a b", sum, strings.Repeat("a", 64), "-"}},
		{"registry.local:5000/*", []string{"registry.local:5000/app", "registry.local:5000/team/app:1", "registry.local:5000/app@" + sum},
			[]string{"registry.local/app", "registry.local:50000/app", "registry.local:5000.evil.com/app", "evil.com/registry.local:5000/app", "evil.com/registry.local/5000/app", "registry.local:500/app", "app", "Registry.local:5000/app"}},
		{"registry.local/*", []string{"registry.local/app"},
			[]string{"registry.local.evil.com/app", "evilregistry.local/app", "registry.local:5000/app", "a.registry.local/app", "docker.io/registry.local/app", "registry.local", "registryxlocal/app"}},
		{"*.example.com/*", []string{"a.example.com/x", "a.b.example.com/y/z:1"}, []string{"example.com/x", "evilexample.com/x", "a.example.com.evil.com/x", "a.example.com:5000/x", "evil.com/a.example.com/x"}},
		{"nginx", []string{"nginx", "nginx:1.27", "docker.io/nginx", "docker.io/library/nginx", "index.docker.io/library/nginx@" + sum}, []string{"nginx/nginx", "evil.com/nginx", "evil.com/library/nginx", "nginxevil", "localhost/nginx"}},
		{"docker.io/nginx", []string{"nginx"}, []string{"nginx/nginx"}},
		{"index.docker.io/team/*", []string{"team/app", "docker.io/team/app"}, []string{"app"}},
		{"nginx*", []string{"nginx", "nginx-slim:1"}, []string{"nginx.evil.com/x", "evil/nginx"}},
		{"team/*", []string{"team/app", "docker.io/team/app:1"}, []string{"team.evil.com/app", "evil.com/team/app", "teamx/app", "team"}},
		{"docker.io/*", []string{"nginx", "team/app"}, []string{"quay.io/nginx", sum, "docker.io.evil.com/nginx"}},
		{"*/app", []string{"quay.io/app", "localhost/app"}, []string{"quay.io/team/app"}},
		{"localhost/*", []string{"localhost/x"}, []string{"localhost:5000/x", "localhost.evil.com/x"}},
		{"[::1]:5000/*", []string{"[::1]:5000/x"}, []string{"[::2]:5000/x"}},
		{"quay.io/app:v1", []string{"quay.io/app:v1"}, []string{"quay.io/app", "quay.io/app:v11", "quay.io/app:v1@" + other, "quay.io/app@" + other}},
		{"quay.io/app:latest", []string{"quay.io/app"}, []string{"quay.io/app:1"}},
		{"quay.io/app:v1.*", []string{"quay.io/app:v1.2"}, []string{"quay.io/app:v1", "quay.io/app:v1.2@" + sum}},
		{"quay.io/*@sha256:*", []string{"quay.io/app@" + sum, "quay.io/a/b:1@" + sum}, []string{"quay.io/app", "quay.io/app:1"}},
		{"quay.io/app@" + sum, []string{"quay.io/app@" + sum, "quay.io/app:any@" + sum}, []string{"quay.io/app@" + other, "quay.io/app:1", "quay.io/b@" + sum}},
		{"quay.io/app:v1@*", []string{"quay.io/app:v1@" + sum}, []string{"quay.io/app@" + sum, "quay.io/app:v1", "quay.io/app:v2@" + sum}},
	} {
		p := edge(t, fmt.Sprintf("images: [%q]", c.pattern))
		judge := func(image string) []string {
			s := podOf(t, "spec: {}")
			s.Pod.Spec.Containers = []v1.Container{{Name: "c", Image: image}}
			return refused(t, p, s)
		}
		for _, image := range c.yes {
			if got := judge(image); got != nil {
				t.Errorf("pattern %s does not match %s: %q", c.pattern, image, got)
			}
		}
		for _, image := range c.not {
			if judge(image) == nil {
				t.Errorf("pattern %s matches %s", c.pattern, image)
			}
		}
	}
}

// TestImagesNeverLeaveTheirRegistry: an image that a pattern of one registry allows is pulled from
// that registry, by the library that the runtimes share.
func TestImagesNeverLeaveTheirRegistry(t *testing.T) {
	t.Parallel()
	p := edge(t, `images: ["registry.local/*"]`)
	rapid.Check(t, func(rt *rapid.T) {
		image := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"registry.local", "registry", ".local", "/", ":", "@", "evil.com", "a", "5000", ".", "-", "*", sum, "%2f", "\\", " ", "?"}), 1, 7).Draw(rt, "parts"), "")
		s := podOf(t, "spec: {}")
		s.Pod.Spec.Containers = []v1.Container{{Name: "c", Image: image}}
		if refused(t, p, s) != nil {
			return
		}
		named, err := reference.ParseDockerRef(image)
		if err != nil || reference.Domain(named) != "registry.local" {
			rt.Errorf("%q is allowed: %v, %v", image, named, err)
		}
	})
}
