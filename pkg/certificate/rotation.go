package certificate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/backoff"
)

const (
	// check is how often the rotation reads a template that is not known yet, and compares
	// the template with the one of a pending request.
	check = time.Second
	// idleCheck is how long a rotation with a valid certificate does not read the template.
	idleCheck = 10 * time.Second
	// signedWithin is how long a request may wait for its certificate before the rotation
	// makes another one.
	signedWithin = 15 * time.Minute
	// firstRetry and lastRetry bound the pause after a failure; each is twice the one before.
	firstRetry, lastRetry = 2 * time.Second, 32 * time.Second
)

// rotation asks an API server for a certificate, and for the next one when 70 to 90 % of
// the life of the current one are over, as the kubelet does. It replaces client-go's
// certificate manager, which needs the types of every API group (docs/decisions/0031).
type rotation struct {
	// requests returns a client of certificate signing requests. current is nil while there
	// is no valid certificate.
	requests func(current *tls.Certificate) (requests, error)
	// template returns the content of the certificate, nil while it is not known.
	template func() *x509.CertificateRequest
	signer   string
	usage    certificatesv1.KeyUsage // beside digital signature
	store    *store
	failures *counter
	rotated  func(lived time.Duration) // may be nil
	log      *slog.Logger

	mu   sync.Mutex
	cert *tls.Certificate // the newest, nil if none; guarded by mu

	asked *x509.CertificateRequest // the last template that was signed; of run alone
}

// requests is the part of apiclient.CertificateSigningRequests that a rotation needs.
type requests interface {
	Create(context.Context, *certificatesv1.CertificateSigningRequest, metav1.CreateOptions) (*certificatesv1.CertificateSigningRequest, error)
	List(context.Context, metav1.ListOptions) (*certificatesv1.CertificateSigningRequestList, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

var _ requests = (*apiclient.CertificateSigningRequests)(nil)

// load reads the stored certificate. The error says that the store cannot be read.
func (r *rotation) load() error {
	cert, err := r.store.Current()
	if errors.Is(err, errNoPair) {
		return nil
	}
	if err == nil && time.Now().Before(cert.Leaf.NotAfter) {
		r.cert = cert
	}
	return err
}

// current returns the newest certificate, nil if there is none that is valid.
func (r *rotation) current() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cert != nil && time.Now().After(r.cert.Leaf.NotAfter) {
		return nil
	}
	return r.cert
}

// run keeps the certificate valid until ctx is done.
func (r *rotation) run(ctx context.Context) {
	for r.awaitDue(ctx) {
		for retry := firstRetry; !r.renewed(ctx); retry = backoff.Next(retry, firstRetry, lastRetry) {
			backoff.Sleep(ctx, backoff.Jitter(retry, 1, 1.1))
		}
	}
}

// renewed requests a certificate and reports whether the rotation may rest: the
// certificate is signed and not due already, or ctx is done.
func (r *rotation) renewed(ctx context.Context) bool {
	err := r.renew(ctx)
	switch {
	case ctx.Err() != nil:
		return true
	case err != nil:
		r.failures.Inc()
		r.log.Error("Failed to renew certificate", "signer", r.signer, "error", err)
		return false
	case r.isDue(0.7):
		r.log.Warn("Signed certificate is already due for renewal; compare the clocks of node and signer", "signer", r.signer)
		return false
	}
	return true
}

// isDue reports whether so much of the certificate's life is over, or there is none.
func (r *rotation) isDue(share float64) bool {
	cert := r.current()
	return cert == nil || !time.Now().Before(deadline(cert.Leaf, share))
}

// deadline returns when so much of a certificate's life is over.
func deadline(cert *x509.Certificate, share float64) time.Time {
	return cert.NotBefore.Add(time.Duration(share * float64(cert.NotAfter.Sub(cert.NotBefore))))
}

// awaitDue returns true when a certificate is to be requested, false when ctx is done.
func (r *rotation) awaitDue(ctx context.Context) bool {
	cert := r.current()
	var due time.Time
	if cert != nil {
		due = deadline(cert.Leaf, 0.7+0.2*mathrand.Float64())
	}
	for ctx.Err() == nil {
		t := r.template()
		// A signer may leave out a part of the template: the rotation does not repeat the request
		// before the deadline.
		if t != nil && (!time.Now().Before(due) || !satisfies(cert.Leaf, t) && !reflect.DeepEqual(t, r.asked)) {
			return true
		}
		if t == nil {
			backoff.Sleep(ctx, check)
		} else {
			backoff.Sleep(ctx, min(idleCheck, time.Until(due)))
		}
	}
	return false
}

// satisfies reports whether a certificate has everything in a template; it may have more.
func satisfies(cert *x509.Certificate, t *x509.CertificateRequest) bool {
	return cert.Subject.CommonName == t.Subject.CommonName &&
		!slices.ContainsFunc(t.Subject.Organization, func(o string) bool { return !slices.Contains(cert.Subject.Organization, o) }) &&
		!slices.ContainsFunc(t.DNSNames, func(n string) bool { return !slices.Contains(cert.DNSNames, n) }) &&
		!slices.ContainsFunc(t.IPAddresses, func(ip net.IP) bool { return !slices.ContainsFunc(cert.IPAddresses, ip.Equal) })
}

// renew requests one certificate with a new key, waits until it is signed, and stores it.
func (r *rotation) renew(ctx context.Context) error {
	t := r.template()
	if t == nil {
		return errors.New("the node's addresses are not known")
	}
	request, key, err := newRequest(t)
	if err != nil {
		return err
	}
	client, err := r.requests(r.current())
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	made, err := client.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: r.signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, r.usage},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create certificate signing request: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, signedWithin, fmt.Errorf("not signed within %s", signedWithin))
	defer cancel()
	ctx, stop := r.whileTemplateIs(ctx, t)
	defer stop()
	text, err := awaitSigned(ctx, client, made.Name, made.UID)
	if err != nil {
		return fmt.Errorf("wait for certificate signing request %s: %w", made.Name, err)
	}
	next, err := r.store.Update(text, key)
	if err != nil {
		return fmt.Errorf("store certificate: %w", err)
	}
	r.asked = t
	r.mu.Lock()
	last := r.cert
	r.cert = next
	r.mu.Unlock()
	if last != nil && r.rotated != nil {
		r.rotated(time.Since(last.Leaf.NotBefore))
	}
	return nil
}

// whileTemplateIs returns a context that ends when the template is no longer t and the current
// certificate does not satisfy the new one. The caller calls stop, which waits for the goroutine.
func (r *rotation) whileTemplateIs(ctx context.Context, t *x509.CertificateRequest) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			now, cert := r.template(), r.current()
			if now != nil && !reflect.DeepEqual(now, t) && (cert == nil || !satisfies(cert.Leaf, now)) {
				cancel(errors.New("the node's addresses have changed"))
			}
			backoff.Sleep(ctx, check)
		}
	})
	return ctx, func() { cancel(nil); wg.Wait() }
}

// newRequest returns a request of a certificate for a new key, and the key, in PEM.
func newRequest(t *x509.CertificateRequest) (request, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, t, private)
	if err != nil {
		return nil, nil, fmt.Errorf("create certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), nil
}

// awaitSigned waits until a request has its certificate. It lists again when a watch ends.
func awaitSigned(ctx context.Context, client requests, name string, uid types.UID) ([]byte, error) {
	only := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	for {
		list, err := client.List(ctx, only)
		if err == nil {
			if len(list.Items) != 1 {
				return nil, errors.New("deleted")
			}
			if text, err := outcome(&list.Items[0], uid); text != nil || err != nil {
				return text, err
			}
			if text, err := watchSigned(ctx, client, only, list.ResourceVersion, uid); text != nil || err != nil {
				return text, err
			}
		}
		if backoff.Sleep(ctx, check); ctx.Err() != nil {
			if err != nil && !errors.Is(err, ctx.Err()) {
				return nil, fmt.Errorf("%w (last error: %w)", context.Cause(ctx), err)
			}
			return nil, context.Cause(ctx)
		}
	}
}

// watchSigned returns nil, nil when the watch ends before the request has an outcome.
func watchSigned(ctx context.Context, client requests, only metav1.ListOptions, version string, uid types.UID) ([]byte, error) {
	only.ResourceVersion = version
	w, err := client.Watch(ctx, only)
	if err != nil {
		return nil, nil //nolint:nilerr // the next list says whether it lasts
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case e, ok := <-w.ResultChan():
			csr, is := e.Object.(*certificatesv1.CertificateSigningRequest)
			if !ok || !is {
				return nil, nil
			}
			if e.Type == watch.Deleted {
				return nil, errors.New("deleted")
			}
			if text, err := outcome(csr, uid); text != nil || err != nil {
				return text, err
			}
		}
	}
}

// outcome returns the certificate of a request, or why it gets none; nil, nil while that is
// open.
func outcome(csr *certificatesv1.CertificateSigningRequest, uid types.UID) ([]byte, error) {
	if csr.UID != uid {
		return nil, errors.New("replaced by another request of the same name")
	}
	approved := false
	for _, c := range csr.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			return nil, fmt.Errorf("%s: %s: %s", c.Type, c.Reason, c.Message)
		case certificatesv1.CertificateApproved:
			approved = true
		}
	}
	if !approved || len(csr.Status.Certificate) == 0 {
		return nil, nil
	}
	return csr.Status.Certificate, nil
}
