package image

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/kubernetes/pkg/util/parsers"
	"pgregory.net/rapid"
)

// TestC_1_39_5_LookupIsTheKubelets compares with the kubelet's own keyring.
//
// Shows: C-1.39.5
func TestC_1_39_5_LookupIsTheKubelets(t *testing.T) {
	klog.SetLogger(logr.Discard())
	host := rapid.SampledFrom([]string{"r.io", "a.r.io", "*.io", "*.r.io", "a.*", "r.io:5000", "*:5000", "*", "127.0.0.1:5000", "127.*.*.1:5000", "[::1]:5000",
		"docker.io", "index.docker.io", "registry-1.docker.io", "a.[b-", "localhost", "localhost:1", "q?.io", "R.io"})
	path := rapid.SampledFrom([]string{"", "/", "/v1/", "/v2/", "/v1", "/team", "/team/app", "/te", "/library", "/library/web", "/v2/team", "/te%61m", "?x", "#y"})
	scheme := rapid.SampledFrom([]string{"", "https://", "http://", "ftp://"})
	images := rapid.SampledFrom([]string{"web", "library/web", "docker.io/web", "index.docker.io/team/web", "r.io/team/app:1", "r.io/team/app2", "a.r.io/team/app", "r.io:5000/team",
		"127.0.0.1:5000/x", "[::1]:5000/x", "localhost/team/a", "localhost:1/a", "qa.io/team", "team/app@sha256:" + strings.Repeat("0", 64)})
	rapid.Check(t, func(t *rapid.T) {
		image := images.Draw(t, "image")
		n, err := parse(image)
		if err != nil {
			t.Fatal(err)
		}
		repo, tag, digest, err := parsers.ParseImageName(image)
		if err != nil || repo != n.repo || digest == "" && !strings.HasSuffix(n.image, ":"+tag) {
			t.Fatalf("%s: %+v, the kubelet: %s %s %s %v", image, n, repo, tag, digest, err)
		}
		var mine ring
		theirs := &credentialprovider.BasicDockerKeyring{}
		for i := range rapid.IntRange(1, 6).Draw(t, "configurations") {
			where := scheme.Draw(t, "scheme") + host.Draw(t, "host") + path.Draw(t, "path")
			js := fmt.Appendf(nil, `{"auths":{%q:{"username":"u%d","password":"p"}}}`, where, i)
			l, err := readLogins(js, false)
			if err != nil {
				t.Fatal(err)
			}
			mine.add(l, nil)
			var config credentialprovider.DockerConfigJSON
			if err := json.Unmarshal(js, &config); err != nil {
				t.Fatal(err)
			}
			theirs.Add(nil, config.Auths)
		}
		var got, want []string
		for _, c := range mine.lookup(n) {
			got = append(got, c.user)
		}
		found, _ := theirs.Lookup(repo)
		if n.registry == "localhost" && len(got) == 0 {
			return // the kubelet uses Docker Hub's credentials for localhost
		}
		for _, c := range found {
			want = append(want, c.Username)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%s: %s\n%+v", image, d, mine)
		}
	})
}

// FuzzLogins reads arbitrary content of a pull secret.
func FuzzLogins(f *testing.F) {
	for _, s := range []string{`{"auths":{"r.io":{"auth":"bjox"}}}`, `{"r.io":{"auth":"bjox=="}}`, `{"auths":{"r.io":{"auth":" bjox "}}}`, `{"auths":null}`, `[]`, `{"auths":{"r.io":null}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, js []byte) {
		for _, old := range []bool{false, true} {
			l, err := readLogins(js, old)
			var want credentialprovider.DockerConfig
			var oracle error
			if old {
				oracle = json.Unmarshal(js, &want)
			} else {
				var outer credentialprovider.DockerConfigJSON
				oracle = json.Unmarshal(js, &outer)
				want = outer.Auths
			}
			if err != nil {
				if err.Error() != errMalformed.Error() {
					t.Errorf("an error that says what it read: %v", err)
				}
				continue
			}
			if oracle != nil {
				continue // a field that this package ignores is wrong
			}
			for where, c := range want {
				if l[where] != (login{c.Username, c.Password}) {
					t.Errorf("%q: %v, the kubelet: %v", where, l[where], c)
				}
			}
			var r ring
			r.add(l, nil)
			r.lookup(name{repo: "r.io/app", registry: "r.io"})
		}
	})
}
