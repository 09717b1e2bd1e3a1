package agent

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/pod"
)

// usedNames returns the names of a node on which an earlier agent ran the DNS server on 10.98.0.10,
// and the path of its record. No process runs.
func usedNames(t *testing.T, set func(*config.Config)) (n *dnsServer, record string) {
	t.Helper()
	cfg := config.Default()
	cfg.RootDir, cfg.ServiceCIDR = t.TempDir(), []string{"10.98.0.0/16"}
	cfg.RunDir = filepath.Join(cfg.RootDir, "run")
	set(&cfg)
	all := Config{Config: readonly.Config{Config: cfg, Log: slog.New(slog.DiscardHandler)}}
	settings, _ := dnsProcess(all)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	js, err := json.Marshal(map[string]any{"boot": strings.TrimSpace(string(boot)), "addresses": []string{"10.98.0.10"}})
	record = filepath.Join(settings.Dir, "dns.json")
	if err := errors.Join(err, os.MkdirAll(settings.Dir, 0o700), os.WriteFile(record, js, 0o600)); err != nil {
		t.Fatal(err)
	}
	return newDNSServer(all), record
}

// wantRecord fails unless the record of the DNS server is there, or not.
func wantRecord(t *testing.T, path string, want bool) {
	t.Helper()
	if _, err := os.Stat(path); (err == nil) != want || err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record: %v, want it: %t", err, want)
	}
}

// A server that is turned off continues for the pods that existed, and for no new pod.
func TestDNSServer_TurnedOff_ServesUntilItsPodsAreGone(t *testing.T) {
	for name, off := range map[string]func(*config.Config){
		"--dns=false":   func(c *config.Config) { c.DNS = false },
		"--cluster-dns": func(c *config.Config) { c.ClusterDNS = []string{"192.0.2.53"} },
		"kubeconfig":    func(c *config.Config) { c.Kubeconfig = "/nowhere" },
	} {
		n, record := usedNames(t, off)
		pods, failure := []pod.Record{{UID: "old"}}, error(nil)
		n.resume(func() ([]pod.Record, error) { return pods, failure })
		if n.supervisor == nil || !n.retiring {
			t.Fatalf("%s: the server is not kept for the pod that may use it", name)
		}
		if servers, _ := n.servers(); len(servers) > 0 {
			t.Errorf("%s: a new pod gets %v", name, servers)
		}
		pods = append(pods, pod.Record{UID: "new"})
		if !n.isUsed() {
			t.Errorf("%s: a pod is left", name)
		}
		pods, failure = nil, errors.New("broken")
		if !n.isUsed() {
			t.Errorf("%s: the list cannot be read", name)
		}
		pods, failure = []pod.Record{{UID: "new"}}, nil
		if n.isUsed() {
			t.Errorf("%s: a new pod does not use it", name)
		}
		wantRecord(t, record, true)
		n.retire()
		wantRecord(t, record, false)
	}
}

// Without pods, or with another address now, a server that is turned off ends at the start of the
// agent. A server that is turned on stays.
func TestDNSServer_TurnedOffWithoutUsers_EndsAtStart(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*config.Config)
		pods []pod.Record
		want bool
	}{
		"off, no pods":       {set: func(c *config.Config) { c.DNS = false }},
		"off, another range": {func(c *config.Config) { c.DNS, c.ServiceCIDR = false, []string{"10.99.0.0/16"} }, []pod.Record{{UID: "old"}}, false},
		"no range":           {func(c *config.Config) { c.ServiceCIDR = nil }, []pod.Record{{UID: "old"}}, false},
		"on":                 {func(*config.Config) {}, nil, true},
	} {
		n, record := usedNames(t, c.set)
		n.resume(func() ([]pod.Record, error) { return c.pods, nil })
		if (n.supervisor != nil) != c.want {
			t.Errorf("%s: kept: %t, want %t", name, n.supervisor != nil, c.want)
		}
		wantRecord(t, record, c.want)
	}
}

// A server that is turned off may end while the agent starts, with the last pod of a workload that
// --workloads=stop removes.
func TestDNSServer_TurnedOffAndEndsAtStart_IsForgotten(t *testing.T) {
	n, _ := usedNames(t, func(c *config.Config) { c.Kubeconfig = "/nowhere" })
	n.retire()
	n.resume(func() ([]pod.Record, error) { return nil, nil })
	if n.supervisor != nil {
		t.Error("the agent keeps a server that has ended")
	}
}
