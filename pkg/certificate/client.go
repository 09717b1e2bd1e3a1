package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

const (
	clientPrefix = "kubelet-client"
	// checkInterval is how often Run checks whether the kubeconfig has changed.
	checkInterval = time.Minute
)

// ClientConfig configures a Client: the node, the API server, and the place of the
// certificate.
type ClientConfig struct {
	// Node is the node's name; it requests certificates as system:node:<Node> of group
	// system:nodes.
	Node string
	// Kubeconfig is the kubeconfig of the API server. Client writes it only after it
	// got a first certificate with Bootstrap.
	Kubeconfig string
	// Bootstrap is a kubeconfig with the right to request a first certificate; may be
	// "". It is used only while Kubeconfig does not exist, or its client certificate is
	// missing or has expired.
	Bootstrap string
	// Dir keeps kubelet-client-current.pem, unless Kubeconfig names such a file
	// elsewhere: then that one is kept fresh. Where Kubeconfig holds the node's
	// certificate itself, others show the one in Dir in its place (Pair).
	Dir string
	// Rotate requests a new certificate after 70 to 90 % of the current one's validity.
	Rotate bool
	// API connects to Kubeconfig's server, as apiclient.Client.REST does.
	API       *rest.Config
	UserAgent string
	// Rotated receives the age of a certificate that was replaced; may be nil.
	Rotated func(lived time.Duration)
	// Log receives requests and failures; nil discards them.
	Log *slog.Logger
}

// Client keeps a node's client certificate.
type Client struct {
	cfg      ClientConfig
	failures counter
	interval time.Duration // checkInterval; tests have less time
}

// NewClient returns a Client. It does no I/O.
func NewClient(cfg ClientConfig) (*Client, error) {
	switch {
	case cfg.Node == "":
		return nil, errors.New("no node name")
	case cfg.Kubeconfig == "":
		return nil, errors.New("no kubeconfig")
	case cfg.Dir == "":
		return nil, errors.New("no directory for certificates")
	case cfg.API == nil:
		return nil, errors.New("no client for the API server")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Node = strings.ToLower(cfg.Node) // as an API server knows it
	return &Client{cfg: cfg, interval: checkInterval}, nil
}

// Facts says when the client certificate expires, and how often it could not be
// renewed.
func (c *Client) Facts() Facts {
	id, err := c.identity()
	if err != nil {
		id = apiclient.Identity{}
	}
	return Facts{Expires: id.Expires, Failures: c.failures.n.Load()}
}

// Pair returns the file that keeps the rotated certificate of a kubeconfig that holds
// one itself, for apiclient.Config.Pair.
func Pair(dir string) string { return (&store{dir: dir, prefix: clientPrefix}).current() }

// identity returns the kubeconfig's certificate, with the end of the rotated one
// where that is shown in its place.
func (c *Client) identity() (apiclient.Identity, error) {
	id, err := apiclient.IdentityOf(c.cfg.Kubeconfig)
	if err != nil || id.File != "" || id.Expires.IsZero() {
		return id, err
	}
	pair, err := tls.LoadX509KeyPair(Pair(c.cfg.Dir), Pair(c.cfg.Dir))
	if err == nil && pair.Leaf.Subject.CommonName == id.Name && pair.Leaf.NotAfter.After(id.Expires) {
		id.Expires = pair.Leaf.NotAfter
	}
	return id, nil
}

// name is the node's user name at the API server.
func (c *Client) name() string { return "system:node:" + c.cfg.Node }

// need says whether and how to request a client certificate.
type need struct {
	ask   bool
	first bool   // with the bootstrap kubeconfig
	dir   string // where the certificate is kept
	why   string // for the log
	level slog.Level
}

// needs looks at the kubeconfig.
func (c *Client) needs(now time.Time) need {
	id, err := c.identity()
	n := need{dir: c.cfg.Dir}
	switch {
	case filepath.Base(id.File) == clientPrefix+"-current.pem":
		n.dir, n.ask = filepath.Dir(id.File), c.cfg.Rotate
	case id.File == "" && id.Name == c.name():
		n.ask = c.cfg.Rotate
	}
	expired := !id.Expires.IsZero() && now.After(id.Expires)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		n.first, n.why = true, "the kubeconfig or its certificate does not exist"
	case err != nil:
		return need{why: err.Error(), level: slog.LevelWarn}
	case expired:
		n.first, n.why, n.level = true, "the certificate has expired", slog.LevelWarn
	case n.ask:
		n.why = "nodectl rotates the certificate"
	case c.cfg.Rotate && !id.Expires.IsZero():
		n.level = slog.LevelWarn
		n.why = "nodectl does not rotate the certificate: the kubeconfig does not name " + Pair(c.cfg.Dir)
	}
	if n.first = n.first && c.cfg.Bootstrap != ""; n.first {
		n.ask = true
	}
	return n
}

// Run maintains the client certificate until ctx is done: it requests a first one where
// that is needed, and rotates. It logs and retries failures.
func (c *Client) Run(ctx context.Context) error {
	for logged := ""; ctx.Err() == nil; {
		n := c.needs(time.Now())
		if n.why != logged {
			logged = n.why
			c.cfg.Log.Log(ctx, n.level, "Checked client certificate", "kubeconfig", c.cfg.Kubeconfig, "asking", n.ask, "because", n.why)
		}
		if n.ask {
			err := c.keep(ctx, n)
			if err == nil {
				continue
			}
			c.failures.Inc()
			c.cfg.Log.Error("Failed to maintain client certificate", "error", err)
		}
		backoff.Sleep(ctx, c.interval)
	}
	return nil
}

// keep requests certificates as n says, until ctx is done or the need changes.
func (c *Client) keep(ctx context.Context, n need) error {
	renewed := wakeup.New() // the rotation sends, keep receives
	var first bootstrap
	defer first.close()
	s := &store{dir: n.dir, prefix: clientPrefix, empty: n.first}
	joined := !n.first
	s.updated = func() error {
		if !joined {
			if err := apiclient.WriteJoined(c.cfg.Kubeconfig, c.cfg.Bootstrap, s.current()); err != nil {
				return err
			}
			joined = true
			first.close()
		}
		c.cfg.Log.Info("Renewed client certificate", "file", s.current())
		renewed.Send()
		return nil
	}
	template := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: c.name(), Organization: []string{"system:nodes"}},
	}
	r := &rotation{
		requests: func(now *tls.Certificate) (requests, error) {
			if now != nil || !c.needs(time.Now()).first || !fileExists(c.cfg.Bootstrap) {
				return apiclient.NewCertificateSigningRequests(c.cfg.API)
			}
			fresh, err := first.open(apiclient.Config{File: c.cfg.Bootstrap, UserAgent: c.cfg.UserAgent, Log: c.cfg.Log})
			if err != nil {
				return nil, err
			}
			return apiclient.NewCertificateSigningRequests(fresh.REST())
		},
		template: func() *x509.CertificateRequest { return template },
		signer:   certificatesv1.KubeAPIServerClientKubeletSignerName,
		usage:    certificatesv1.UsageClientAuth,
		store:    s,
		failures: &c.failures,
		rotated:  c.cfg.Rotated,
		log:      c.cfg.Log,
	}
	if err := r.load(); err != nil {
		return fmt.Errorf("client certificate: %w", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { r.run(ctx) })
	again := time.NewTicker(c.interval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-renewed:
			if !c.cfg.Rotate {
				return nil
			}
		case <-again.C:
			if now := c.needs(time.Now()); !now.first && (!now.ask || now.dir != n.dir) {
				return nil
			}
		}
	}
}

// bootstrap is the API client that may request a first certificate.
type bootstrap struct {
	mu     sync.Mutex // guards the fields below
	client *apiclient.Client
}

// open reads the kubeconfig again, and closes the client before.
func (b *bootstrap) open(cfg apiclient.Config) (*apiclient.Client, error) {
	fresh, err := apiclient.Open(cfg)
	if err != nil {
		return nil, err
	}
	b.close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.client = fresh
	return fresh, nil
}

func (b *bootstrap) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.client != nil {
		b.client.Close()
	}
	b.client = nil
}

// fileExists reports whether there is a file at path.
func fileExists(path string) bool {
	_, err := os.Stat(path)
	return path != "" && err == nil
}
