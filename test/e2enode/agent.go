package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/suite"
)

// The agents.
const (
	kubelet = "kubelet"
	nodectl = "nodectl"
)

// rootDir is the agent's. The suite looks for files below it.
const rootDir = "/var/lib/kubelet"

// configuration is that of the suite's services/kubelet.go, with settings for a machine with cgroup
// v1. nodectl gets the same, and flags that revert settings which it rejects.
const configuration = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupRoot: /
cgroupDriver: cgroupfs
volumeStatsAggPeriod: 10s
serializeImagePulls: false
fileCheckFrequency: 10s
podCIDR: 10.100.0.0/24
clusterDomain: cluster.local
evictionPressureTransitionPeriod: 30s
evictionHard: {memory.available: 250Mi, nodefs.available: 10%%, nodefs.inodesFree: 5%%}
evictionMinimumReclaim: {nodefs.available: 5%%, nodefs.inodesFree: 5%%}
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}, x509: {clientCAFile: %s}}
authorization: {mode: AlwaysAllow}
readOnlyPort: %d
staticPodPath: %s
kubeletCgroups: /kubelet
systemCgroups: /system
volumePluginDir: /var/lib/kubelet/volume-plugins
failCgroupV1: false
`

// readOnlyPort is the kubelet's port without authentication. nodectl has none: the harness
// serves it for nodectl.
const readOnlyPort = 10255

// healthURL is where the suite asks whether the agent runs.
const healthURL = "http://127.0.0.1:10248/healthz"

// startAgent writes the agent's configuration, starts it as the unit that the suite stops and
// starts, and returns when its node is ready.
func (s *stage) startAgent(agent string) error {
	config, dropIns, pods := filepath.Join(s.work, "kubelet-config"), filepath.Join(s.work, "kubelet.conf.d"), filepath.Join(s.work, "static-pods")
	for _, d := range []string{dropIns, pods, rootDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	text := fmt.Sprintf(configuration, s.cluster.Authority.File, readOnlyPort, pods)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	args := []string{
		"--root-dir=" + rootDir, "--config=" + config, "--config-dir=" + dropIns, "--v=4", "--node-ip=" + address,
		"--hostname-override=" + nodeName, "--container-runtime-endpoint=" + s.node.Endpoint,
	}
	return suite.Try(func() {
		args = append(args, "--kubeconfig="+s.cluster.NodeKubeconfig(s.tb, nodeName))
		path := program.Kubelet()
		if agent == nodectl {
			path = s.nodectl()
			// The suite writes the address that it reads into the configuration: it is that of the
			// harness's read-only port.
			args = append(args, "--address=0.0.0.0", "--read-only-port=0", "--anonymous-auth=false", "--authentication-token-webhook=true", "--authorization-mode=Webhook")
			s.serveReadOnly()
			s.url = s.announceReadOnly()
		}
		s.unit = newUnit(s.tb, cluster.NewProcess(s.tb, path, s.logs, args, healthy))
		s.unit.process.Start(s.tb)
	})
}

// nodectl returns the path of nodectl under the name by which it stands in for a kubelet.
func (s *stage) nodectl() string {
	binary, err := node.Slim()
	path := filepath.Join(s.dir, "bin", kubelet)
	if err == nil {
		err = os.Symlink(binary, path)
	}
	if err != nil {
		s.tb.Fatal(err)
	}
	return path
}

// healthy returns nil when the agent answers.
func healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, healthURL, nil)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", healthURL, r.Status)
	}
	return nil
}

// asAdmin is a transport with the administrator's certificate; it does not verify the server,
// as the API server does not verify an agent.
func (s *stage) asAdmin() *http.Transport {
	pair := s.cluster.Authority.Issue(s.tb, "harness", cluster.Identity{User: "harness", Groups: []string{"system:masters"}})
	config := s.cluster.Authority.TLS(s.tb, pair)
	config.InsecureSkipVerify = true
	config.NextProtos = []string{"http/1.1"} // upgrades need it
	return &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: false}
}

// serverTLS is the configuration of a server with a certificate of the cluster.
func (s *stage) serverTLS() *tls.Config {
	pair := s.cluster.Authority.Issue(s.tb, "harness-server", cluster.Identity{User: "harness", Hosts: []string{"127.0.0.1", "localhost"}})
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		s.tb.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
}
