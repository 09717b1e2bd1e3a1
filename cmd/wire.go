package cmd

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/file"
	sourcehttp "github.com/nodectl/nodectl/pkg/source/http"
	"github.com/nodectl/nodectl/pkg/source/stdin"
)

// commands are all of nodectl's.
func (p *program) commands() []*cobra.Command {
	return []*cobra.Command{
		p.mergeCommand(),
		p.watchCommand(),
		p.serveCommand(),
		p.runonceCommand(),
		p.getCommand(),
		p.runtimeCommand(),
		p.configCommand(),
		p.completionCommand(),
		p.versionCommand(),
		p.genCommand(),
	}
}

// podConfig returns what reads the configured sources, each -f a layer.
func (p *program) podConfig(mode podconfig.Mode, kept []*pod.Spec, log *slog.Logger) (*podconfig.PodConfig, error) {
	sources, err := p.sources(log)
	if err != nil {
		return nil, err
	}
	return podconfig.New(podconfig.Config{Sources: sources, Mode: mode, Kept: kept, Log: log}), nil
}

// sources returns the layers in order; none configured is the default directory.
func (p *program) sources(log *slog.Logger) ([]source.Source, error) {
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
			s, err := p.httpSource(name, header, log)
			if err != nil {
				return nil, failed(exitUsage, fmt.Errorf("--filename: %w", err))
			}
			all = append(all, s)
		default:
			all = append(all, file.New(file.Config{
				Path: name, Recursive: p.cfg.Recursive, CheckFrequency: p.cfg.FileCheckFrequency, Parse: p.parser("file", name), Log: log,
			}))
		}
	}
	return all, nil
}

// sourceNames returns what -f names, or the default directory.
func (p *program) sourceNames() []string {
	if len(p.cfg.Filename) == 0 {
		return []string{config.DefaultManifests}
	}
	return p.cfg.Filename
}

// httpSource returns the source of a URL. Its pods are said to come from the
// URL without the secrets in it.
func (p *program) httpSource(url string, header http.Header, log *slog.Logger) (source.Source, error) {
	var parse func([]byte, string) (source.File, []pod.Problem)
	s, err := sourcehttp.New(sourcehttp.Config{
		URL: url, Header: header, CheckFrequency: p.cfg.HTTPCheckFrequency, Log: log,
		UserAgent: "nodectl/" + readVersion().Version,
		Parse:     func(data []byte, file string) (source.File, []pod.Problem) { return parse(data, file) },
	})
	if err != nil {
		return nil, err
	}
	parse = p.parser("http", strings.TrimPrefix(s.Name(), "http:"))
	return s, nil
}

// parser returns how the manifests of one layer are read.
func (p *program) parser(kind, location string) func([]byte, string) (source.File, []pod.Problem) {
	return func(data []byte, file string) (source.File, []pod.Problem) {
		return manifest.Parse(data, manifest.Options{
			Node: p.cfg.NodeName, Source: kind, Location: location, File: file, Validate: p.cfg.Validate, Static: true,
		})
	}
}

// absolute makes the paths of sources absolute: what acts writes down which
// source a pod came from, and that must not depend on where it was called.
func (p *program) absolute() {
	for i, name := range p.cfg.Filename {
		if name == "-" || config.IsURL(name) {
			continue
		}
		if abs, err := filepath.Abs(name); err == nil {
			p.cfg.Filename[i] = abs
			p.given = append(p.given, [2]string{abs, name})
		}
	}
}

// asGiven returns a path as the person wrote it, where absolute has made it
// absolute: that is what messages show.
func (p *program) asGiven(path string) string {
	for _, g := range p.given {
		if rel, err := filepath.Rel(g[0], path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(g[1], rel)
		}
	}
	return path
}

// headers returns what is sent with every URL: --manifest-url-header, and the
// lines of --manifest-url-header-file. Values never reach an error.
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

// observe connects to the runtime that serve would use and that answers now. It
// starts nothing. An error names what was tried.
func (p *program) observe(ctx context.Context) (*cri.Runtime, error) {
	found, err := p.discover(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	endpoint := found.Endpoint
	if endpoint == "" { // what is left is the bundled one, where an agent has started it
		endpoint = p.bundled().Endpoint()
	}
	r, dialled := p.dial(endpoint)
	if dialled != nil {
		return nil, dialled
	}
	ask, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	_, silent := r.Ready(ask)
	switch {
	case silent == nil:
		return r, nil
	case err == nil && found.Kind == "explicit":
		err = silent
	case err == nil:
		err = &bundle.NoRuntimeError{Tried: append(found.Tried, "bundled runtime: not running")}
	}
	_ = r.Close()
	return nil, err
}

// bundled returns the runtime nodectl brings along; it starts nothing.
func (p *program) bundled() *bundle.Runtime {
	return bundle.New(bundle.Config{RootDir: p.cfg.RootDir, Subnet: p.cfg.PodCIDR, Log: p.logger(slog.LevelWarn)})
}

func (p *program) dial(endpoint string) (*cri.Runtime, error) {
	return cri.Dial(cri.Config{
		Endpoint: endpoint, Node: p.cfg.NodeName, PodLogsDir: p.cfg.PodLogsDir,
		CgroupParent: strings.TrimSuffix(p.cfg.CgroupRoot, "/"), HostIPs: hostIPs(), Log: p.logger(slog.LevelWarn),
	})
}

// keptSpecs returns what the agent wrote down of its pods, with origins in the
// words of this command line's layers.
func (p *program) keptSpecs(kept []pod.Record) []*pod.Spec {
	var specs []*pod.Spec
	for _, r := range kept {
		if r.Want != nil {
			spec := *r.Want
			spec.Origin = p.here(spec.Origin)
			specs = append(specs, &spec)
		}
	}
	return specs
}

// here puts an origin as serve and runonce write it down, with absolute paths,
// into the words of the layers given to this command.
func (p *program) here(o pod.Origin) pod.Origin {
	for _, name := range p.sourceNames() {
		abs, err := filepath.Abs(name)
		if err != nil || o.Source != "file" || o.Location != abs {
			continue
		}
		o.Location = name
		if rel, err := filepath.Rel(abs, o.File); err == nil && o.File != "" {
			o.File = filepath.Join(name, rel)
		}
		return o
	}
	return o
}

// kept reads what the agent kept of its pods.
func (p *program) kept() ([]pod.Record, error) {
	return record.Look(p.cfg.RootDir)
}
