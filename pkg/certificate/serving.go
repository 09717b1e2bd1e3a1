package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/apiclient"
)

const servingPrefix = "kubelet-server"

// ServingConfig configures the serving certificate. CertFile and KeyFile win; then
// Rotate; without either the certificate is signed by itself.
type ServingConfig struct {
	// Node is the node's name; the API server signs for system:node:<Node>.
	Node string
	// Addresses returns the node's names and addresses as its object has them, nil
	// while they are not known: until there is an address, none is asked for. It is
	// called often and by several goroutines, and does not block. nil knows none.
	Addresses func() []v1.NodeAddress
	// CertFile and KeyFile are files that another program renews (C-1.40.1).
	CertFile, KeyFile string
	// Rotate asks API for a certificate, signer kubernetes.io/kubelet-serving, and
	// for another one before it ends or when addresses come.
	Rotate bool
	API    *rest.Config
	// Dir keeps kubelet-server-current.pem, or kubelet.crt and kubelet.key.
	Dir string
	// Rotated receives the age of a certificate that was replaced; may be nil.
	Rotated func(lived time.Duration)
	// Log receives requests, reads and failures; nil discards them.
	Log *slog.Logger
}

// Serving keeps a node's serving certificate.
type Serving struct {
	cfg      ServingConfig
	failures counter
	kind     kind
}

// kind is one of the three kinds of serving certificate.
type kind interface {
	// now returns the certificate, or why there is none.
	now() (*tls.Certificate, error)
	run(ctx context.Context)
}

// NewServing returns the Serving of cfg. The error says that its files cannot be
// read or written.
func NewServing(cfg ServingConfig) (*Serving, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Addresses == nil {
		cfg.Addresses = func() []v1.NodeAddress { return nil }
	}
	cfg.Node = strings.ToLower(cfg.Node) // as an API server knows it
	s := &Serving{cfg: cfg}
	var err error
	switch {
	case cfg.Node == "":
		return nil, errors.New("no node name")
	case (cfg.CertFile == "") != (cfg.KeyFile == ""):
		return nil, errors.New("a serving certificate and its key must be set together")
	case cfg.CertFile != "":
		s.kind, err = newFromFiles(cfg.CertFile, cfg.KeyFile, &s.failures, cfg.Log)
	case cfg.Dir == "":
		return nil, errors.New("no directory for certificates")
	case cfg.Rotate && cfg.API == nil:
		return nil, errors.New("no API server to request a serving certificate from")
	case cfg.Rotate:
		s.kind, err = s.signed()
	default:
		s.kind, err = newSelfSigned(cfg, &s.failures)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Certificate returns the current certificate, for tls.Config's GetCertificate. The
// error says that there is none yet.
func (s *Serving) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.kind.now() }

// Run keeps the certificate fresh until ctx is done. It logs and retries failures.
func (s *Serving) Run(ctx context.Context) error {
	s.kind.run(ctx)
	return nil
}

// Facts says when the certificate expires, and how often it could not be renewed.
func (s *Serving) Facts() Facts {
	f := Facts{Failures: s.failures.n.Load()}
	if pair, err := s.kind.now(); err == nil && pair.Leaf != nil {
		f.Expires = pair.Leaf.NotAfter
	}
	return f
}

// signed is a certificate that the API server's signer issues.
type signed struct{ *rotation }

func (s *Serving) signed() (signed, error) {
	store := &store{dir: s.cfg.Dir, prefix: servingPrefix}
	store.updated = func() error {
		s.cfg.Log.Info("Renewed serving certificate", "file", store.current())
		return nil
	}
	r := &rotation{
		requests: func(*tls.Certificate) (requests, error) { return apiclient.NewCertificateSigningRequests(s.cfg.API) },
		template: func() *x509.CertificateRequest {
			names, addresses := sans(s.cfg.Addresses())
			if len(addresses) == 0 {
				return nil
			}
			return &x509.CertificateRequest{
				Subject:     pkix.Name{CommonName: "system:node:" + s.cfg.Node, Organization: []string{"system:nodes"}},
				DNSNames:    names,
				IPAddresses: addresses,
			}
		},
		signer:   certificatesv1.KubeletServingSignerName,
		usage:    certificatesv1.UsageServerAuth,
		store:    store,
		failures: &s.failures,
		rotated:  s.cfg.Rotated,
		log:      s.cfg.Log,
	}
	if err := r.load(); err != nil {
		return signed{}, fmt.Errorf("serving certificate: %w", err)
	}
	return signed{r}, nil
}

func (s signed) now() (*tls.Certificate, error) {
	if pair := s.current(); pair != nil {
		return pair, nil
	}
	return nil, errors.New("no serving certificate yet: its certificate signing request may need approval (kubectl get csr)")
}

// sans returns the names and addresses that a certificate is valid for, each once
// and in order.
func sans(all []v1.NodeAddress) (names []string, addresses []net.IP) {
	for _, a := range all {
		ip := net.ParseIP(a.Address)
		switch a.Type {
		case v1.NodeHostName:
			if ip == nil && a.Address != "" {
				names = append(names, a.Address)
			}
		case v1.NodeInternalDNS, v1.NodeExternalDNS:
			if a.Address != "" {
				names = append(names, a.Address)
			}
			continue
		case v1.NodeInternalIP, v1.NodeExternalIP:
		default:
			continue
		}
		if ip != nil {
			addresses = append(addresses, ip)
		}
	}
	slices.Sort(names)
	slices.SortFunc(addresses, func(a, b net.IP) int { return slices.Compare(a.To16(), b.To16()) })
	return slices.Compact(names), slices.CompactFunc(addresses, net.IP.Equal)
}
