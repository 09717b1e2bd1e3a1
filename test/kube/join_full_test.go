//go:build full

package kube

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// signedFor is how long certificates of the joining cluster are valid.
const signedFor = 3 * time.Minute

// TestC_1_25_1_Join: a machine with only a bootstrap token becomes a node, by nodectl's own
// flags and then as kubeadm's unit starts a kubelet. The API server trusts only serving
// certificates of its own authority.
//
// Shows: C-1.25.1
func TestC_1_25_1_Join(t *testing.T) {
	w := bareWorld(t, cluster.ControllerArgs("--cluster-signing-duration="+signedFor.String()), cluster.VerifyNodes())
	w.importImages()
	bootstrap := w.cluster.BootstrapKubeconfig(t)
	for _, part := range []struct {
		name string
		run  func(*world, string)
	}{
		{"D4_ByItsFlags", (*world).joinByFlags},
		{"D4_AsKubeadmsKubelet", (*world).joinAsKubelet},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(w.in(t, "default"), bootstrap) })
	}
}

// request of a certificate, as kubectl shows it.
type signing struct{ name, who, signer string }

func (w *world) signings() (all []signing) {
	w.Helper()
	for line := range strings.Lines(w.kubectl("get", "certificatesigningrequests", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.username} {.spec.signerName}{"\n"}{end}`)) {
		if f := strings.Fields(line); len(f) == 3 {
			all = append(all, signing{f[0], f[1], strings.TrimPrefix(f[2], "kubernetes.io/")})
		}
	}
	return all
}

// approve acts as an administrator: it approves the nodes' requests for serving certificates.
func (w *world) approve() {
	w.Helper()
	for _, s := range w.signings() {
		if s.signer == "kubelet-serving" && s.who == "system:node:"+w.name {
			w.kubectl("certificate", "approve", s.name)
		}
	}
}

// bootstrapped counts the requests that were made with the bootstrap token.
func (w *world) bootstrapped() (n int) {
	w.Helper()
	for _, s := range w.signings() {
		if strings.HasPrefix(s.who, "system:bootstrap:") && s.signer == "kube-apiserver-client-kubelet" {
			n++
		}
	}
	return n
}

// certificateIn returns the first certificate of a file.
func certificateIn(file string) (*x509.Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, fmt.Errorf("%s holds no certificate", file)
}

// servesCertificate waits until the node's port presents a certificate of the cluster's
// authority for its address; an administrator approves requests meanwhile.
func (w *world) servesCertificate() {
	w.Helper()
	text, err := os.ReadFile(w.cluster.Authority.File)
	if err != nil {
		w.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	w.await(func() error {
		w.approve()
		c, err := tls.Dial("tcp", w.address+":"+w.port, &tls.Config{RootCAs: pool, ServerName: w.address})
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

// reached: the API server can connect to the node.
func (w *world) reached(pod string) {
	w.Helper()
	w.servesCertificate()
	w.await(func() error {
		out, err := w.try("exec", pod, "--", "echo", "there")
		if err == nil && out != "there\n" {
			err = fmt.Errorf("exec: %q", out)
		}
		return err
	})
	w.await(func() error {
		w.approve() // the next certificate may be due
		out, err := w.try("logs", pod)
		if err == nil && out != "hello\n" {
			err = fmt.Errorf("log %q", out)
		}
		return err
	})
}

// overTime matches the error of a request that took too long: the machine is slow, not the
// node wrong.
var overTime = regexp.MustCompile(`(?i)timeout|deadline exceeded`)

// joinByFlags: one command joins. The node keeps its certificate across a restart and renews
// it before it expires, without an effect on pods.
func (w *world) joinByFlags(bootstrap string) {
	w.file = filepath.Join(w.TempDir(), "node.kubeconfig")
	w.serve("--bootstrap-kubeconfig", bootstrap, "--rotate-server-certificates")
	forgiven := false
	for line := range strings.Lines(w.agent.Log(w)) { // a joining node has no certificate yet, which is no error
		if !strings.Contains(line, "level=WARN") || !strings.Contains(line, "API server") {
			continue
		}
		if forgiven || !overTime.MatchString(line) {
			w.Errorf("said while it joins: %s", line)
		}
		forgiven = true // one may take too long
	}
	w.pod("joined", "echo hello; "+sleeps)
	w.reached("joined")
	current := filepath.Join(w.root, "pki/kubelet-client-current.pem")
	if info, err := os.Stat(current); err != nil || info.Mode().Perm() != 0o600 {
		w.Errorf("the key's file: %v %v", info, err)
	}
	first, err := certificateIn(current)
	if err != nil {
		w.Fatal(err)
	}
	if name := first.Subject.CommonName; name != "system:node:"+w.name {
		w.Errorf("the node is %q", name)
	}
	id := w.path("joined", "{.status.containerStatuses[0]['containerID','restartCount']}")
	w.agent.Restart(w)
	w.awaitNode("Ready", "True")
	w.reached("joined")
	if n := w.bootstrapped(); n != 1 {
		w.Errorf("asked with the bootstrap token %d times", n)
	}
	// The node itself renews it before it expires (F72).
	deadline := time.Until(first.NotAfter)
	w.Logf("the first certificate ends in %s", deadline.Round(time.Second))
	wait.Until(w, "the certificate is renewed", func() (string, bool) {
		now, err := certificateIn(current)
		if err != nil {
			return err.Error(), false
		}
		return "ends at " + now.NotAfter.String(), now.NotAfter.After(first.NotAfter)
	}, wait.WithoutStall)
	info, err := os.Stat(current) // of the link's target
	if err != nil {
		w.Fatal(err)
	}
	if info.ModTime().After(first.NotAfter) {
		w.Errorf("renewed at %s, after the end %s", info.ModTime(), first.NotAfter)
	}
	// From now on the old one has expired.
	wait.Until(w, "the first certificate has ended", func() (time.Duration, bool) {
		left := time.Until(first.NotAfter.Add(time.Second)).Round(time.Second)
		return left, left <= 0
	})
	w.kubectl("annotate", "node", w.name, "example.com/seen=true")
	w.kubectl("run", "later", "--image="+busybox, "--restart=Never", "--", "true")
	w.awaitOutput("Succeeded", "get", "pod", "later", "-o", "jsonpath={.status.phase}")
	w.awaitNode("Ready", "True")
	w.reached("joined")
	if now := w.path("joined", "{.status.containerStatuses[0]['containerID','restartCount']}"); now != id {
		w.Errorf("the pod's container was %s, is %s", id, now)
	}
	if n := w.bootstrapped(); n != 1 {
		w.Errorf("asked with the bootstrap token %d times", n)
	}
	for _, r := range w.audited() {
		if r.User.Username == w.user() && r.ResponseStatus.Code == http.StatusUnauthorized {
			w.Errorf("refused with 401: %s %s", r.Verb, r.RequestURI)
		}
	}
	w.kubectl("delete", "pod", "joined", "later", "--timeout="+wait.Limit.String(), "--ignore-not-found")
	w.agent.Terminate(w)
	w.kubectl("delete", "node", w.name)
}

// kubeadmConfig is /var/lib/kubelet/config.yaml as kubeadm writes it, with other
// paths.
const kubeadmConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: CLIENT_CA
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: HEALTHZ
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
serverTLSBootstrap: true
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: MANIFESTS
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
port: PORT
address: ADDRESS
podLogsDir: LOGS
cgroupRoot: CGROUP
`

// joinAsKubelet: the same machine joins under the kubelet's name, with the flags and files of
// kubeadm's 10-kubeadm.conf. Settings of this machine are in KUBELET_KUBEADM_ARGS, or, if
// there is no flag for one, in the configuration.
func (w *world) joinAsKubelet(bootstrap string) {
	dir := w.TempDir()
	w.name, w.root = "n2", filepath.Join(dir, "root")
	w.socket = filepath.Join(w.root, "nodectl.sock")
	kubelet := filepath.Join(dir, "kubelet")
	if err := os.Symlink(w.program, kubelet); err != nil {
		w.Fatal(err)
	}
	health := strconv.Itoa(node.FreePort(w))
	config := filepath.Join(dir, "config.yaml")
	text := strings.NewReplacer("CLIENT_CA", w.cluster.Authority.File, "HEALTHZ", health, "MANIFESTS", w.static, "PORT", w.port,
		"ADDRESS", w.address, "LOGS", w.machine.LogsDir, "CGROUP", w.machine.CgroupParent).Replace(kubeadmConfig)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	file, certs := filepath.Join(dir, "kubelet.conf"), filepath.Join(dir, "pki")
	// KUBELET_KUBECONFIG_ARGS, KUBELET_CONFIG_ARGS, KUBELET_KUBEADM_ARGS, KUBELET_EXTRA_ARGS.
	w.agent = cluster.NewProcess(w, kubelet, dir, []string{
		"--bootstrap-kubeconfig=" + bootstrap, "--kubeconfig=" + file,
		"--config=" + config,
		"--container-runtime-endpoint=" + w.machine.Endpoint, "--pod-infra-container-image=registry.k8s.io/pause:3.10", "--hostname-override=" + w.name, "--node-ip=" + w.address,
		"--root-dir=" + w.root, "--cert-dir=" + certs, "--v=2",
	}, w.serves)
	w.agent.Start(w)
	w.awaitNode("Ready", "True")
	if err := os.WriteFile(filepath.Join(w.static, "local.yaml"), []byte(shell("local", "echo hello; "+sleeps)), 0o600); err != nil {
		w.Fatal(err)
	}
	w.awaitOutput("True", "get", "pod", "local-"+w.name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	w.reached("local-" + w.name)
	r, err := http.Get("http://127.0.0.1:" + health + "/healthz")
	if err != nil {
		w.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusOK {
		w.Errorf("/healthz is %s", r.Status)
	}
	for _, name := range []string{"kubelet-client-current.pem", "kubelet-server-current.pem"} {
		if _, err := certificateIn(filepath.Join(certs, name)); err != nil {
			w.Error(err)
		}
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), filepath.Join(certs, "kubelet-client-current.pem")) {
		w.Errorf("the kubeconfig it wrote: %v\n%s", err, text)
	}
	w.awaitOutput("v1.36.3 kubernetes.io/hostname", "get", "node", w.name, "-o", "jsonpath={.status.nodeInfo.kubeletVersion} kubernetes.io/hostname")
	if err := os.Remove(filepath.Join(w.static, "local.yaml")); err != nil {
		w.Fatal(err)
	}
	w.awaitOutput("", "get", "pod", "local-"+w.name, "--ignore-not-found", "-o", "name")
}
