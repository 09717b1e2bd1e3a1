//go:build full

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/registry"
)

// TestI8_SecretsInEveryUse: a Secret that a pod mounts, has in its environment and pulls with
// appears in no log, journal, record, table, dry run or answer of the socket, not even where
// the pull fails or the key is missing.
//
// Shows: I8
func TestI8_SecretsInEveryUse(t *testing.T) {
	s := parallelStage(t)
	r := registry.New(t, registry.Options{User: "u", Password: canary})
	image := r.Push(t, "data:1", 1, 1000)
	login := func(name, password string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\ntype: kubernetes.io/dockerconfigjson\nmetadata: {name: %s}\nstringData: {.dockerconfigjson: '{\"auths\":{%q:{\"username\":\"u\",\"password\":%q}}}'}\n", name, r.Host, password)
	}
	s.write("secrets.yaml", documents(login("good", canary), login("bad", canary+"-not"), secretOf("keys", "token", canary, "bad key", canary)))
	s.write("keys.yaml", secretOf("keys", "token", canary))
	pulling := func(name, secret string) string {
		return manifest(name, []string{
			container("main", "forever", "volumeMounts: [{name: i, mountPath: /i}, {name: s, mountPath: /s}]", "envFrom: [{secretRef: {name: keys}, prefix: P_}]",
				"env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: keys, key: token}}}]"),
		}, "imagePullSecrets: [{name: "+secret+"}]", "volumes: [{name: i, image: {reference: '"+image+"'}}, {name: s, secret: {secretName: keys}}]")
	}
	s.excuse("refused", "lost")
	s.write("refused.yaml", pulling("refused", "bad"))
	s.write("lost.yaml", manifest("lost", []string{container("main", "forever", "env: [{name: A, valueFrom: {secretKeyRef: {name: keys, key: gone}}}]")}))
	a := s.serve("--log-level", "debug")
	s.awaitRejected("file", "secrets.yaml", "config key")
	s.awaitRejected("file", "lost.yaml", "gone")
	// The file of all Secrets is corrected.
	s.write("secrets.yaml", documents(login("good", canary), login("bad", canary+"-not")))
	st := s.awaitStatus("refused", "the pull fails", func(st v1.PodStatus) bool {
		return strings.Contains(describe(st), "ImagePull")
	})
	if strings.Contains(describe(st), canary) {
		t.Error("the status tells the password")
	}
	s.write("web.yaml", pulling("web", "good"))
	main := s.awaitRunning("web", "main")["main"]
	s.awaitReady("web", true)
	s.awaitLog("web", "main", 0, "started")
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", main.pid)); err != nil || !holds(string(env), []string{"\x00TOKEN=" + canary, "\x00P_token=" + canary}) {
		t.Errorf("the container's environment: %d bytes, %v", len(env), err)
	}
	if files, err := os.ReadDir(main.inside("/i")); err != nil || len(files) == 0 {
		t.Errorf("the image volume holds %v, %v", files, err)
	}
	s.secretsStay(canary)
	// A dry run shows that a Secret would change, not its values.
	other := filepath.Join(s.dir, "other")
	s.must(os.CopyFS(other, os.DirFS(s.manifests)), os.WriteFile(filepath.Join(other, "keys.yaml"), []byte(secretOf("keys", "token", canary+"-changed")), 0o600))
	if r := s.run("merge", "--dry-run", "--against", "runtime", "-f", other); !strings.Contains(r.out, "redacted") || strings.Contains(r.out+r.err, canary) {
		t.Errorf("a dry run of another Secret says:\n%s%s", r.out, r.err)
	}
	s.write("keys.yaml", secretOf("keys", "token", canary+"-changed"))
	s.shows(main, "/s/token", canary+"-changed")
	s.secretsStay(canary)
	for _, l := range a.linesWith(canary) {
		t.Errorf("the agent says: %s", l)
	}
	for _, f := range []string{"web", "refused"} {
		s.remove(f + ".yaml")
		s.awaitGone(f)
	}
	s.secretsStay(canary)
}
