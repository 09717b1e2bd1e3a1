package cmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/apiserver"
	"github.com/nodectl/nodectl/pkg/source/etcd"
	"github.com/nodectl/nodectl/pkg/source/file"
	sourcehttp "github.com/nodectl/nodectl/pkg/source/http"
	"github.com/nodectl/nodectl/pkg/source/stdin"
)

// reading configures how a command reads its sources.
type reading struct {
	mode podconfig.Mode
	// kept and restored are the agent's records of running pods, and the last good set of
	// each layer.
	kept     []*pod.Spec
	restored map[string]podconfig.Restored
	// permissions decides about manifests that others can write to.
	permissions file.Permissions
	// lasting reads all sources; without it the API server and etcd are left out, which
	// must be watched.
	lasting bool
	// acts means that the command runs pods: it also reads the API server's objects that
	// their environments need.
	acts bool
	log  *slog.Logger
}

// podConfig returns the PodConfig of the configured sources: each -f is a layer, then
// etcd, then the API server.
func (p *program) podConfig(r reading) (*podconfig.PodConfig, error) {
	policy, err := p.sourcePolicy()
	if err != nil {
		return nil, err
	}
	sources, err := p.sources(r)
	if err != nil {
		return nil, err
	}
	p.policy = policy
	return podconfig.New(podconfig.Config{Sources: held(sources, policy), Visible: visible(policy), Mode: r.mode, Kept: r.kept, Restored: heldSets(r.restored, policy), Log: r.log}), nil
}

// sources returns the layers in order.
func (p *program) sources(r reading) ([]source.Source, error) {
	var header http.Header
	var all []source.Source
	for _, name := range p.sourceNames() {
		switch {
		case name == "-":
			all = append(all, stdin.New(p.in, p.parser("stdin", name), 0))
		case config.IsURL(name):
			if header == nil {
				var err error
				if header, err = p.headers(); err != nil {
					return nil, err
				}
			}
			s, err := p.httpSource(name, header, r.log)
			if err != nil {
				return nil, failed(exitUsage, fmt.Errorf("--filename: %w", err), insecureHint(err)...)
			}
			all = append(all, s)
		default:
			all = append(all, file.New(file.Config{
				Path: name, Recursive: p.cfg.Recursive, CheckFrequency: p.cfg.FileCheckFrequency, Parse: p.parser("file", name), Log: r.log,
				Permissions: r.permissions, Owners: trustedOwners(p.env),
			}))
		}
	}
	if !r.lasting {
		return all, nil
	}
	if len(p.cfg.EtcdEndpoints) > 0 {
		s, err := p.etcdSource(r.log)
		if err != nil {
			return nil, failed(exitUsage, fmt.Errorf("--etcd-endpoints: %w", err), insecureHint(err)...)
		}
		all = append(all, s)
	}
	if p.cfg.Kubeconfig != "" {
		s, err := p.apiSource(r)
		if err != nil {
			return nil, failed(exitUsage, fmt.Errorf("--kubeconfig: %w", err))
		}
		all = append(all, s)
	}
	return all, nil
}

// insecureHint returns the hint for a source that others can change in transit.
func insecureHint(err error) []string {
	if !errors.Is(err, source.ErrUnprotected) {
		return nil
	}
	return []string{"use https://, or set --insecure-sources on a network that you trust"}
}

// sourceNames returns the names of -f, or the default directory if no source is
// configured.
func (p *program) sourceNames() []string {
	if len(p.cfg.Filename)+len(p.cfg.EtcdEndpoints) == 0 && p.cfg.Kubeconfig == "" {
		return []string{config.DefaultManifests}
	}
	return p.cfg.Filename
}

// trustedOwners returns the users that may own manifests beside root: the caller, and the
// user that called sudo.
func trustedOwners(env func(string) string) []int {
	owners := []int{os.Getuid()}
	if uid, err := strconv.Atoi(env("SUDO_UID")); err == nil && os.Getuid() == 0 {
		owners = append(owners, uid)
	}
	return owners
}

// httpSource returns the source of a URL. The origin of its pods is the URL without
// secrets.
func (p *program) httpSource(url string, header http.Header, log *slog.Logger) (source.Source, error) {
	var parse func([]byte, string) (source.File, []pod.Problem)
	s, err := sourcehttp.New(sourcehttp.Config{
		URL: url, Header: header, CheckFrequency: p.cfg.HTTPCheckFrequency, Log: log,
		CAFile: p.cfg.ManifestURLCACert, CertFile: p.cfg.ManifestURLCert, KeyFile: p.cfg.ManifestURLKey,
		UserAgent: "nodectl/" + readVersion().Version, Insecure: p.cfg.InsecureSources,
		Parse: func(data []byte, file string) (source.File, []pod.Problem) { return parse(data, file) },
	})
	if err != nil {
		return nil, err
	}
	parse = p.parser("http", strings.TrimPrefix(s.Name(), "http:"))
	return s, nil
}

// etcdSource returns the source of the etcd.
func (p *program) etcdSource(log *slog.Logger) (source.Source, error) {
	return etcd.New(etcd.Config{
		Endpoints: p.cfg.EtcdEndpoints, Prefix: p.cfg.EtcdPrefix,
		CAFile: p.cfg.EtcdCACert, CertFile: p.cfg.EtcdCert, KeyFile: p.cfg.EtcdKey,
		Username: p.cfg.EtcdUser, PasswordFile: p.cfg.EtcdPasswordFile,
		Insecure: p.cfg.InsecureSources,
		Parse:    p.parser("etcd", p.cfg.EtcdPrefix), Log: log,
	})
}

// apiSource returns the source of the API server, and sets apiReader.
func (p *program) apiSource(r reading) (*apiserver.Source, error) {
	client := p.apiClient
	if client == nil {
		var err error
		client, err = apiclient.Open(apiclient.Config{File: p.cfg.Kubeconfig, UserAgent: "nodectl/" + readVersion().Version, Log: r.log})
		if err != nil {
			return nil, err
		}
	}
	p.apiReader = apiclient.NewReader(apiclient.ReaderConfig{
		Client: client, Shared: p.apiClient != nil, ServicesOptional: p.cfg.OfflineStart == pod.SourceAPI, Log: r.log,
	})
	return apiserver.New(apiserver.Config{
		Kubeconfig: p.cfg.Kubeconfig, Reader: p.apiReader, Seen: p.seen, Node: p.cfg.NodeName, Services: r.acts, Log: r.log,
		Spec: func(o *v1.Pod, file string) (*pod.Spec, []pod.Problem) {
			spec, problems := manifest.FromAPI(o, manifest.Options{Node: p.cfg.NodeName, Source: pod.SourceAPI, Location: p.cfg.Kubeconfig, File: file})
			if spec == nil && p.rejected != nil {
				p.rejected(o, problems)
			}
			return spec, problems
		},
	})
}

// runtimeClass returns the handler of a RuntimeClass of the API server.
func (p *program) runtimeClass(ctx context.Context, name string) (handler string, ok bool, err error) {
	if p.apiReader == nil {
		return "", false, nil
	}
	return p.apiReader.RuntimeHandler(ctx, name)
}

// services returns a lister of the API server's services; nil without an API server.
func (p *program) services() func(namespace string) ([]*v1.Service, error) {
	if p.apiReader == nil {
		return nil
	}
	return p.apiReader.Services
}

// parser returns the parser of one layer's manifests.
func (p *program) parser(kind, location string) func([]byte, string) (source.File, []pod.Problem) {
	return func(data []byte, file string) (source.File, []pod.Problem) {
		return manifest.Parse(data, manifest.Options{
			Node: p.cfg.NodeName, Source: kind, Location: location, File: file, Validate: p.cfg.Validate, Static: true,
		})
	}
}

// absolute makes the paths of sources absolute: records name the source of each pod, which
// must not depend on the working directory.
func (p *program) absolute() {
	for i, name := range p.cfg.Filename {
		if name == "-" || config.IsURL(name) {
			continue
		}
		p.cfg.Filename[i] = p.makeAbsolute(name)
	}
	if p.cfg.Kubeconfig != "" {
		p.cfg.Kubeconfig = p.makeAbsolute(p.cfg.Kubeconfig)
	}
}

func (p *program) makeAbsolute(name string) string {
	abs, err := filepath.Abs(name)
	if err != nil {
		return name
	}
	p.given = append(p.given, [2]string{abs, name})
	return abs
}

// asGiven returns a path as the user wrote it, for messages: it undoes absolute.
func (p *program) asGiven(path string) string {
	for _, g := range p.given {
		if rest, ok := strings.CutPrefix(path, g[0]+"#"); ok { // a pod of an API server
			return g[1] + "#" + rest
		}
		if rel, err := filepath.Rel(g[0], path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(g[1], rel)
		}
	}
	return path
}

// here replaces the absolute paths that serve and runonce record in an origin by the
// paths given to this command.
func (p *program) here(o pod.Origin) pod.Origin {
	names := p.sourceNames()
	switch o.Source {
	case "file":
	case pod.SourceAPI:
		names = []string{p.cfg.Kubeconfig}
	default:
		return o
	}
	for _, name := range names {
		abs, err := filepath.Abs(name)
		if err != nil || o.Location != abs {
			continue
		}
		o.Location = name
		if rest, ok := strings.CutPrefix(o.File, abs+"#"); ok {
			o.File = name + "#" + rest
		} else if rel, err := filepath.Rel(abs, o.File); err == nil && o.File != "" {
			o.File = filepath.Join(name, rel)
		}
		return o
	}
	return o
}

// headers returns the headers of requests to URLs: --manifest-url-header, and the lines of
// --manifest-url-header-file. Values never reach an error.
func (p *program) headers() (http.Header, error) {
	cfg := p.cfg
	if path := cfg.ManifestURLHeaderFile; path != "" {
		f, err := os.Open(path)
		if err != nil {
			return nil, failed(exitUsage, fmt.Errorf("--manifest-url-header-file: %w", err))
		}
		defer f.Close()
		lines := config.Config{}
		for scan := bufio.NewScanner(f); scan.Scan(); {
			if line := strings.TrimSpace(scan.Text()); line != "" && !strings.HasPrefix(line, "#") {
				lines.ManifestURLHeader = append(lines.ManifestURLHeader, line)
			}
		}
		if err := lines.CheckHeaders(); err != nil {
			return nil, failed(exitUsage, fmt.Errorf("%s: %s", path, err.Msg))
		}
		cfg.ManifestURLHeader = append(cfg.ManifestURLHeader, lines.ManifestURLHeader...)
	}
	return cfg.Headers(), nil
}
