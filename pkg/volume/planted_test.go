package volume_test

import (
	"os"
	"path/filepath"
	"testing"
)

// A container that can write to a volume's directory on the host replaces the agent's files
// by links to a file and a directory of the host. The next write and the removal follow
// none of them. podman's kube play wrote through such links (CVE-2025-9566), and the
// kubelet removed their targets (CVE-2017-1002102).
//
// Shows: D1
func TestCVE_2025_9566_2017_1002102_PlantedLinks_LeadNowhere(t *testing.T) {
	t.Parallel()
	host := t.TempDir()
	file := filepath.Join(host, "shadow")
	write(t, file, "host")
	for name, plant := range map[string]struct {
		target string
		path   func(current string) string // current is the directory with the data
	}{
		"the link of the key":       {file, func(string) string { return "a" }},
		"the link to the data":      {host, func(string) string { return "..data" }},
		"the next link to the data": {host, func(string) string { return "..data_tmp" }},
		"the key's file":            {file, func(current string) string { return filepath.Join(current, "a") }},
		"the directory of the data": {host, func(current string) string { return current }},
	} {
		p := newPlace(t)
		s := withUID(spec(configMapVolume("v", "conf")), uid)
		p.setUp(t, bound(s, configMapObject("conf", map[string]string{"a": "one"})), 1)
		dir := p.volume("kubernetes.io~configmap", "v")
		current, err := os.Readlink(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, plant.path(current))
		if err := os.RemoveAll(link); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(plant.target, link); err != nil {
			t.Fatal(err)
		}
		p.setUp(t, bound(s, configMapObject("conf", map[string]string{"a": "two"})), 1)
		if text, err := os.ReadFile(filepath.Join(dir, "..data", "a")); string(text) != "two" {
			t.Errorf("%s: the volume holds %q, %v", name, text, err)
		}
		if err := p.TearDown(t.Context(), uid, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text, err := os.ReadFile(file); string(text) != "host" {
			t.Errorf("%s: the host's file holds %q, %v", name, text, err)
		}
		if entries, err := os.ReadDir(host); len(entries) != 1 {
			t.Errorf("%s: the host's directory holds %v, %v", name, entries, err)
		}
	}
}
