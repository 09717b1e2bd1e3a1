package certificate

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// TestRotation_SignedCertificateIsDueAlready_RetriesSlowDown: the node's clock is ahead of
// the signer's, or the signer gives a life that its own back-dating uses up. The back-off
// bounds the requests.
func TestRotation_SignedCertificateIsDueAlready_RetriesSlowDown(t *testing.T) {
	for name, s := range map[string]*signer{
		"expired":         {life: -time.Minute},
		"most of it over": {life: time.Minute, backdate: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s.t = t
				s.rotate(nodeTemplate, nil)
				elapse(10 * time.Minute)
				if n := len(s.requested()); n < 10 || n > 30 {
					t.Errorf("%d requests in ten minutes, want one in about 32 s", n)
				}
			})
		})
	}
}

// signer is an API server with a signer, as a rotation sees it.
type signer struct {
	t    *testing.T
	life time.Duration
	omit bool // signs no addresses
	// backdate is how long before now a certificate becomes valid.
	backdate time.Duration
	// decide fills the status of the n-th request, from 0; nil signs each. An error is the
	// answer to the request itself.
	decide func(n int, csr *certificatesv1.CertificateSigningRequest) error

	mu      sync.Mutex
	at      []time.Time // of each request
	all     []certificatesv1.CertificateSigningRequest
	watches int
	watcher *watch.FakeWatcher // of the last request; nil if there is none
}

func (s *signer) Create(_ context.Context, csr *certificatesv1.CertificateSigningRequest, _ metav1.CreateOptions) (*certificatesv1.CertificateSigningRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.at)
	s.at = append(s.at, time.Now())
	csr = csr.DeepCopy()
	csr.Name, csr.UID = fmt.Sprint("csr-", n), types.UID(fmt.Sprint(n))
	if s.decide == nil {
		s.sign(csr)
	} else if err := s.decide(n, csr); err != nil {
		return nil, err
	}
	s.all = append(s.all, *csr)
	return csr, nil
}

func (s *signer) List(_ context.Context, o metav1.ListOptions) (*certificatesv1.CertificateSigningRequestList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &certificatesv1.CertificateSigningRequestList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for _, csr := range s.all {
		if o.FieldSelector == "metadata.name="+csr.Name {
			list.Items = append(list.Items, csr)
		}
	}
	return list, nil
}

func (s *signer) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.ResourceVersion != "7" {
		s.t.Errorf("a watch from %q, not from the list's version", o.ResourceVersion)
	}
	s.watches++
	s.watcher = watch.NewFakeWithChanSize(10, false)
	return s.watcher, nil
}

// last changes the last request, and tells its watcher.
func (s *signer) last(change func(*certificatesv1.CertificateSigningRequest)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	csr := &s.all[len(s.all)-1]
	change(csr)
	s.watcher.Modify(csr.DeepCopy())
}

// sign gives a request a certificate of its names, valid from now on.
func (s *signer) sign(csr *certificatesv1.CertificateSigningRequest) {
	block, _ := pem.Decode(csr.Spec.Request)
	request := must(x509.ParseCertificateRequest(block.Bytes))
	if err := request.CheckSignature(); err != nil {
		s.t.Error(err)
	}
	certPEM, keyPEM := issue("authority", time.Now().Add(time.Hour))
	authority := must(tls.X509KeyPair(certPEM, keyPEM))
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: request.Subject, DNSNames: request.DNSNames, IPAddresses: request.IPAddresses,
		NotBefore: time.Now().Add(-s.backdate), NotAfter: time.Now().Add(s.life),
	}
	if s.omit {
		cert.IPAddresses = nil
	}
	der := must(x509.CreateCertificate(rand.Reader, cert, authority.Leaf, request.PublicKey, authority.PrivateKey))
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue}}
	csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// rotate runs a rotation of a client certificate in fake time until the test ends, and
// returns it.
func (s *signer) rotate(template func() *x509.CertificateRequest, rotated func(time.Duration)) *rotation {
	r := &rotation{
		requests: func(*tls.Certificate) (requests, error) { return s, nil },
		template: template,
		signer:   certificatesv1.KubeAPIServerClientKubeletSignerName,
		usage:    certificatesv1.UsageClientAuth,
		store:    &store{dir: s.t.TempDir(), prefix: clientPrefix},
		failures: &counter{},
		rotated:  rotated,
		log:      slog.New(slog.DiscardHandler),
	}
	if err := r.load(); err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.run(ctx) })
	s.t.Cleanup(func() { stop(); wg.Wait() })
	return r
}

// requested returns when requests were made.
func (s *signer) requested() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.at)
}

func nodeTemplate() *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}}
}

// elapse lets fake time pass.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestRotation_CertificateAges_NextIsRequestedAt70To90Percent: each request has a key of its own,
// and the form that the signer of nodes' client certificates accepts.
func TestRotation_CertificateAges_NextIsRequestedAt70To90Percent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &signer{t: t, life: time.Hour}
		var lived []time.Duration
		r := s.rotate(nodeTemplate, func(d time.Duration) { lived = append(lived, d) })
		elapse(12 * time.Hour)
		at := s.requested()
		if len(at) < 13 || len(at) > 18 {
			t.Fatalf("%d requests in twelve hours", len(at))
		}
		spread := map[time.Duration]bool{}
		for i := 1; i < len(at); i++ {
			after := at[i].Sub(at[i-1])
			// A certificate is valid from the full second before its request.
			if after < 42*time.Minute-time.Second || after > 54*time.Minute+check {
				t.Errorf("request %d after %s", i, after)
			}
			spread[after] = true
		}
		if len(spread) < 5 {
			t.Errorf("all nodes of a cluster would renew at the same time: %v", spread)
		}
		if len(lived) != len(at)-1 || lived[0] < 42*time.Minute {
			t.Errorf("ages of replaced certificates: %v", lived)
		}
		first, last := s.all[0].Spec, s.all[len(s.all)-1].Spec
		usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
		if first.SignerName != "kubernetes.io/kube-apiserver-client-kubelet" || !slices.Equal(first.Usages, usages) || slices.Equal(first.Request, last.Request) {
			t.Errorf("first %+v, last %+v", first, last)
		}
		kept := must(r.store.Current())
		if c := r.current(); c.Leaf.Subject.CommonName != "system:node:n1" || c.Leaf.Subject.Organization[0] != "system:nodes" || !kept.Leaf.Equal(c.Leaf) {
			t.Errorf("current %+v, stored %+v", c.Leaf.Subject, kept.Leaf.Subject)
		}
		if n := r.failures.n.Load(); n != 0 {
			t.Errorf("%d failures", n)
		}
		// An agent that starts finds the stored certificate.
		next := &rotation{store: &store{dir: r.store.dir, prefix: clientPrefix}}
		if err := next.load(); err != nil || next.current() == nil {
			t.Errorf("load does not use the stored certificate: %v", err)
		}
	})
}

// TestRotation_ServerRefuses_RetriesSlowDown as the kubelet's do, to half a minute.
func TestRotation_ServerRefuses_RetriesSlowDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &signer{t: t, life: time.Hour}
		s.decide = func(n int, csr *certificatesv1.CertificateSigningRequest) error {
			if n < 7 {
				return errors.New("refused")
			}
			s.sign(csr)
			return nil
		}
		r := s.rotate(nodeTemplate, nil)
		elapse(5 * time.Minute)
		at := s.requested()
		if len(at) != 8 || r.failures.n.Load() != 7 || r.current() == nil {
			t.Fatalf("%d requests, %d failures, current %v", len(at), r.failures.n.Load(), r.current())
		}
		for i, want := range []time.Duration{2, 4, 8, 16, 32, 32, 32} {
			want *= time.Second
			if got := at[i+1].Sub(at[i]); got < want || got > want*11/10 {
				t.Errorf("retry %d after %s, want %s", i, got, want)
			}
		}
	})
}

// TestRotation_RequestWaits_TakesWhatTheSignerDecides: a request may wait for its approval, over
// watches that end. A request that is denied, deleted, replaced or forgotten is sent again.
func TestRotation_RequestWaits_TakesWhatTheSignerDecides(t *testing.T) {
	t.Parallel()
	open := func(int, *certificatesv1.CertificateSigningRequest) error { return nil }
	condition := func(csr *certificatesv1.CertificateSigningRequest, is certificatesv1.RequestConditionType) {
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: is, Reason: "R", Message: "m"})
	}
	for name, c := range map[string]struct {
		then     func(s *signer)
		requests int
	}{
		"signed after an approval": {func(s *signer) {
			s.last(func(csr *certificatesv1.CertificateSigningRequest) {
				condition(csr, certificatesv1.CertificateApproved)
			})
			elapse(time.Minute)
			s.last(s.sign)
		}, 1},
		"signed after the watch has ended": {func(s *signer) {
			s.watcher.Stop()
			elapse(time.Minute)
			if s.watches != 2 {
				s.t.Errorf("%d watches", s.watches)
			}
			s.last(s.sign)
		}, 1},
		"denied": {func(s *signer) {
			s.last(func(csr *certificatesv1.CertificateSigningRequest) { condition(csr, certificatesv1.CertificateDenied) })
		}, 2},
		"failed": {func(s *signer) {
			s.last(func(csr *certificatesv1.CertificateSigningRequest) { condition(csr, certificatesv1.CertificateFailed) })
		}, 2},
		"deleted": {func(s *signer) {
			s.mu.Lock()
			gone := s.all[0]
			s.all = nil
			s.mu.Unlock()
			s.watcher.Delete(&gone)
		}, 2},
		"replaced": {func(s *signer) {
			s.last(func(csr *certificatesv1.CertificateSigningRequest) { csr.UID = "another" })
		}, 2},
		"not decided for 15 minutes": {func(*signer) { elapse(signedWithin) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &signer{t: t, life: 10 * time.Hour, decide: open}
				r := s.rotate(nodeTemplate, nil)
				elapse(time.Minute)
				if len(s.requested()) != 1 || r.current() != nil {
					t.Fatalf("%d requests, current %v", len(s.requested()), r.current())
				}
				c.then(s)
				elapse(10 * time.Second)
				if n := len(s.requested()); n != c.requests || r.failures.n.Load() != int64(c.requests-1) {
					t.Fatalf("%d requests, %d failures, want %d requests", n, r.failures.n.Load(), c.requests)
				}
				if c.requests == 1 && r.current() == nil {
					t.Error("the rotation has no certificate")
				}
			})
		})
	}
}

// TestRotation_TemplateChanges_RequestsAgain: none is requested before there is a template,
// one for each that differs, and a signer that leaves something out is asked once.
func TestRotation_TemplateChanges_RequestsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &signer{t: t, life: time.Hour, decide: func(int, *certificatesv1.CertificateSigningRequest) error { return nil }}
		var mu sync.Mutex
		var addresses []net.IP
		set := func(ips ...net.IP) { mu.Lock(); defer mu.Unlock(); addresses = ips }
		r := s.rotate(func() *x509.CertificateRequest {
			mu.Lock()
			defer mu.Unlock()
			if addresses == nil {
				return nil
			}
			t := nodeTemplate()
			t.IPAddresses = slices.Clone(addresses)
			return t
		}, nil)
		count := func(after time.Duration, want int) {
			t.Helper()
			if elapse(after); len(s.requested()) != want {
				t.Fatalf("%d requests, want %d", len(s.requested()), want)
			}
		}
		count(time.Minute, 0)
		set(net.IPv4(192, 0, 2, 1))
		count(2*time.Second, 1)
		// A request that waits is given up for the one that is needed now.
		set(net.IPv4(192, 0, 2, 1), net.IPv4(192, 0, 2, 2))
		count(10*time.Second, 2)
		s.last(s.sign)
		count(time.Minute, 2)
		if got := r.current().Leaf.IPAddresses; len(got) != 2 {
			t.Errorf("addresses %v", got)
		}
		// Fewer need no other certificate.
		set(net.IPv4(192, 0, 2, 2))
		count(time.Minute, 2)
		s.mu.Lock()
		s.decide, s.omit = nil, true
		s.mu.Unlock()
		set(net.IPv4(192, 0, 2, 3))
		count(30*time.Minute, 3)
		if got := r.current().Leaf.IPAddresses; len(got) != 0 {
			t.Errorf("addresses %v", got)
		}
	})
}
