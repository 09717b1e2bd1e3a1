//go:build full

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestF34_SaysWhyAPodIsStuck: where another program has made the pods' cgroups, doctor names
// them. runonce, in its lines and its report, and describe of the agent's pod say which step
// of the pod fails; none of them shows a secret. When the cgroups are gone, the pod starts.
//
// Shows: F34
func TestF34_SaysWhyAPodIsStuck(t *testing.T) {
	s := parallelStage(t)
	file := "memory"
	if unified() {
		file = ""
	}
	tree := filepath.Join("/sys/fs/cgroup", file, s.cgroupRoot(), "kubepods")
	s.must(os.MkdirAll(filepath.Join(tree, "podother"), 0o755))
	mend := func() {
		for _, dir := range []string{"podother", "."} {
			_ = os.Remove(filepath.Join(tree, dir)) // it may be gone
		}
	}
	t.Cleanup(mend)
	const reason, words = "FailedCreatePodContainer", "is not nodectl's, and podother is in it"

	r := s.run("doctor", "-f", s.manifests, "-o", "json")
	var report struct {
		Findings []struct{ Code, Severity, Message, Remedy string }
	}
	s.must(json.Unmarshal([]byte(r.out), &report))
	i := slices.IndexFunc(report.Findings, func(f struct{ Code, Severity, Message, Remedy string }) bool { return f.Code == "ND018" })
	if i < 0 || report.Findings[i].Severity != "blocks" || report.Findings[i].Message != "cgroup "+tree+" "+words || r.code != 1 {
		t.Errorf("doctor: exit code %d\n%s", r.code, r.out)
	}

	s.write("web.yaml", manifest("web", []string{container("main", "forever", secret)}))
	once := s.run("runonce", "-f", s.manifests, "--timeout", "8s", "-o", "json")
	var done runReport
	s.must(json.Unmarshal([]byte(once.out), &done))
	if p := done.Pods[0]; once.code != 4 || p.Result != "timeout" || p.Reason != reason || !strings.Contains(p.Message, words) {
		t.Errorf("runonce's report: exit code %d\n%s", once.code, once.out)
	}
	text := s.run("runonce", "-f", s.manifests, "--timeout", "8s")
	for what, said := range map[string]string{"line": text.err, "table": text.out} {
		if !strings.Contains(said, "default") || !strings.Contains(said, reason+": ") || !strings.Contains(said, words) {
			t.Errorf("runonce's %s: %q", what, said)
		}
	}

	s.serve()
	s.eventually(func() error {
		shown := s.run("describe", "pod", s.full("web"))
		if !strings.Contains(shown.out, reason+": ") || !strings.Contains(shown.out, words) {
			return fmt.Errorf("describe:\n%s%s", shown.out, shown.err)
		}
		return nil
	})
	for _, said := range []string{r.out, once.out, once.err, text.out, text.err} { // describe shows a pod's own text
		if strings.Contains(said, canary) {
			t.Errorf("a secret is printed:\n%s", said)
		}
	}
	mend()
	s.awaitReady("web", true)
	if r := s.run("doctor", "-f", s.manifests); strings.Contains(r.out, "ND018") {
		t.Errorf("doctor of what is nodectl's:\n%s", r.out)
	}
}
