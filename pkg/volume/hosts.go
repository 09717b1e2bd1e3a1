package volume

import (
	"bytes"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podenv"
)

// hosts writes the pod's /etc/hosts (C-1.38.5) if it has other content, and returns its
// mount. It writes in place, because running containers have the file mounted. On a full or
// read-only disk, a pod without aliases gets the runtime's file instead (F12, F13).
func (v *Volumes) hosts(dir string, want *pod.Spec, podIPs []string) ([]pod.Mount, error) {
	var node []byte
	if want.Pod.Spec.HostNetwork {
		var err error
		if node, err = os.ReadFile(etcHosts); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(dir, hostsFile)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = writeInPlace(path, podenv.HostsFile(want, podIPs, node, v.cfg.ClusterDomain))
	}
	switch {
	case err == nil:
		return []pod.Mount{{HostPath: path, ContainerPath: etcHosts, Relabel: v.cfg.SELinux}}, nil
	case diskRefuses(err) && len(want.Pod.Spec.HostAliases) == 0:
		v.log.Warn("Failed to write hosts file; the pod has the runtime's", "path", path, "error", err)
		return nil, nil
	}
	return nil, err
}

// writeInPlace writes text to the file at path, 0644, without replacing the file.
func writeInPlace(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	have := make([]byte, len(text)+1)
	n, _ := f.ReadAt(have, 0)
	if !bytes.Equal(have[:n], text) {
		if err := f.Truncate(0); err != nil {
			return err
		}
		if _, err := f.WriteAt(text, 0); err != nil {
			return err
		}
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	return f.Close()
}
