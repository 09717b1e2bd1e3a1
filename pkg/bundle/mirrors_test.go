package bundle

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMirrors_HostsFiles_AreContainerds: the URLs are those that containerd pulls from, by the first
// directory that has a file for the registry. A mirror without the capability to pull is none.
func TestMirrors_HostsFiles_AreContainerds(t *testing.T) {
	t.Parallel()
	one, two := t.TempDir(), t.TempDir()
	for file, text := range map[string]string{
		filepath.Join(one, "docker.io"): "server = \"https://registry-1.docker.io\"\n[host.\"http://127.0.0.1:5000\"]\n  capabilities = [\"pull\", \"resolve\"]\n" +
			"[host.\"https://push.example\"]\n  capabilities = [\"push\"]\n[host.'https://mirror.example/v2/hub']\n  override_path = true\n",
		filepath.Join(two, "docker.io"):          "server = \"https://other.example\"\n",
		filepath.Join(two, "quay.example_5000_"): "[host.\"http://quay-mirror\"]\n",
		filepath.Join(two, "_default"):           "[host.\"http://all\"]\n",
		filepath.Join(two, "broken.example"):     "[host\n",
		filepath.Join(two, "large.example"):      "[host.\"http://x\"]\n#" + strings.Repeat("x", maxMirrorsFile) + "\n[host.\"http://y\"]\n",
	} {
		if err := os.MkdirAll(file, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(file, "hosts.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for registry, want := range map[string][]string{
		"docker.io":         {"http://127.0.0.1:5000", "https://mirror.example/v2/hub", "https://registry-1.docker.io"},
		"quay.example:5000": {"http://quay-mirror"},
		"registry.k8s.io":   {"http://all"},
		"broken.example":    nil,
		"large.example":     {"http://x"},
		"../docker.io":      nil, "..": nil, "": nil,
	} {
		if got := Mirrors([]string{one, two}, registry); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", registry, got, want)
		}
	}
	if got := Mirrors([]string{one}, "registry.k8s.io"); got != nil {
		t.Errorf("%q of a directory without a file", got)
	}
	if got, want := MirrorDirs("/r", true), []string{"/r/runtime/certs.d"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestListener_Socket_IsItsProcess: the process of a runtime is the one that listens on its socket.
func TestListener_Socket_IsItsProcess(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	if pid, ok := Listener(socket); pid != 0 || ok {
		t.Errorf("no socket: process %d, %t", pid, ok)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if pid, ok := Listener(socket); pid != os.Getpid() || !ok {
		t.Errorf("process %d, %t, want %d", pid, ok, os.Getpid())
	}
}
