package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
)

// files reads the files that the agent reads or keeps, and its certificates.
func (l looker) files(w AgentConfig) (all []File, certs []Certificate) {
	add := func(path, what string, role Role) {
		if path != "" {
			all = append(all, l.file(path, what, role))
		}
	}
	add(w.Kubeconfig, kubeconfigFile, Secret)
	if w.Bootstrap != "" && (l.exists(w.Bootstrap) || !l.exists(w.Kubeconfig)) {
		add(w.Bootstrap, "--bootstrap-kubeconfig", Secret) // with a kubeconfig it is not needed any more
	}
	add(w.ServerKey, "--tls-private-key-file", Secret)
	add(w.ServerCert, "--tls-cert-file", Trusted)
	add(w.ClientCA, "--client-ca-file", Trusted)
	for _, path := range w.ConfigFiles {
		add(path, "configuration", Trusted)
	}
	pem := filepath.Join(w.CertDir, "kubelet-client-current.pem")
	for _, path := range []string{pem, filepath.Join(w.CertDir, "kubelet-server-current.pem"), filepath.Join(w.CertDir, "kubelet.key")} {
		if w.CertDir != "" && l.exists(path) {
			add(path, "certificate and key", Secret)
		}
	}
	if l.exists(w.RootDir) {
		all = append(all, l.file(w.RootDir, "--root-dir", Trusted))
	}
	for _, path := range w.Manifests {
		all = append(all, l.manifests(path)...)
	}
	for _, path := range []string{w.ServerCert, w.ClientCA, pem, filepath.Join(w.CertDir, "kubelet-server-current.pem"), filepath.Join(w.CertDir, "kubelet.crt")} {
		if path != "" && l.exists(path) {
			certs = append(certs, l.certificate(path))
		}
	}
	for _, path := range []string{"/etc/systemd/system/nodectl.service", "/usr/lib/systemd/system/nodectl.service", "/lib/systemd/system/nodectl.service",
		"/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"} {
		if l.exists(path) {
			all = append(all, l.file(path, unitFile, Unit))
		}
	}
	for _, path := range []string{"/etc/kubernetes/proxy.conf", "/etc/kubernetes/kube-proxy.conf"} {
		if l.exists(path) {
			all = append(all, l.file(path, proxyFile, Unit))
		}
	}
	return all, certs
}

// manifests reads a source: the file or directory, the files in it, and the directories
// above it, where a user with write access could replace it.
func (l looker) manifests(path string) []File {
	all := []File{l.file(path, "manifests", Manifest)}
	if all[0].Mode.IsDir() {
		for _, name := range l.names(path) {
			if ext := filepath.Ext(name); !strings.HasPrefix(name, ".") && (ext == ".yaml" || ext == ".yml" || ext == ".json") {
				all = append(all, l.file(filepath.Join(path, name), "manifest", Manifest))
			}
		}
	}
	for above := filepath.Dir(path); above != "/" && above != "."; above = filepath.Dir(above) {
		if x := l.file(above, "directory above manifests", Manifest); x.Exists && x.Mode&os.ModeSticky == 0 {
			all = append(all, x)
		}
	}
	return all
}

// certificate reads the first certificate of a file.
func (l looker) certificate(path string) Certificate {
	c := Certificate{Path: path}
	data, err := l.read(path)
	if err != nil {
		c.Err = reason(err)
		return c
	}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			c.Err = "contains no certificate"
			return c
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			c.Err = err.Error()
			return c
		}
		c.NotBefore, c.NotAfter = cert.NotBefore, cert.NotAfter
		return c
	}
}
