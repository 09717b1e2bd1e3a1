package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/activity"
)

// Providers are the node's credential providers: programs that return the credentials of
// images (C-1.39.5).
type Providers struct {
	all []*provider
}

// provider is one of them, as the kubelet's CredentialProviderConfig describes it.
type provider struct {
	Name                 string           `json:"name"`
	MatchImages          []string         `json:"matchImages"`
	DefaultCacheDuration *metav1.Duration `json:"defaultCacheDuration"`
	APIVersion           string           `json:"apiVersion"`
	Args                 []string         `json:"args"`
	Env                  []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	TokenAttributes any `json:"tokenAttributes"`

	program string

	mu    sync.Mutex
	cache map[string]answer        // by repository or registry, or under everything
	calls map[string]*providerCall // the running ones, by repository
}

// answer is the answer of a provider, with its expiry.
type answer struct {
	logins logins
	until  time.Time
}

// providerCall is a running call of a provider, whose result other pods can share.
type providerCall struct {
	done   chan struct{} // closed when the other fields are set
	logins logins
	err    error
}

// everything is the key in the cache of an answer that is for all images.
const everything = "*"

// protocol is the API group of the messages.
const protocol = "credentialprovider.kubelet.k8s.io/"

// LoadProviders reads a CredentialProviderConfig of the kubelet, or a directory of them. The
// programs are in dir.
func LoadProviders(config, dir string) (*Providers, error) {
	files := []string{config}
	if info, err := os.Stat(config); err != nil {
		return nil, err
	} else if info.IsDir() {
		if files, err = configFiles(config); err != nil {
			return nil, err
		}
	}
	var p Providers
	for _, file := range files {
		text, err := readTrusted(file)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		var c struct {
			metav1.TypeMeta `json:",inline"`
			Providers       []*provider `json:"providers"`
		}
		if err := yaml.UnmarshalStrict(text, &c); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		if c.Kind != "CredentialProviderConfig" || !strings.HasPrefix(c.APIVersion, "kubelet.config.k8s.io/v1") {
			return nil, fmt.Errorf("read %s: not a CredentialProviderConfig of kubelet.config.k8s.io/v1", file)
		}
		for _, one := range c.Providers {
			if one == nil {
				return nil, fmt.Errorf("read %s: a provider is empty", file)
			}
			if slices.ContainsFunc(p.all, func(o *provider) bool { return o.Name == one.Name }) {
				return nil, fmt.Errorf("read %s: provider %q is listed twice", file, one.Name)
			}
			if err := one.check(dir); err != nil {
				return nil, fmt.Errorf("read %s: provider %q: %w", file, one.Name, err)
			}
			p.all = append(p.all, one)
		}
	}
	if len(p.all) == 0 {
		return nil, fmt.Errorf("read %s: no provider in it", config)
	}
	return &p, nil
}

func configFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // in order
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".json" || ext == ".yaml" || ext == ".yml") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// check returns an error if the configuration of a provider is invalid. It sets p.program.
func (p *provider) check(dir string) error {
	if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ \x00") {
		return errors.New("its name is not a file name")
	}
	if version, ok := strings.CutPrefix(p.APIVersion, protocol); !ok || !slices.Contains([]string{"v1", "v1beta1", "v1alpha1"}, version) {
		return fmt.Errorf("apiVersion %q is not %sv1", p.APIVersion, protocol)
	}
	if len(p.MatchImages) == 0 {
		return errors.New("matchImages is empty")
	}
	for _, m := range p.MatchImages {
		if _, err := url.Parse("https://" + m); err != nil {
			return fmt.Errorf("matchImages: %q is not an image pattern", m)
		}
	}
	if p.DefaultCacheDuration == nil || p.DefaultCacheDuration.Duration < 0 {
		return errors.New("defaultCacheDuration is missing or negative")
	}
	if p.TokenAttributes != nil {
		return errors.New("tokenAttributes is not supported: nodectl gives providers no service account tokens")
	}
	p.program = filepath.Join(dir, p.Name)
	p.cache, p.calls = map[string]answer{}, map[string]*providerCall{}
	return p.executable()
}

func (p *provider) executable() error {
	info, err := os.Stat(p.program)
	if err != nil {
		return err
	}
	if err := trusted(info); err != nil {
		return fmt.Errorf("%s: %w", p.program, err)
	}
	if info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s: it is not executable", p.program)
	}
	return nil
}

// lookup returns the credentials for an image from the providers that match it. It logs the error
// of a provider and uses the others.
func (p *Providers) lookup(ctx context.Context, n name, log *slog.Logger) []credential {
	if p == nil {
		return nil
	}
	var r ring
	for _, one := range p.all {
		if !slices.ContainsFunc(one.MatchImages, func(m string) bool { return matches(m, n.repo) }) {
			continue
		}
		l, err := one.get(ctx, n)
		if err != nil {
			log.Warn("Credential provider failed", "provider", one.Name, "image", n.repo, "error", err)
			continue
		}
		r.add(l, nil)
	}
	return r.lookup(n)
}

// get returns the logins of a provider from the cache, from a running call of another pod, or from
// a new call.
func (p *provider) get(ctx context.Context, n name) (logins, error) {
	for {
		p.mu.Lock()
		for _, key := range []string{n.repo, n.registry, everything} {
			if a, ok := p.cache[key]; ok && time.Now().Before(a.until) {
				p.mu.Unlock()
				return a.logins, nil
			}
		}
		if c := p.calls[n.repo]; c != nil {
			p.mu.Unlock()
			select {
			case <-c.done:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if errors.Is(c.err, errPullCanceled) {
				continue
			}
			return c.logins, c.err
		}
		c := &providerCall{done: make(chan struct{})}
		p.calls[n.repo] = c
		p.mu.Unlock()
		c.logins, c.err = p.call(ctx, n)
		p.mu.Lock()
		delete(p.calls, n.repo)
		p.mu.Unlock()
		close(c.done)
		return c.logins, c.err
	}
}

// errPullCanceled is the error of a call that ended because the pod that made it stopped waiting.
// Another pod that waited for it calls again.
var errPullCanceled = errors.New("the image pull was canceled")

// call runs the program and caches its answer for as long as it is valid.
func (p *provider) call(ctx context.Context, n name) (logins, error) {
	out, err := p.run(ctx, n.repo)
	if err != nil {
		return nil, err
	}
	var a struct {
		metav1.TypeMeta `json:",inline"`
		CacheKeyType    string           `json:"cacheKeyType"`
		CacheDuration   *metav1.Duration `json:"cacheDuration"`
		Auth            map[string]struct {
			Username string `json:"username"`
			Password string `json:"password"`
		} `json:"auth"`
	}
	if json.Unmarshal(out, &a) != nil { // the error of Unmarshal may repeat credentials
		return nil, errors.New("its answer is not JSON of the credential provider protocol")
	}
	if a.Kind != "CredentialProviderResponse" || a.APIVersion != p.APIVersion {
		return nil, errors.New("its answer is not a CredentialProviderResponse of " + p.APIVersion)
	}
	key, ok := map[string]string{"Image": n.repo, "Registry": n.registry, "Global": everything}[a.CacheKeyType]
	if !ok {
		return nil, errors.New("its answer has no valid cacheKeyType")
	}
	l := make(logins, len(a.Auth))
	for where, c := range a.Auth {
		l[where] = login{c.Username, c.Password}
	}
	p.keep(key, l, cmp.Or(a.CacheDuration, p.DefaultCacheDuration).Duration)
	return l, nil
}

// keep caches an answer, and removes expired ones.
func (p *provider) keep(key string, l logins, holds time.Duration) {
	if holds <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for k, a := range p.cache {
		if !now.Before(a.until) {
			delete(p.cache, k)
		}
	}
	p.cache[key] = answer{l, now.Add(holds)}
}

// providerLimit is how long a call of a provider may take, as in the kubelet.
const providerLimit = time.Minute

// run calls the program for one repository. Its standard error is discarded: it may contain
// credentials.
func (p *provider) run(ctx context.Context, repo string) ([]byte, error) {
	if err := p.executable(); err != nil {
		return nil, err
	}
	question, err := json.Marshal(struct {
		metav1.TypeMeta `json:",inline"`
		Image           string `json:"image"`
	}{metav1.TypeMeta{Kind: "CredentialProviderRequest", APIVersion: p.APIVersion}, repo})
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, providerLimit)
	defer cancel()
	defer activity.Begin(ctx, activity.Call{Kind: activity.Program, Name: "credential provider " + p.Name, Target: repo, Limit: time.Now().Add(providerLimit)})()
	cmd := exec.CommandContext(within, p.program, p.Args...)
	out := &bounded{stop: cancel}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(question), out
	cmd.Env = os.Environ()
	for _, e := range p.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value) // the last value of a name counts
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to kill its child processes too
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	switch {
	case out.over:
		return nil, fmt.Errorf("its answer is larger than %d bytes", maxBytes)
	case ctx.Err() != nil:
		return nil, errPullCanceled
	case within.Err() != nil:
		return nil, fmt.Errorf("it did not answer within %s", providerLimit)
	case err != nil:
		return nil, fmt.Errorf("run %s: %w", p.program, err)
	}
	return out.b, nil
}

// bounded is a buffer with a limit. It does not embed bytes.Buffer, whose ReadFrom has no
// limit.
type bounded struct {
	b    []byte
	stop func()
	over bool
}

func (w *bounded) Write(p []byte) (int, error) {
	if w.over || len(w.b)+len(p) > maxBytes {
		w.over = true
		w.stop()
		return 0, errors.New("too much")
	}
	w.b = append(w.b, p...)
	return len(p), nil
}
