package readonly

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"os"
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

// Reading configures how an agent or a command reads the sources.
type Reading struct {
	Mode podconfig.Mode
	// Recorded holds the specs in the agent's records of pods, Restored the last good set of each layer.
	Recorded []*pod.Spec
	Restored map[string]podconfig.Restored
	// Expander makes the pods of workloads; nil makes none.
	Expander podconfig.Expander
	// Permissions says how to treat manifests that other users can write.
	Permissions file.Permissions
	// EtcdAndAPI adds the configured etcd and API server to the sources.
	EtcdAndAPI bool
	// API is the API client of an agent. If it is nil, the source has a client of its own, and
	// leaves out the objects that only running pods need.
	API *API
}

// API is an agent's API client, with the callbacks of its source.
type API struct {
	Reader *apiclient.Reader
	// OnPod receives every pod of this node at the API server, mirror pods too; gone means
	// that it was deleted.
	OnPod func(p *v1.Pod, gone bool)
	// Rejected receives the pods of the API server that cannot run here.
	Rejected func(p *v1.Pod, problems []pod.Problem)
}

// Sources are the configured sources under their policy.
type Sources struct {
	Config *podconfig.PodConfig
	Rules  Rules
}

// Sources returns the configured sources: each -f is a layer, then etcd, then the API
// server.
func (c Config) Sources(r Reading) (Sources, error) {
	policy, err := c.sourcePolicy()
	if err != nil {
		return Sources{}, err
	}
	all, err := c.layers(r)
	if err != nil {
		return Sources{}, err
	}
	rules := Rules{policy}
	return Sources{
		Config: podconfig.New(podconfig.Config{
			Sources: rules.underPolicy(all), Visible: rules.Visible(), Mode: r.Mode, Recorded: r.Recorded, Restored: rules.withoutForbidden(r.Restored), Expander: r.Expander, Log: c.Log,
		}),
		Rules: rules,
	}, nil
}

// layers returns the sources in the order of their layers.
func (c Config) layers(r Reading) ([]source.Source, error) {
	var header http.Header
	var all []source.Source
	for _, name := range c.SourceNames() {
		switch {
		case name == "-":
			all = append(all, stdin.New(c.Stdin, c.parser("stdin", name), 0))
		case config.IsURL(name):
			if header == nil {
				var err error
				if header, err = c.headers(); err != nil {
					return nil, err
				}
			}
			s, err := c.httpSource(name, header)
			if err != nil {
				return nil, Fail(Usage, fmt.Errorf("--filename: %w", err), insecureHint(err)...)
			}
			all = append(all, s)
		default:
			all = append(all, file.New(file.Config{
				Path: name, Recursive: c.Recursive, CheckFrequency: c.FileCheckFrequency, Parse: c.parser("file", name), Log: c.Log,
				Permissions: r.Permissions, Owners: c.Owners,
			}))
		}
	}
	if !r.EtcdAndAPI {
		return all, nil
	}
	if len(c.EtcdEndpoints) > 0 {
		s, err := c.etcdSource()
		if err != nil {
			return nil, Fail(Usage, fmt.Errorf("--etcd-endpoints: %w", err), insecureHint(err)...)
		}
		all = append(all, s)
	}
	if c.Kubeconfig != "" {
		s, err := c.apiSource(r.API)
		if err != nil {
			return nil, Fail(Usage, fmt.Errorf("--kubeconfig: %w", err))
		}
		all = append(all, s)
	}
	return all, nil
}

// insecureHint returns the hint for a source whose data others could change on the network.
func insecureHint(err error) []string {
	if !errors.Is(err, source.ErrUnprotected) {
		return nil
	}
	return []string{"use https://, or set --insecure-sources on a network that you trust"}
}

// httpSource returns the source of a URL. The origin of its pods is the URL without
// secrets.
func (c Config) httpSource(url string, header http.Header) (source.Source, error) {
	var parse func([]byte, string) (source.File, []pod.Problem)
	s, err := sourcehttp.New(sourcehttp.Config{
		URL: url, Header: header, CheckFrequency: c.HTTPCheckFrequency, Log: c.Log,
		CAFile: c.ManifestURLCACert, CertFile: c.ManifestURLCert, KeyFile: c.ManifestURLKey,
		UserAgent: c.UserAgent, Insecure: c.InsecureSources,
		Parse: func(data []byte, file string) (source.File, []pod.Problem) { return parse(data, file) },
	})
	if err != nil {
		return nil, err
	}
	parse = c.parser("http", strings.TrimPrefix(s.Name(), "http:"))
	return s, nil
}

// etcdSource returns the source of the etcd.
func (c Config) etcdSource() (source.Source, error) {
	return etcd.New(etcd.Config{
		Endpoints: c.EtcdEndpoints, Prefix: c.EtcdPrefix,
		CAFile: c.EtcdCACert, CertFile: c.EtcdCert, KeyFile: c.EtcdKey,
		Username: c.EtcdUser, PasswordFile: c.EtcdPasswordFile,
		Insecure: c.InsecureSources,
		Parse:    c.parser("etcd", c.EtcdPrefix), Log: c.Log,
	})
}

// apiSource returns the source of the API server.
func (c Config) apiSource(api *API) (*apiserver.Source, error) {
	isAgent := api != nil
	if !isAgent {
		client, err := apiclient.Open(apiclient.Config{File: c.Kubeconfig, UserAgent: c.UserAgent, Log: c.Log})
		if err != nil {
			return nil, err
		}
		api = &API{Reader: apiclient.NewReader(apiclient.ReaderConfig{Client: client, ServicesOptional: c.offline(), Log: c.Log})}
	}
	return apiserver.New(apiserver.Config{
		Kubeconfig: c.Kubeconfig, Reader: api.Reader, OnPod: api.OnPod, Node: c.NodeName, Services: isAgent, Log: c.Log,
		Spec: func(o *v1.Pod, file string) (*pod.Spec, []pod.Problem) {
			spec, problems := manifest.FromAPI(o, manifest.Options{Node: c.NodeName, Source: pod.SourceAPI, Location: c.Kubeconfig, File: file})
			if spec == nil && api.Rejected != nil {
				api.Rejected(o, problems)
			}
			return spec, problems
		},
	})
}

// offline reports whether pods of the API server may start before it answers.
func (c Config) offline() bool { return c.OfflineStart == pod.SourceAPI }

// RequireSourceReady names the kinds of source whose pods do not start before their source
// is ready.
func (c Config) RequireSourceReady() map[string]bool {
	return map[string]bool{pod.SourceAPI: !c.offline()}
}

// parser returns the parser of one layer's manifests.
func (c Config) parser(kind, location string) func([]byte, string) (source.File, []pod.Problem) {
	return func(data []byte, file string) (source.File, []pod.Problem) {
		return manifest.Parse(data, manifest.Options{
			Node: c.NodeName, Source: kind, Location: location, File: file, Validate: c.Validate, Static: true, Member: c.Kubeconfig != "",
		})
	}
}

// headers returns the headers of requests to URLs: --manifest-url-header, and the lines of
// --manifest-url-header-file. Errors do not contain their values.
func (c Config) headers() (http.Header, error) {
	cfg := c.Config
	if path := cfg.ManifestURLHeaderFile; path != "" {
		f, err := os.Open(path)
		if err != nil {
			return nil, Fail(Usage, fmt.Errorf("--manifest-url-header-file: %w", err))
		}
		defer f.Close()
		lines := config.Config{}
		for scan := bufio.NewScanner(f); scan.Scan(); {
			if line := strings.TrimSpace(scan.Text()); line != "" && !strings.HasPrefix(line, "#") {
				lines.ManifestURLHeader = append(lines.ManifestURLHeader, line)
			}
		}
		if err := lines.CheckHeaders(); err != nil {
			return nil, Fail(Usage, fmt.Errorf("%s: %s", path, err.Msg))
		}
		cfg.ManifestURLHeader = append(cfg.ManifestURLHeader, lines.ManifestURLHeader...)
	}
	return cfg.Headers(), nil
}
