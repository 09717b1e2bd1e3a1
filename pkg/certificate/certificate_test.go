package certificate

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/certificate"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// issue returns a certificate that signs itself, with its key.
func issue(name string, end time.Time) (cert, key []byte) {
	private := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: end}
	der := must(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(private))})
}

func put(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// There is a current pair at any moment, in the kubelet's layout and for no other user
// to read; one older pair stays.
//
// Shows: D4
func TestD4_PairsAreKeptInTheKubeletsLayout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "pki")
		updates := 0
		s := &store{dir: dir, prefix: "kubelet-client", updated: func() error { updates++; return nil }}
		if _, err := s.Current(); !errors.Is(err, errNoPair) {
			t.Errorf("Current of an empty store: %v", err)
		}
		for _, name := range []string{"one", "two", "three"} {
			cert, key := issue(name, time.Now().Add(time.Hour))
			pair, err := s.Update(cert, key)
			if err != nil || pair.Leaf.Subject.CommonName != name {
				t.Fatalf("%+v, %v", pair, err)
			}
			// client-go's own store can read the files.
			kubelets := must(certificate.NewFileStore("kubelet-client", dir, dir, "", ""))
			for _, of := range []certificate.Store{s, kubelets} {
				if now, err := of.Current(); err != nil || now.Leaf.Subject.CommonName != name {
					t.Errorf("current is %+v, %v", now, err)
				}
			}
			time.Sleep(time.Second) // names have seconds
		}
		var names []string
		for _, e := range must(os.ReadDir(dir)) {
			info := must(e.Info())
			if names = append(names, e.Name()); info.Mode().IsRegular() && info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", e.Name(), info.Mode())
			}
		}
		if len(names) != 3 || names[2] != "kubelet-client-current.pem" || updates != 3 {
			t.Errorf("after %d updates the directory has %q", updates, names)
		}
		if info := must(os.Stat(dir)); info.Mode().Perm() != 0o700 {
			t.Errorf("the directory has mode %v", info.Mode())
		}
		before := must(filepath.EvalSymlinks(s.current()))
		cert, _ := issue("four", time.Now().Add(time.Hour))
		_, other := issue("five", time.Now().Add(time.Hour))
		if _, err := s.Update(cert, other); err == nil || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("Update with the key of another certificate: %v", err)
		}
		if after := must(filepath.EvalSymlinks(s.current())); after != before {
			t.Errorf("the store keeps a certificate with the key of another one")
		}
		// Two in one second, and the rest of an update that was cut short.
		put(t, filepath.Join(dir, "kubelet-client-updated.pem"), nil)
		for _, name := range []string{"six", "seven"} {
			cert, key := issue(name, time.Now().Add(time.Hour))
			must(s.Update(cert, key))
		}
		if now := must(s.Current()); now.Leaf.Subject.CommonName != "seven" {
			t.Errorf("current is %s", now.Leaf.Subject.CommonName)
		}
		// Half a pair is asked for again, and replaced.
		put(t, s.current(), []byte("-----BEGIN"))
		if _, err := s.Current(); !errors.Is(err, errNoPair) {
			t.Errorf("Current of a truncated file: %v", err)
		}
		cert, key := issue("eight", time.Now().Add(time.Hour))
		must(s.Update(cert, key))
		if now := must(s.Current()); now.Leaf.Subject.CommonName != "eight" {
			t.Errorf("current is %s", now.Leaf.Subject.CommonName)
		}
		// The existing file may be unusable.
		s.empty = true
		if _, err := s.Current(); !errors.Is(err, errNoPair) {
			t.Errorf("Current of a store marked as empty: %v", err)
		}
	})
}

// Files that another program renews are read again; while they do not match, the last matching pair
// is served.
//
// Shows: C-1.40.1
func TestC_1_40_1_GivenServingCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	var log bytes.Buffer
	cfg := ServingConfig{Node: "n1", CertFile: certFile, KeyFile: keyFile, Rotate: true, Log: slog.New(slog.NewTextHandler(&log, nil))}
	if _, err := NewServing(cfg); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("NewServing without its files: %v", err)
	}
	end := time.Now().Add(time.Hour).Truncate(time.Second)
	cert, key := issue("one", end)
	put(t, certFile, cert)
	put(t, keyFile, key)
	synctest.Test(t, func(t *testing.T) {
		s := must(NewServing(cfg))
		shows := func(want string, failures int64) {
			t.Helper()
			time.Sleep(rereadAfter)
			if got := must(s.Certificate(&tls.ClientHelloInfo{})); got.Leaf.Subject.CommonName != want {
				t.Errorf("%s is shown, want %s", got.Leaf.Subject.CommonName, want)
			}
			if f := s.Facts(); f.Failures != failures || f.Expires.IsZero() {
				t.Errorf("facts %+v, want %d failures", f, failures)
			}
		}
		shows("one", 0)
		cert, key := issue("two", time.Now().Add(time.Hour))
		put(t, certFile, cert)
		shows("one", 1)
		put(t, keyFile, key)
		shows("two", 1)
		if err := os.Remove(keyFile); err != nil {
			t.Fatal(err)
		}
		shows("two", 2)
	})
	if !strings.Contains(log.String(), "Reloaded serving certificate") || strings.Contains(log.String(), "PRIVATE") {
		t.Errorf("log: %s", log.String())
	}
}

// A certificate that the node signs itself survives restarts, names the node's
// addresses once they are known, and is made again before it ends.
//
// Shows: C-1.40.1
func TestC_1_40_1_SelfSignedServingCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var addresses []v1.NodeAddress
		open := func() *Serving {
			return must(NewServing(ServingConfig{Node: "n1", Dir: filepath.Join(dir, "pki"), Addresses: func() []v1.NodeAddress { return addresses }}))
		}
		now := func(s *Serving) *x509.Certificate { return must(s.Certificate(nil)).Leaf }
		s := open()
		first := now(s)
		if first.VerifyHostname("n1") != nil || first.Subject.CommonName != "n1" || !s.Facts().Expires.Equal(first.NotAfter) {
			t.Errorf("the first certificate is for %q", first.DNSNames)
		}
		if again := now(open()); !again.Equal(first) {
			t.Error("a restart creates another certificate")
		}
		for name, mode := range map[string]fs.FileMode{"kubelet.key": 0o600, "kubelet.crt": 0o644} {
			if info := must(os.Stat(filepath.Join(dir, "pki", name))); info.Mode().Perm() != mode {
				t.Errorf("%s has mode %v", name, info.Mode())
			}
		}
		addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.7"}, {Type: v1.NodeHostName, Address: "n1.local"}}
		runs := func(d time.Duration) {
			ctx, stop := context.WithTimeout(t.Context(), d)
			defer stop()
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		}
		runs(time.Second)
		second := now(s)
		if second.VerifyHostname("10.0.0.7") != nil || second.VerifyHostname("n1.local") != nil || second.VerifyHostname("n1") != nil {
			t.Errorf("the second certificate is for %q %v", second.DNSNames, second.IPAddresses)
		}
		time.Sleep(selfSignedFor - freshFor - 2*time.Hour)
		runs(time.Hour)
		if !now(s).Equal(second) {
			t.Error("the certificate was renewed too early")
		}
		runs(2 * time.Hour)
		third := now(s)
		if third.Equal(second) || time.Until(third.NotAfter) < selfSignedFor-3*time.Hour || third.VerifyHostname("10.0.0.7") != nil {
			t.Errorf("the certificate was not renewed: it expires in %v", time.Until(third.NotAfter))
		}
		// After a restart, before the addresses are known.
		addresses = nil
		if again := now(open()); !again.Equal(third) {
			t.Error("a restart without addresses creates another certificate")
		}
		// Half a pair is made again.
		put(t, filepath.Join(dir, "pki", "kubelet.key"), nil)
		if again := now(open()); again.Equal(third) {
			t.Error("a certificate without its key is in use")
		}
	})
}

func TestServingNeedsWhatItIsMadeOf(t *testing.T) {
	t.Parallel()
	for _, cfg := range []ServingConfig{{}, {Node: "n1"}, {Node: "n1", CertFile: "x"}, {Node: "n1", KeyFile: "x"}, {Node: "n1", Dir: "x", Rotate: true}} {
		if _, err := NewServing(cfg); err == nil {
			t.Errorf("NewServing accepts %+v", cfg)
		}
	}
}

func TestSansAreOfTheNodesAddresses(t *testing.T) {
	t.Parallel()
	names, addresses := sans([]v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: "10.0.0.2"}, {Type: v1.NodeExternalIP, Address: "10.0.0.1"}, {Type: v1.NodeInternalIP, Address: "10.0.0.2"},
		{Type: v1.NodeHostName, Address: "b"}, {Type: v1.NodeExternalDNS, Address: "a"}, {Type: v1.NodeInternalDNS, Address: "b"},
		{Type: v1.NodeHostName, Address: "fd00::1"}, {Type: v1.NodeInternalIP, Address: "no address"}, {Type: "Else", Address: "10.9.9.9"}, {Type: v1.NodeHostName},
	})
	want := []net.IP{net.ParseIP("10.0.0.1"), net.ParseIP("10.0.0.2"), net.ParseIP("fd00::1")}
	if !slices.Equal(names, []string{"a", "b"}) || !slices.EqualFunc(addresses, want, net.IP.Equal) {
		t.Errorf("%q %v", names, addresses)
	}
}
