package image

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// credential is one login for a registry, and where it comes from.
type credential struct {
	user, password string
	secret         *secretRef // the pull secret that it is from; nil if it is the node's, for every pod
}

// secretRef names a pull secret.
type secretRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// logins maps a registry, or a path in it, to its login.
type logins map[string]login

// login is what Docker's configuration files hold for one registry.
type login struct{ user, password string }

// UnmarshalJSON reads Docker's two forms: separate fields, or base64(user:password).
func (l *login) UnmarshalJSON(js []byte) error {
	var raw struct {
		Username, Password, Auth string
	}
	if err := json.Unmarshal(js, &raw); err != nil {
		return errMalformed
	}
	l.user, l.password = raw.Username, raw.Password
	if raw.Auth == "" {
		return nil
	}
	plain, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(raw.Auth), "="))
	user, password, ok := strings.Cut(string(plain), ":")
	if err != nil || !ok {
		return errMalformed
	}
	l.user, l.password = user, password
	return nil
}

// errMalformed replaces errors that would repeat the content of a credential file.
var errMalformed = errors.New("not a Docker configuration")

// readLogins reads a config.json, or a .dockercfg, which has no outer object.
func readLogins(js []byte, old bool) (logins, error) {
	var l logins
	var err error
	if old {
		err = json.Unmarshal(js, &l)
	} else {
		var outer struct{ Auths logins }
		err = json.Unmarshal(js, &outer)
		l = outer.Auths
	}
	if err != nil {
		return nil, errMalformed
	}
	return l, nil
}

// ring is a list of credentials in the order in which they are tried: more specific ones first.
type ring []keyed

// keyed is a credential and the images that it is for.
type keyed struct {
	pattern string // a host that may contain globs, and the beginning of a path
	credential
}

func (r *ring) add(l logins, secret *secretRef) {
	for _, where := range slices.Sorted(maps.Keys(l)) {
		full := where
		if !strings.HasPrefix(where, "https://") && !strings.HasPrefix(where, "http://") {
			full = "https://" + where
		}
		u, err := url.Parse(full)
		if err != nil {
			continue
		}
		p := u.Path
		if strings.HasPrefix(p, "/v1/") || strings.HasPrefix(p, "/v2/") { // the registry itself
			p = p[len("/v1"):]
		}
		if p == "/" {
			p = ""
		}
		*r = append(*r, keyed{u.Host + p, credential{l[where].user, l[where].password, secret}})
	}
	slices.SortStableFunc(*r, func(a, b keyed) int { return cmp.Compare(b.pattern, a.pattern) })
}

// dockerHub is the name of docker.io in Docker's own files.
const dockerHub = "index.docker.io"

// lookup returns the credentials whose pattern matches a repository, as the kubelet's
// keyring does (C-1.39.5).
func (r ring) lookup(n name) []credential {
	var found, hub []credential
	for _, k := range r {
		switch {
		case matches(k.pattern, n.repo):
			found = append(found, k.credential)
		case k.pattern == dockerHub:
			hub = append(hub, k.credential)
		}
	}
	if len(found) == 0 && n.registry == "docker.io" {
		return hub
	}
	return found
}

// matches reports whether a pattern matches a repository. Each part of the host must match, where
// the pattern may have globs. The ports must be equal, and the path must begin with the pattern's.
func matches(pattern, repo string) bool {
	p, err := url.Parse("https://" + pattern)
	if err != nil {
		return false
	}
	t, err := url.Parse("https://" + repo)
	if err != nil {
		return false
	}
	globs, port := hostParts(p.Host)
	parts, at := hostParts(t.Host)
	if port != at || len(globs) != len(parts) || !strings.HasPrefix(t.Path, p.Path) {
		return false
	}
	for i, glob := range globs {
		if ok, err := path.Match(glob, parts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func hostParts(hostport string) (parts []string, port string) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		host, port = hostport, ""
	}
	return strings.Split(host, "."), port
}

// secretCredentials returns the credentials for an image from the pod's pull secrets.
func (p *Puller) secretCredentials(want *pod.Spec, n name) []credential {
	var r ring
	for _, ref := range want.Pod.Spec.ImagePullSecrets {
		s := want.Data.Secret(ref.Name)
		if s == nil {
			continue // pull secrets are optional
		}
		key, old := v1.DockerConfigJsonKey, false
		switch s.Type {
		case v1.SecretTypeDockerConfigJson:
		case v1.SecretTypeDockercfg:
			key, old = v1.DockerConfigKey, true
		default:
			continue
		}
		if len(s.Data[key]) == 0 {
			continue
		}
		l, err := readLogins(s.Data[key], old)
		if err != nil {
			p.cfg.Log.Warn("Ignoring pull secret", "pod", want.Key.String(), "secret", ref.Name, "error", err)
			continue
		}
		r.add(l, &secretRef{Namespace: want.Namespace, Name: ref.Name, UID: serverUID(want.Data.Object(pod.KindSecret, ref.Name), s)})
	}
	return r.lookup(n)
}

// serverUID returns the UID that an API server gave a Secret, "" for a Secret of any other
// source: its author could have copied the UID of another one.
func serverUID(o *pod.Object, s *v1.Secret) string {
	if !o.Origin.FromAPI() {
		return ""
	}
	return string(s.UID)
}

// credentials returns the credentials for an image in the order in which fetch tries them: those of
// the pod's secrets, of the node's Docker configuration, of the node's credential providers. It
// returns none if the image is pulled without credentials.
func (p *Puller) credentials(ctx context.Context, n name, secrets []credential) []credential {
	all := slices.Clone(secrets)
	all = append(all, p.nodeLogins().lookup(n)...)
	all = append(all, p.cfg.Providers.lookup(ctx, n, p.cfg.Log)...)
	var distinct []credential
	for _, c := range all {
		same := func(o credential) bool { return o.user == c.user && o.password == c.password }
		if !slices.ContainsFunc(distinct, same) {
			distinct = append(distinct, c)
		}
	}
	return distinct
}

// DockerConfigs returns the files in which the kubelet looks for the node's Docker configuration,
// in its order. It leaves out the working directory, which depends on how the agent is started.
// home may be "".
func DockerConfigs(rootDir, home string) []string {
	var all []string
	for _, dir := range []string{rootDir, homeDir(home, ".docker"), "/.docker"} {
		if dir != "" {
			all = append(all, filepath.Join(dir, "config.json"))
		}
	}
	for _, dir := range []string{rootDir, homeDir(home, ""), "/"} {
		if dir != "" {
			all = append(all, filepath.Join(dir, ".dockercfg"))
		}
	}
	return all
}

func homeDir(home, below string) string {
	if home == "" {
		return ""
	}
	return filepath.Join(home, below)
}

// nodeLogins reads the first usable file of the node's Docker configuration, on each call again.
func (p *Puller) nodeLogins() ring {
	var r ring
	for _, file := range p.cfg.DockerConfigs {
		js, err := readTrusted(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var l logins
		if err == nil {
			l, err = readLogins(js, filepath.Base(file) == ".dockercfg")
		}
		if err != nil {
			p.cfg.Log.Warn("Ignoring Docker configuration", "file", file, "error", err)
			continue
		}
		r.add(l, nil)
		break
	}
	return r
}
