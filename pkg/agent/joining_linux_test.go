package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/record"
)

// joining returns an agent with a kubeconfig, below whose root a Deployment web and a Job old have
// states. A file has web.
func joining(t *testing.T, workloads string) *Agent {
	t.Helper()
	root, dir := t.TempDir(), t.TempDir()
	text := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}\n" +
		"---\n" + "apiVersion: batch/v1\nkind: Job\nmetadata: {name: never-ran}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}\n"
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	states := record.NewWorkloads(root)
	for _, key := range []pod.ObjectKey{{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}}, {Kind: pod.KindJob, Key: pod.Key{Namespace: "default", Name: "old"}}} {
		if err := states.Save(key, "file:"+dir, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	cfg := config.Default()
	cfg.RootDir, cfg.RunDir, cfg.NodeName, cfg.Kubeconfig, cfg.Workloads, cfg.Filename = root, root, "n1", "node.conf", workloads, []string{dir}
	log := slog.New(slog.DiscardHandler)
	a := &Agent{cfg: Config{Config: readonly.Config{Config: cfg, Log: log, Notice: func(string) {}, Owners: []int{os.Getuid()}}}, log: log}
	return a
}

// TestJoinWithoutWorkloads_WorkloadsRunHere_AreNamed: a machine that joins a cluster does not start while
// workloads of files run on it. A workload that is only in a file does not matter.
func TestJoinWithoutWorkloads_WorkloadsRunHere_AreNamed(t *testing.T) {
	t.Parallel()
	a := joining(t, "refuse")
	err := a.joinWithoutWorkloads(t.Context())
	var failed *readonly.Error
	if !errors.As(err, &failed) || failed.Kind != readonly.Usage || len(failed.Hints) != 1 {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"deployment default/web (" + filepath.Join(a.cfg.Filename[0], "web.yaml") + ":1", "job default/old (no file has it any more)"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "never-ran") {
		t.Error(err)
	}
	a.cfg.Kubeconfig = ""
	if err := a.joinWithoutWorkloads(t.Context()); err != nil {
		t.Errorf("without a cluster: %v", err)
	}
}

// TestJoinWithoutWorkloads_Stop_RemovesTheirStates: the machine joins, and starts without the flag later.
func TestJoinWithoutWorkloads_Stop_RemovesTheirStates(t *testing.T) {
	t.Parallel()
	a := joining(t, StopWorkloads)
	if err := a.joinWithoutWorkloads(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.cfg.Workloads = "refuse"
	if err := a.joinWithoutWorkloads(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestExpander_InACluster_MakesNoPods: a workload of a last good set has no pods there, and is named
// in the log.
func TestExpander_InACluster_MakesNoPods(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	a := joining(t, "refuse")
	a.log = slog.New(slog.NewTextHandler(&log, nil))
	e := a.expander(nil)
	o := &pod.Object{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}}
	for range 2 {
		if pods, claims := e.Expand([]*pod.Object{o}); len(pods)+len(claims) > 0 {
			t.Errorf("%d pods, %d claims", len(pods), len(claims))
		}
	}
	if n := strings.Count(log.String(), "Deployment default/web"); n != 1 {
		t.Errorf("it is named %d times: %s", n, log.String())
	}
}
