package arm

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	kubelet "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// A kubelet accepts the configuration and gets no directory that the whole machine uses.
func TestAKubeletIsKeptToItsOwnPlaces(t *testing.T) {
	k := Place{NodeName: "n", Dir: t.TempDir(), Root: "/r", Logs: "/l", Cgroup: "/", Endpoint: "unix:///e", Manifests: "/m"}
	a := &Agent{Config: "failSwapOn: false\n"}
	args, err := a.configure(k)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(k.Dir, "kubelet.yaml")
	for _, want := range [][]string{{"--config", file}, {"--root-dir", "/r"}, {"--cert-dir", k.Dir + "/pki"}, {"--hostname-override", "n"}} {
		if i := slices.Index(args, want[0]); i < 0 || args[i+1] != want[1] {
			t.Errorf("no %v in %q", want, args)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c kubelet.KubeletConfiguration
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if c.PodLogsDir != "/l" || c.CgroupRoot != "/" || c.ContainerRuntimeEndpoint != "unix:///e" || c.VolumePluginDir != k.Dir+"/plugins" ||
		*c.MakeIPTablesUtilChains || *c.FailSwapOn || c.StaticPodPath != "/m" || int(c.ReadOnlyPort) != a.ports[1] || int(*c.HealthzPort) != a.ports[2] {
		t.Errorf("the configuration is\n%s", text)
	}
}

func TestLinksOfOthersStay(t *testing.T) {
	if err := os.MkdirAll(LinksDir, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ours, theirs := filepath.Join(LinksDir, filepath.Base(dir)+"-ours"), filepath.Join(LinksDir, filepath.Base(dir)+"-theirs")
	for link, to := range map[string]string{ours: dir + "/0.log", theirs: dir + "-2/0.log"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(link) })
	}
	if err := Unlink(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(ours); !os.IsNotExist(err) {
		t.Errorf("the link to the directory: %v", err)
	}
	if _, err := os.Lstat(theirs); err != nil {
		t.Errorf("the link to another: %v", err)
	}
}

func TestGroupsGoThatAreEmpty(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"a/b/c", "busy/in"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "busy/in/file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if left := removeBelow(dir); left != 2 {
		t.Errorf("%d are left, want busy and busy/in", left)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); !os.IsNotExist(err) {
		t.Errorf("an empty one: %v", err)
	}
}

// A pod that was reported as not Ready counts once, and only since the agent's restart.
func TestJournalFlips(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	line := func(at time.Time, pod, ready string) string {
		return `{"time":"` + at.Format(time.RFC3339Nano) + `","pod":{"metadata":{"name":"` + pod + `"},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"` + ready + `"}]}}}` + "\n"
	}
	file := filepath.Join(t.TempDir(), "journal.jsonl")
	text := line(begin.Add(-time.Second), "a", "False") + line(begin.Add(time.Second), "b", "True") +
		line(begin.Add(time.Second), "c", "False") + line(begin.Add(2*time.Second), "c", "False") + `{"torn`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := journalFlips(file, begin); n != 1 || err != nil {
		t.Errorf("%d flips, %v; want 1", n, err)
	}
}
