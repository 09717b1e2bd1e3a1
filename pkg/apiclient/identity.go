package apiclient

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Identity is the client certificate of a kubeconfig's current context.
type Identity struct {
	// File holds the certificate; "" where the kubeconfig itself does, or there is
	// none.
	File string
	// Expires is when the first certificate of the chain expires; zero where there is none,
	// as with a token.
	Expires time.Time
	// Name is the certificate's common name.
	Name string
}

// IdentityOf reads the client certificate of the kubeconfig path. The error wraps
// fs.ErrNotExist where the kubeconfig, or the certificate it names, is not there; a
// file without one counts as that.
func IdentityOf(path string) (Identity, error) {
	_, user, err := current(path)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{}
	text := user.ClientCertificateData
	if len(text) == 0 && user.ClientCertificate != "" {
		id.File = user.ClientCertificate
		if text, err = os.ReadFile(id.File); err != nil {
			return id, fmt.Errorf("client certificate of %s: %w", path, err)
		}
	}
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		switch {
		case block != nil:
		case id.Expires.IsZero() && id.File != "":
			return id, fmt.Errorf("client certificate of %s: no certificate in %s: %w", path, id.File, fs.ErrNotExist)
		default:
			return id, nil
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return id, fmt.Errorf("client certificate of %s cannot be parsed", path)
		}
		if id.Expires.IsZero() {
			id.Name = cert.Subject.CommonName
		}
		if id.Expires.IsZero() || cert.NotAfter.Before(id.Expires) {
			id.Expires = cert.NotAfter
		}
	}
}

// WriteJoined writes the kubeconfig path, 0600 and in one step. It leads to the cluster of
// the current context of from, with the certificate and key in file. It contains nothing
// of from's user.
func WriteJoined(path, from, file string) error {
	cluster, _, err := current(from)
	if err != nil {
		return err
	}
	const name = "default"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = cluster
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: file, ClientKey: file}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	text, err := clientcmd.Write(*cfg)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(path, text, atomicfile.Options{Temp: ".tmp", Sync: true}); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// current returns cluster and user of a kubeconfig's current context, the files
// they name by their whole paths.
func current(path string) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	cfg, err := clientcmd.Load(text)
	if err != nil {
		return nil, nil, malformed(path, err)
	}
	in := cfg.Contexts[cfg.CurrentContext]
	if in == nil || cfg.Clusters[in.Cluster] == nil {
		return nil, nil, pod.Problem{File: path, Path: "current-context", Msg: "names no context with a cluster"}
	}
	cluster, user := cfg.Clusters[in.Cluster], cfg.AuthInfos[in.AuthInfo]
	if user == nil {
		user = &clientcmdapi.AuthInfo{}
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, nil, err
	}
	cluster.LocationOfOrigin, user.LocationOfOrigin = path, path
	if err := clientcmd.ResolveLocalPaths(cfg); err != nil {
		return nil, nil, pod.Problem{File: path, Msg: "names files that cannot be found: " + plain(err)}
	}
	return cluster, user, nil
}
