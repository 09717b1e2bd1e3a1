package image_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/test/suite"
	"github.com/nodectl/nodectl/test/wait"
)

// program writes an executable script.
func program(t *testing.T, dir, name, script string) {
	t.Helper()
	syscall.ForkLock.RLock() // a forked child would hold it open for writing
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
}

// says is a script that records the call, and answers.
func says(dir, key, duration, auth string) string {
	if duration != "" {
		duration = `"cacheDuration":"` + duration + `",`
	}
	return fmt.Sprintf(`cat >>%s/asked; echo >>%s/asked; echo "$GREETING $1" >>%s/env; echo c4nary >&2
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":%q,%s"auth":%s}'
`, dir, dir, dir, key, duration, auth)
}

const oneProvider = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: helper
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.io", "*.io:5000", "other.example/path"]
  defaultCacheDuration: 1h
  args: [one]
  env: [{name: GREETING, value: hello}]
`

// providers loads a configuration whose programs lie in dir.
func providers(t *testing.T, dir, config string) *image.Providers {
	t.Helper()
	file := filepath.Join(dir, "providers.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := image.LoadProviders(file, dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// quick is registries that answer at once: the provider programs take real time.
func quick() *registries {
	r := newRegistries()
	r.took = 0
	return r
}

// Shows: C-1.39.5
func TestC_1_39_5_Providers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key, duration string
		asked         int // of r.io/a:1 r.io/a:2 r.io/b:1 other.io:5000/a:1
	}{
		{"Image", "", 3}, {"Registry", "", 2}, {"Global", "", 1},
		{"Global", "0s", 4}, {"Image", "-1s", 4}, {"Registry", "1h", 2}, {"Wrong", "", 4},
	} {
		t.Run(c.key+" "+c.duration, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program(t, dir, "helper", says(dir, c.key, c.duration, `{"r.io":{"username":"u","password":"c4nary"},"*.io:5000":{"username":"v","password":"w"}}`))
			r := quick()
			m := on(t, r, t.TempDir(), func(cfg *image.Config) { cfg.Providers = providers(t, dir, oneProvider) })
			for _, name := range []string{"r.io/a:1", "r.io/a:2", "r.io/b:1", "other.io:5000/a:1", "open.example/a:1"} {
				if err := m.PullImage(t.Context(), wanted("web", name), "c0"); err != nil {
					t.Error(err)
				}
			}
			want := []string{"r.io/a:1 u:c4nary", "r.io/a:2 u:c4nary", "r.io/b:1 u:c4nary", "other.io:5000/a:1 v:w", "open.example/a:1"}
			if c.key == "Wrong" {
				want = []string{"r.io/a:1", "r.io/a:2", "r.io/b:1", "other.io:5000/a:1", "open.example/a:1"}
			}
			if got := r.allPulls(); !slices.Equal(got, want) {
				t.Errorf("%q", got)
			}
			asked := strings.Fields(read(t, filepath.Join(dir, "asked")))
			first := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"r.io/a"}`
			if len(asked) != c.asked || asked[0] != first {
				t.Errorf("asked %d times, want %d: %q", len(asked), c.asked, asked)
			}
			if env := read(t, filepath.Join(dir, "env")); !strings.HasPrefix(env, "hello one\n") {
				t.Errorf("%q", env)
			}
			m.stop()
			if strings.Contains(m.log.String(), "c4nary") {
				t.Errorf("%s", m.log)
			}
		})
	}
}

// A provider that fails counts as one without credentials, and its output is not logged.
//
// Shows: C-1.39.5
func TestC_1_39_5_BrokenProviders(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"fails":         "echo c4nary; echo c4nary >&2; exit 1",
		"silent":        "",
		"no json":       "echo c4nary",
		"half":          `printf '{"kind":"CredentialProviderResponse","auth":{"r.io":{"password":"c4nary'`,
		"other kind":    `echo '{"kind":"c4nary","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image","auth":{"r.io":{"username":"u","password":"c4nary"}}}'`,
		"other version": `echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1beta1","cacheKeyType":"Image","auth":{"r.io":{"username":"u","password":"c4nary"}}}'`,
		"endless":       "yes c4nary",
		"no image":      `kill -9 $$`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program(t, dir, "helper", script)
			r := quick()
			m := on(t, r, t.TempDir(), func(cfg *image.Config) { cfg.Providers = providers(t, dir, oneProvider) })
			if err := m.PullImage(t.Context(), wanted("web", "r.io/a:1"), "c0"); err != nil {
				t.Error(err)
			}
			m.stop()
			if got := r.allPulls(); !slices.Equal(got, []string{"r.io/a:1"}) {
				t.Errorf("%q", got)
			}
			if log := m.log.String(); strings.Contains(log, "c4nary") || !strings.Contains(log, "Credential provider failed") {
				t.Errorf("%s", log)
			}
		})
	}
}

// Pods that need the same answer wait for one call. When the pod that called leaves, the
// program ends with all its children, and another pod calls.
//
// Shows: C-1.39.5
func TestC_1_39_5_PodsNeedTheSameAnswer_ShareOneCall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "gate")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	program(t, dir, "helper", fmt.Sprintf("echo $$ >>%s/pids\n(read x <%s) \n", dir, fifo)+says(dir, "Image", "0s", `{"r.io":{"username":"u","password":"p"}}`))
	r := quick()
	m := on(t, r, t.TempDir(), func(cfg *image.Config) { cfg.Providers = providers(t, dir, oneProvider) })
	pids := func(n int) []string {
		return wait.Until(t, fmt.Sprintf("%d programs have run", n), func() ([]string, bool) {
			got := strings.Fields(read(t, filepath.Join(dir, "pids")))
			return got, len(got) >= n
		})
	}
	first, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.PullImage(first, wanted("a", "r.io/a:1"), "c0"); !errors.Is(err, context.Canceled) {
			t.Errorf("the pod that was cancelled: %v", err)
		}
	})
	pids(1)
	for i := range 5 {
		wg.Go(func() {
			if err := m.PullImage(t.Context(), wanted(fmt.Sprintf("b%d", i), fmt.Sprintf("r.io/a:%d", i)), "c0"); err != nil {
				t.Error(err)
			}
		})
	}
	leave()
	gone, _ := strconv.Atoi(pids(2)[0])
	wait.True(t, "the program that was left is gone", func() bool { return errors.Is(syscall.Kill(-gone, 0), syscall.ESRCH) })
	open, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.WriteString(strings.Repeat("go\n", 10)); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	got := r.allPulls()
	slices.Sort(got)
	if want := []string{"r.io/a:0 u:p", "r.io/a:1 u:p", "r.io/a:2 u:p", "r.io/a:3 u:p", "r.io/a:4 u:p"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// Shows: C-1.39.5
func TestC_1_39_5_InvalidProviderConfig_IsRefused(t *testing.T) {
	t.Parallel()
	change := func(from, to string) string { return strings.Replace(oneProvider, from, to, 1) }
	for want, config := range map[string]string{
		"its name is not a file name":                                   change("name: helper", "name: ../helper"),
		`provider "..": its name is not a file name`:                    change("name: helper", "name: .."),
		`apiVersion "x/v1" is not credentialprovider.kubelet.k8s.io/v1`: change("credentialprovider.kubelet.k8s.io/v1", "x/v1"),
		"matchImages is empty":                                          change(`["*.io", "*.io:5000", "other.example/path"]`, "[]"),
		"defaultCacheDuration is missing":                               change("  defaultCacheDuration: 1h\n", ""),
		`unknown field "argz"`:                                          change("args:", "argz:"),
		"tokenAttributes is not supported":                              oneProvider + "  tokenAttributes: {serviceAccountTokenAudience: x}\n",
		"not a CredentialProviderConfig":                                change("kind: Cred", "kind: Bred"),
		"no provider in it":                                             "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: []\n",
		"a provider is empty":                                           "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [null]\n",
		"no such file":                                                  change("name: helper", "name: missing"),
		"others can write to it":                                        change("name: helper", "name: open"),
		"it is not executable":                                          change("name: helper", "name: text"),
		"is listed twice":                                               oneProvider + strings.SplitN(oneProvider, "providers:\n", 2)[1],
	} {
		dir := t.TempDir()
		program(t, dir, "helper", "")
		program(t, dir, "open", "")
		program(t, dir, "text", "")
		if err := errors.Join(os.Chmod(filepath.Join(dir, "open"), 0o777), os.Chmod(filepath.Join(dir, "text"), 0o600)); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "c.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := image.LoadProviders(file, dir); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", want, err)
		}
		if err := os.Chmod(file, 0o606); err != nil {
			t.Fatal(err)
		}
		if _, err := image.LoadProviders(file, dir); err == nil || !strings.Contains(err.Error(), "others can write to it") {
			t.Errorf("a configuration that others can write to: %v", err)
		}
	}
}

// A directory's files are read together, in their order; files without the extension of a
// configuration are ignored.
//
// Shows: C-1.39.5
func TestC_1_39_5_ProvidersFromADirectory(t *testing.T) {
	t.Parallel()
	bin, dir := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": oneProvider, "b.json": strings.Replace(oneProvider, "helper", "second", 1), "README": "no configuration",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program(t, bin, "helper", says(bin, "Global", "", `{"r.io":{"username":"u","password":"1"}}`))
	program(t, bin, "second", says(bin, "Global", "", `{"r.io/deep":{"username":"u","password":"2"}}`))
	p, err := image.LoadProviders(dir, bin)
	if err != nil {
		t.Fatal(err)
	}
	r := quick()
	r.lets["r.io/deep/a:1"] = "missing:"
	m := on(t, r, t.TempDir(), func(cfg *image.Config) { cfg.Providers = p })
	_ = m.PullImage(t.Context(), wanted("web", "r.io/deep/a:1"), "c0")
	if got := r.allPulls(); !slices.Equal(got, []string{"r.io/deep/a:1 u:2", "r.io/deep/a:1 u:1"}) {
		t.Errorf("%q", got)
	}
}

// The pod's secrets come first, then the node's file, then its providers; of each the more
// specific first. While there is a credential, no pull is tried without one.
//
// Shows: C-1.39.5
func TestC_1_39_5_OrderOfCredentials(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	program(t, bin, "helper", says(bin, "Global", "", `{"r.io":{"username":"p","password":"1"},"r.io/team/app":{"username":"p","password":"2"}}`))
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(`{"auths":{"https://r.io/v1/":{"auth":"bjox"},"r.io/team":{"auth":"bjoy"},"r.io/other":{"auth":"bjoz"},"*.io":{"auth":"bjo0"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := quick()
	r.lets["r.io/team/app:1"] = "missing:"
	m := on(t, r, t.TempDir(), func(c *image.Config) {
		c.Providers = providers(t, bin, oneProvider)
		c.DockerConfigs = []string{filepath.Join(bin, "nothing"), config}
	})
	old := secret("old", "", "", "", "")
	old.Type, old.Data = v1.SecretTypeDockercfg, map[string][]byte{v1.DockerConfigKey: []byte(`{"r.io":{"auth":"czox"},"R.IO":{"auth":"czo5"}}`)}
	other := secret("opaque", "", "r.io", "s", "8")
	other.Type = v1.SecretTypeOpaque
	missing := secret("missing", "", "r.io", "s", "7")
	want := with(wanted("web", "r.io/team/app:1"), old, secret("new", "", "r.io/team", "s", "2"), secret("same", "", "r.io", "s", "1"), other)
	want.Pod.Spec.ImagePullSecrets = append(want.Pod.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: missing.Name}, v1.LocalObjectReference{})
	err := m.PullImage(t.Context(), want, "c0")
	if err == nil || !strings.HasPrefix(err.Error(), "ErrImagePull: pull image r.io/team/app:1: ") || strings.Contains(err.Error(), ";") {
		t.Errorf("one cause, said once: %v", err)
	}
	if got, want := r.allPulls(), []string{
		"r.io/team/app:1 s:2", "r.io/team/app:1 s:1", "r.io/team/app:1 n:2", "r.io/team/app:1 n:1", "r.io/team/app:1 n:4", "r.io/team/app:1 p:2", "r.io/team/app:1 p:1",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	r.lets["r.io/team/app:1"] = "n:2"
	if err := m.PullImage(t.Context(), want, "c0"); err != nil || len(r.allPulls()) != 7+3 {
		t.Errorf("the third that serves: %v, %q", err, r.allPulls())
	}
}

// The node's file is read on every pull. A file that others can write to, or that would
// block the reader, is skipped, and the next location is used.
//
// Shows: C-1.39.5
func TestC_1_39_5_DockerConfigs(t *testing.T) {
	suite.NeedsRoot(t, "one of the files belongs to another user")
	t.Parallel()
	root, home := t.TempDir(), t.TempDir()
	if got, want := image.DockerConfigs(root, home), []string{
		root + "/config.json", home + "/.docker/config.json", "/.docker/config.json", root + "/.dockercfg", home + "/.dockercfg", "/.dockercfg",
	}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := image.DockerConfigs(root, ""); len(got) != 4 {
		t.Errorf("without a home: %q", got)
	}
	files := []string{filepath.Join(root, "config.json"), filepath.Join(home, ".dockercfg")}
	r := quick()
	m := on(t, r, t.TempDir(), func(c *image.Config) { c.DockerConfigs = files })
	pull := func(what, who string) {
		t.Helper()
		want := wanted("web", "r.io/app:1")
		want.Pod.Spec.Containers[0].ImagePullPolicy = v1.PullAlways
		if err := m.PullImage(t.Context(), want, "c0"); err != nil {
			t.Error(err)
		}
		if got := r.allPulls(); got[len(got)-1] != strings.TrimSpace("r.io/app:1 "+who) {
			t.Errorf("%s: %q", what, got[len(got)-1])
		}
	}
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pull("no file", "")
	write(files[1], `{"r.io":{"auth":"bjox"}}`)
	pull("the old form", "n:1")
	write(files[0], `{"auths":{"r.io":{"auth":"bjoy"}},"credsStore":"desktop"}`)
	pull("the new form", "n:2")
	write(files[0], `{"auths":{"r.io":{"auth":"bjoz"}}}`)
	pull("changed", "n:3")
	write(files[0], `{"auths":{"r.io":{"auth":"c4nary"}}}`)
	pull("malformed", "n:1")
	write(files[0], `{"auths":{"r.io":{}}}`)
	pull("empty", "")
	write(files[0], `{"auths":{"r.io":{"auth":"bjoz"}}}`+strings.Repeat(" ", 1<<20))
	pull("too large", "n:1")
	write(files[0], `{"auths":{"r.io":{"auth":"bjoz"}}}`)
	if err := os.Chmod(files[0], 0o620); err != nil {
		t.Fatal(err)
	}
	pull("others can write", "n:1")
	if err := errors.Join(os.Chmod(files[0], 0o644), os.Chown(files[0], 12345, 0)); err != nil {
		t.Fatal(err)
	}
	pull("other", "n:1")
	if err := errors.Join(os.Remove(files[0]), syscall.Mkfifo(files[0], 0o600)); err != nil {
		t.Fatal(err)
	}
	pull("a FIFO", "n:1")
	m.stop()
	if log := m.log.String(); strings.Contains(log, "c4nary") || strings.Count(log, "Ignoring Docker configuration") != 5 {
		t.Errorf("%s", log)
	}
}
