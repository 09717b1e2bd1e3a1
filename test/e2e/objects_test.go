package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// configMap returns a ConfigMap's manifest; data are alternating keys and values.
func configMap(name string, data ...string) string { return object("ConfigMap", "data", name, data) }

// secretOf returns a Secret's manifest.
func secretOf(name string, data ...string) string { return object("Secret", "stringData", name, data) }

func object(kind, field, name string, data []string) string {
	text := "apiVersion: v1\nkind: " + kind + "\nmetadata: {name: " + name + "}\n" + field + ":\n"
	for i := 0; i < len(data); i += 2 {
		text += fmt.Sprintf("  %s: %q\n", data[i], data[i+1])
	}
	return text
}

// inside returns the path of a container's file for this process.
func (r running) inside(path string) string { return fmt.Sprintf("/proc/%d/root%s", r.pid, path) }

// shows returns when the container sees this text in a file.
func (s *stage) shows(r running, path, want string) {
	s.Helper()
	s.eventually(func() error {
		got, err := os.ReadFile(r.inside(path))
		if err == nil && string(got) != want {
			err = fmt.Errorf("%s is %.40q, want %.40q", path, got, want)
		}
		return err
	})
}

// nothingOf fails the scenario if anything exists of a pod that may not run.
func (s *stage) nothingOf(name string) {
	s.Helper()
	for _, b := range s.sandboxes() {
		if b.Metadata.Name == s.full(name) {
			s.Errorf("pod %s has a sandbox", name)
		}
	}
	for _, pattern := range []string{filepath.Join(s.root, "pods/*/record.json"), filepath.Join(s.logs, "*_"+s.full(name)+"_*")} {
		found, _ := filepath.Glob(pattern)
		for _, f := range found {
			if text, err := os.ReadFile(f); err != nil || bytes.Contains(text, []byte(`"`+s.full(name)+`"`)) {
				s.Errorf("pod %s has %s", name, f)
			}
		}
	}
}

// objectReader is a pod that reads config objects in every way.
func objectReader(name, annotations string) string {
	text := manifest(name, []string{
		container("main", "forever", "env: [{name: WORD, valueFrom: {configMapKeyRef: {name: conf, key: word}}}]",
			"volumeMounts: [{name: c, mountPath: /c}, {name: c, mountPath: /part, subPath: word}, {name: s, mountPath: /s}]"),
		container("side", "forever"),
	}, "volumes: [{name: c, configMap: {name: conf}}, {name: s, secret: {secretName: keys}}]")
	return strings.Replace(text, "metadata: {", "metadata: {annotations: {"+annotations+"}, ", 1)
}

// TestObjectsOfAnotherSource: a URL's pod cannot name an object of a file, nor the other way
// round; a pod can name the objects of its own source kind.
//
// Shows: C-1.38.2
func TestObjectsOfAnotherSource(t *testing.T) {
	s := parallelStage(t)
	using := func(name, secret string) string {
		return manifest(name, []string{container("main", "forever")}, "volumes: [{name: s, secret: {secretName: "+secret+"}}]")
	}
	s.write("mine.yaml", secretOf("mine", "token", canary))
	s.write("own.yaml", using("own", "mine"))
	s.write("thief.yaml", using("thief", "theirs"))
	w := s.newWeb(documents(using("guest", "mine"), using("host", "theirs"), secretOf("theirs", "token", canary)))
	s.serve("-f", w.URL)
	s.awaitRejected("file", "thief.yaml", "theirs")
	s.awaitSource(w.URL, "rejects its guest", func(it sourceState) bool {
		return len(it.Problems) == 1 && strings.Contains(it.Problems[0].Message, `mine`)
	})
	s.awaitRunning("own", "main")
	s.awaitRunning("host", "main")
	s.nothingOf("thief")
	s.nothingOf("guest")
	s.excuse("thief")
}

// secretsStay fails if a Secret's value is in a file on disk below the root directory, except
// in the last-known-good sets, or in the output of any command (I8).
func (s *stage) secretsStay(word string) {
	s.Helper()
	encoded := base64.StdEncoding.EncodeToString([]byte(word))[:len(word)/3*4]
	for _, where := range []string{s.root, s.logs} {
		if _, err := os.Stat(where); err != nil {
			continue
		}
		for path, text := range s.filesBelow(where) {
			if strings.HasPrefix(path, filepath.Join(s.root, "sources")+"/") {
				continue
			}
			if bytes.Contains(text, []byte(word)) || bytes.Contains(text, []byte(encoded)) {
				s.Errorf("a Secret is in %s", path)
			}
		}
	}
	for _, args := range [][]string{
		{"get", "pods", "-o", "yaml"}, {"get", "pods", "-o", "json"}, {"get", "sources", "-o", "json"}, {"get", "volumes", "-o", "yaml"},
		{"merge", "-f", s.manifests}, {"merge", "-f", s.manifests, "-o", "json"},
		{"merge", "--dry-run", "-f", s.manifests, "-o", "json"}, {"merge", "--dry-run", "-f", s.manifests}, {"merge", "--dry-run", "--against", "none", "-f", s.manifests},
		{"watch", "-f", s.manifests, "--full", "--show-diff", "-o", "json", "--timeout", wait.Limit.String(), "--max-events", "1"},
		{"watch", "--attach", "--full", "--show-diff", "-o", "json", "--timeout", wait.Limit.String(), "--max-events", "1"},
	} {
		r := s.run(args...)
		if said := r.out + r.err; strings.Contains(said, word) || strings.Contains(said, encoded) {
			s.Errorf("nodectl %s tells a Secret", strings.Join(args, " "))
		}
	}
	for _, b := range s.sandboxes() {
		if strings.Contains(fmt.Sprint(b.Labels, b.Annotations), word) {
			s.Errorf("the sandbox of %s tells a Secret", b.Labels[pod.LabelPodName])
		}
	}
	for _, c := range s.containers("") {
		if strings.Contains(fmt.Sprint(c.Labels, c.Annotations), word) {
			s.Errorf("container %s tells a Secret", c.Metadata.Name)
		}
	}
}
