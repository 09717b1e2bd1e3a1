package config

import "path/filepath"

// SocketPath is the path that clients connect to: a link to ListenPath.
func (c Config) SocketPath() string { return filepath.Join(c.Run(), "nodectl.sock") }

// ListenPath is the path of the agent's socket, in a directory that only its owner can
// enter: containers in user namespaces can enter the run directory (C-1.42).
func (c Config) ListenPath() string { return filepath.Join(c.Run(), "agent", "nodectl.sock") }

// Images returns the directory of image archives.
func (c Config) Images() string {
	if c.ImageDir != "" {
		return c.ImageDir
	}
	return filepath.Join(c.RootDir, "images")
}

// LogLinks returns the directory with links to containers' logs, for log collectors. It is next to
// the directory of the pods' logs, as in /var/log (C-1.22.10).
func (c Config) LogLinks() string {
	if c.PodLogsDir == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(c.PodLogsDir), "containers")
}

// Certificates returns the directory of this node's certificates.
func (c Config) Certificates() string {
	if c.CertDir != "" {
		return c.CertDir
	}
	return filepath.Join(c.RootDir, "pki")
}

// Plugins returns the directory of the sockets of plugins: KubeletDir if it is set. Otherwise it is
// the kubelet's directory for the default root directory, and a directory below any other root
// directory. So agents with different root directories have different plugins.
func (c Config) Plugins() string {
	switch {
	case c.KubeletDir != "":
		return c.KubeletDir
	case c.RootDir == Default().RootDir:
		return "/var/lib/kubelet"
	}
	return filepath.Join(c.RootDir, "kubelet")
}

// ServerPort returns the TCP port of the server, 0 for none.
func (c Config) ServerPort() int {
	switch {
	case c.Port >= 0:
		return c.Port
	case c.Kubeconfig != "":
		return 10250
	}
	return 0
}

// SourceNames returns the names of -f, or the default directory if no source is
// configured.
func (c Config) SourceNames() []string {
	if len(c.Filename)+len(c.EtcdEndpoints) == 0 && c.Kubeconfig == "" {
		return []string{DefaultManifests}
	}
	return c.Filename
}
