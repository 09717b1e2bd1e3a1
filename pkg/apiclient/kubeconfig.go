package apiclient

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodectl/nodectl/pkg/pod"
)

// material is the content of a kubeconfig and of the files that it names.
type material struct {
	text                 []byte
	ca, cert, key, token part
	pair                 part // Config.Pair; no data where it is not there
}

// part is one item of a kubeconfig, which may be in a file of its own.
type part struct {
	file string // "" where the kubeconfig holds it
	data []byte
}

// same reports whether the files are unchanged; false where one cannot be read.
func (m *material) same(text []byte) bool {
	if m.text == nil || !bytes.Equal(m.text, text) {
		return false
	}
	for _, of := range []part{m.ca, m.cert, m.key, m.token} {
		if of.file == "" {
			continue
		}
		if now, err := os.ReadFile(of.file); err != nil || !bytes.Equal(now, of.data) {
			return false
		}
	}
	if m.pair.file == "" {
		return true
	}
	now, _ := os.ReadFile(m.pair.file)
	return bytes.Equal(now, m.pair.data)
}

// read returns the transport that the files describe now; it is was where nothing changed.
// The error is a pod.Problem.
func read(cfg Config, was *Transport) (*Transport, error) {
	path := cfg.File
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	now := time.Now()
	if was != nil && was.read.same(text) && (was.until.IsZero() || now.Before(was.until)) {
		return was, nil
	}
	rc, m, err := load(path, text)
	if err != nil {
		return nil, err
	}
	var until time.Time
	if cfg.Pair != "" && m.cert.file == "" && len(rc.CertData) > 0 {
		m.pair.file = cfg.Pair
		m.pair.data, _ = os.ReadFile(cfg.Pair)
		if until = replaces(m.pair.data, rc.CertData, now); !until.IsZero() {
			rc.CertData, rc.KeyData = m.pair.data, m.pair.data
		}
	}
	rc.UserAgent = cfg.UserAgent
	server, _, err := rest.DefaultServerUrlFor(rc)
	if err != nil {
		return nil, pod.Problem{File: path, Path: "clusters[].cluster.server", Msg: "is not a URL"}
	}
	transport, err := newTransport(rc, *server)
	if err != nil {
		return nil, pod.Problem{File: path, Msg: "cannot be used: " + plain(err)}
	}
	transport.read, transport.until = m, until
	return transport, nil
}

// load returns the configuration of the current context of a kubeconfig, with the content of
// the files that it names.
func load(path string, text []byte) (*rest.Config, material, error) {
	rc, user, err := restConfig(path, text)
	if err != nil {
		return nil, material{}, err
	}
	m := material{text: text}
	if err := m.fill(rc, user, os.ReadFile); err != nil {
		return nil, material{}, unreadable(path, err)
	}
	// client-go would read these files again, and cache them for as long as the process
	// lives. It uses the content that was read above.
	rc.CAFile, rc.CertFile, rc.KeyFile, rc.BearerTokenFile = "", "", "", ""
	rc.BearerToken = strings.TrimSpace(rc.BearerToken)
	return rc, m, nil
}

// fill reads the files that rc names into rc and m, each once. A file with certificate and
// key may be replaced at any moment: reading it twice could give halves of two pairs.
func (m *material) fill(rc *rest.Config, user *clientcmdapi.AuthInfo, read func(file string) ([]byte, error)) (err error) {
	once := map[string][]byte{}
	contentOf := func(file string) ([]byte, error) {
		data, had := once[file]
		if had {
			return data, nil
		}
		data, err := read(file)
		once[file] = data
		return data, err
	}
	if user == nil || user.Token == "" {
		m.token.file = rc.BearerTokenFile
	}
	for _, it := range []struct {
		to   *part
		file string
		data *[]byte
	}{
		{&m.ca, rc.CAFile, &rc.CAData},
		{&m.cert, rc.CertFile, &rc.CertData},
		{&m.key, rc.KeyFile, &rc.KeyData},
	} {
		if len(*it.data) > 0 || it.file == "" {
			continue
		}
		if *it.data, err = contentOf(it.file); err != nil {
			return err
		}
		*it.to = part{it.file, *it.data}
	}
	if m.token.file != "" {
		if m.token.data, err = contentOf(m.token.file); err != nil {
			return err
		}
		rc.BearerToken = string(m.token.data)
	}
	return nil
}

// replaces returns until when pair replaces the certificate cert; zero where it does not.
func replaces(pair, cert []byte, now time.Time) time.Time {
	got, err := tls.X509KeyPair(pair, pair)
	if err != nil {
		return time.Time{}
	}
	block, _ := pem.Decode(cert)
	if block == nil {
		return time.Time{}
	}
	was, err := x509.ParseCertificate(block.Bytes)
	if err != nil || was.Subject.CommonName != got.Leaf.Subject.CommonName || !now.Before(got.Leaf.NotAfter) {
		return time.Time{}
	}
	return got.Leaf.NotAfter
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

// restConfig returns the configuration of the current context of a kubeconfig, and its
// user, nil where it has none.
func restConfig(path string, text []byte) (*rest.Config, *clientcmdapi.AuthInfo, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil, pod.Problem{File: path, Msg: "is empty"}
	}
	cfg, err := clientcmd.Load(text)
	if err != nil {
		return nil, nil, malformed(path, err)
	}
	for _, c := range cfg.Clusters {
		c.LocationOfOrigin = path
	}
	for _, u := range cfg.AuthInfos {
		u.LocationOfOrigin = path
	}
	if err := clientcmd.ResolveLocalPaths(cfg); err != nil {
		return nil, nil, pod.Problem{File: path, Msg: "names files that cannot be found: " + plain(err)}
	}
	if cfg.CurrentContext == "" {
		return nil, nil, pod.Problem{File: path, Path: "current-context", Msg: "is missing", Hint: "kubectl config use-context NAME sets it"}
	}
	rc, err := clientcmd.NewNonInteractiveClientConfig(*cfg, cfg.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, nil, pod.Problem{File: path, Path: "clusters", Msg: "no server is named for context " + strconv.Quote(cfg.CurrentContext)}
	case err != nil:
		return nil, nil, unreadable(path, err)
	}
	var user *clientcmdapi.AuthInfo
	if in := cfg.Contexts[cfg.CurrentContext]; in != nil {
		user = cfg.AuthInfos[in.AuthInfo]
	}
	return rc, user, nil
}

// yamlLine finds the place in an error of the YAML parser.
var yamlLine = regexp.MustCompile(`yaml: line (\d+): (.*)`)

// malformed explains why text is no kubeconfig.
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

// unreadable explains why path, or a file it names, cannot be used.
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
