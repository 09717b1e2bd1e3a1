package readonly

import (
	"context"
	"path/filepath"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/doctor"
	"github.com/nodectl/nodectl/pkg/pod"
)

// DoctorConfig returns the settings that serve would run with. files are the files of the configuration;
// nodeNameGiven says that the configuration has the node's name.
func (c Config) DoctorConfig(files []string, nodeNameGiven bool) doctor.AgentConfig {
	sources := c.Filename
	if len(sources) == 0 {
		sources = []string{config.DefaultManifests}
	}
	w := doctor.AgentConfig{
		NodeName: c.NodeName, RootDir: c.RootDir, Permissive: c.InsecureManifestPermissions,
		Kubeconfig: wholePath(c.Kubeconfig), Bootstrap: wholePath(c.BootstrapKubeconfig), CertDir: c.Certificates(),
		ClientCA: wholePath(c.ClientCAFile), ServerCert: wholePath(c.TLSCertFile), ServerKey: wholePath(c.TLSPrivateKeyFile),
		ResolvConf: c.ResolvConf, LogDir: c.PodLogsDir,
		Address: c.Address, Port: c.ServerPort(), HealthzPort: c.HealthzPort, FailSwapOn: c.FailSwapOn, Protect: c.ProtectKernelDefaults,
		Settings: doctor.Settings{
			Cluster: c.Kubeconfig != "", NodeNameGiven: nodeNameGiven,
			RotateCertificates: c.RotateCertificates, RotateServer: c.RotateServerCertificates, ServerPort: c.ServerPort(),
			IdleTimeout: c.StreamingConnectionIdleTimeout, EventQPS: c.EventQPS, PodPidsLimit: c.PodPidsLimit,
			MinTLS: c.TLSMinVersion, CipherSuites: c.TLSCipherSuites,
		},
	}
	for _, path := range files {
		w.ConfigFiles = append(w.ConfigFiles, wholePath(path))
	}
	w.Thresholds, _ = pod.ParseThresholds(c.EvictionHard)
	for _, name := range sources {
		if name != "-" && !config.IsURL(name) {
			w.Manifests = append(w.Manifests, wholePath(name))
		}
	}
	return w
}

// wholePath returns the absolute path; "" stays "".
func wholePath(path string) string {
	if path == "" {
		return ""
	}
	if whole, err := filepath.Abs(path); err == nil {
		return whole
	}
	return path
}

// RuntimeFacts returns facts about the runtime that serve would use. It starts nothing.
func (c Config) RuntimeFacts(ctx context.Context) doctor.Runtime {
	found, err := c.Discover(ctx)
	if err != nil {
		return doctor.Runtime{Err: err.Error()}
	}
	d := doctor.Runtime{Endpoint: found.Endpoint, Bundled: found.Kind == KindBundled}
	if d.Endpoint == "" {
		d.Endpoint = bundle.New(c.Bundle()).Endpoint() // it runs if an agent has started it
	}
	r, err := cri.Dial(c.CRI(d.Endpoint))
	if err != nil {
		d.Err = err.Error()
		return d
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(ctx, c.RuntimeTimeout)
	defer cancel()
	ready, err := r.Ready(ctx)
	if err != nil {
		d.Err = err.Error()
		return d
	}
	d.Ready, d.ReadyMsg, d.Network, d.NetMsg = ready.Runtime, ready.RuntimeMessage, ready.Network, ready.NetworkMessage
	if d.Name, d.Version, err = r.Version(ctx); err != nil || d.Name == "" {
		d.Name = "the runtime"
	}
	systemd, err := r.Driver(ctx)
	d.Systemd, d.Driver = systemd, err == nil
	return d
}
