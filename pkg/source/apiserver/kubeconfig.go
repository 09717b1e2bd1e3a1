package apiserver

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/nodectl/nodectl/pkg/pod"
)

// access is a way in to the server, as the kubeconfig and the files it names
// described it.
type access struct {
	sum    [sha256.Size]byte // of all that was read
	root   url.URL           // what all paths are below
	host   string            // scheme, host and port, for people
	client *http.Client
}

// access returns the way in as the files describe it now: was, where nothing
// changed. The error is a pod.Problem.
func (s *Source) access(was *access) (*access, error) {
	path := s.cfg.Kubeconfig
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	rc, err := restConfig(path, text)
	if err != nil {
		return nil, err
	}
	if err := rest.LoadTLSFiles(rc); err != nil {
		return nil, unreadable(path, err)
	}
	// What was read is what is used: client-go has its own ways to read these
	// files again, which cache for as long as the process lives.
	rc.CAFile, rc.CertFile, rc.KeyFile, rc.BearerTokenFile = "", "", "", ""
	rc.BearerToken = strings.TrimSpace(rc.BearerToken)
	sum := digest(text, rc.CAData, rc.CertData, rc.KeyData, []byte(rc.BearerToken))
	if was != nil && was.sum == sum {
		return was, nil
	}
	rc.UserAgent = s.cfg.UserAgent
	server, _, err := rest.DefaultServerUrlFor(rc)
	if err != nil {
		return nil, pod.Problem{File: path, Path: "clusters[].cluster.server", Msg: "is not a URL"}
	}
	a := &access{sum: sum, root: *server, host: server.Scheme + "://" + server.Host}
	if a.client, err = client(rc); err != nil {
		return nil, pod.Problem{File: path, Msg: "cannot be used: " + plain(err)}
	}
	return a, nil
}

// enter returns the way in, brought up to date with the kubeconfig.
func (s *Source) enter() (*access, error) {
	s.gate.Lock()
	defer s.gate.Unlock()
	way, err := s.access(s.way)
	if err != nil {
		return nil, err
	}
	if s.way != nil && s.way != way {
		s.way.client.CloseIdleConnections()
		s.cfg.Log.Debug("Kubeconfig changed", "kubeconfig", s.cfg.Kubeconfig)
	}
	s.way = way
	return way, nil
}

// leave gives back the connections that nobody uses.
func (s *Source) leave() {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.way != nil {
		s.way.client.CloseIdleConnections()
	}
}

// digest returns one sum of several texts.
func digest(texts ...[]byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, text := range texts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(text)))
		h.Write(n[:])
		h.Write(text)
	}
	h.Sum(sum[:0])
	return sum
}

// restConfig returns what the current context of a kubeconfig says.
func restConfig(path string, text []byte) (*rest.Config, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, pod.Problem{File: path, Msg: "is empty"}
	}
	cfg, err := clientcmd.Load(text)
	if err != nil {
		return nil, malformed(path, err)
	}
	for _, c := range cfg.Clusters {
		c.LocationOfOrigin = path
	}
	for _, u := range cfg.AuthInfos {
		u.LocationOfOrigin = path
	}
	if err := clientcmd.ResolveLocalPaths(cfg); err != nil {
		return nil, pod.Problem{File: path, Msg: "names files that cannot be found: " + plain(err)}
	}
	if cfg.CurrentContext == "" {
		return nil, pod.Problem{File: path, Path: "current-context", Msg: "is missing", Hint: "kubectl config use-context NAME sets it"}
	}
	rc, err := clientcmd.NewNonInteractiveClientConfig(*cfg, cfg.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, pod.Problem{File: path, Path: "clusters", Msg: "no server is named for context " + strconv.Quote(cfg.CurrentContext)}
	case err != nil:
		return nil, unreadable(path, err)
	}
	return rc, nil
}

// client returns a client that says who it is and stays at its server: whoever
// answers decides what runs on this node.
func client(rc *rest.Config) (*http.Client, error) {
	cfg, err := rc.TransportConfig()
	if err != nil {
		return nil, err
	}
	tls, err := transport.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	proxy := http.ProxyFromEnvironment
	if rc.Proxy != nil {
		proxy = rc.Proxy
	}
	wire := &http.Transport{
		Proxy: proxy,
		DialContext: (&net.Dialer{
			Timeout:         5 * time.Second,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3},
		}).DialContext,
		TLSClientConfig:       tls,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConns:          2,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	trip, err := transport.HTTPWrappersForConfig(cfg, wire)
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Transport:     trip,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// yamlLine finds the place in what YAML's parser says.
var yamlLine = regexp.MustCompile(`yaml: line (\d+): (.*)`)

// malformed puts into words why text is no kubeconfig.
func malformed(path string, err error) error {
	p := pod.Problem{File: path, Msg: "is not a kubeconfig"}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
		p.Msg = "is not YAML: " + plain(errors.New(m[2]))
	} else if _, what, ok := strings.Cut(err.Error(), "illegal base64 data"); ok {
		p.Msg += ": illegal base64 data " + plain(errors.New(what))
	}
	return p
}

// unreadable puts into words why path, or a file it names, cannot be used.
func unreadable(path string, err error) error {
	if file := (*fs.PathError)(nil); errors.As(err, &file) {
		p := pod.Problem{File: file.Path, Msg: "cannot be read: " + file.Err.Error()}
		if file.Path != path {
			p.Hint = "named in " + path
		}
		return p
	}
	return pod.Problem{File: path, Msg: plain(err)}
}

// plain returns an error's text as one line.
func plain(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
