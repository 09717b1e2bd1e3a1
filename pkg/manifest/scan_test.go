package manifest

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

const several = `# What people write.
apiVersion: v1
kind: Pod
metadata:
    name: web
    labels: {app: web, tier: 'front', empty: "", image: a:1}
spec:
  containers:
  - name: a
    image: registry.example/a:1.27 # here
    command: [sh, -c, "echo \"a\"; exit 1", './x', --flag=1]
    args:
      - |
        set -e
        if a: b; then

          echo 'x' # no comment
        fi
      - -v
      - 10
    env:
    - {name: A, value: "1"}
    - name: B
      value: |-
        one
        two
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {}}
  -   name: b
  nested:
  - - a
    - b: c
      d:
      - e
  hostIP: 10.0.0.1
  flags: [true, false, nullify, 0, 18]
  nothing:
  last: a b  c
`

// manifests returns texts to edit.
func manifests(t *testing.T) []string {
	t.Helper()
	texts := []string{ordinary, several}
	for _, name := range []string{"crash", "init", "job", "web"} {
		data, err := os.ReadFile("../../examples/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(data))
	}
	return texts
}

var tokens = []string{
	"- ", "-", ": ", ":", " #", "#", "? ", "|\n", "|-\n", ">\n", "[", "]", "{", "}", ",", ", ", "\"", "'", "''", "\\n",
	"&a ", "*a", "!!str ", "~", "yes", "null", "1e3", "\n", "\n\n", "  ", " ", "a: b", "- a", "---\n", "...\n", "%", "@",
	"`", "0", "<<: ", "a:b", "/", "null", "yes", "1.5", "0x10", "010", "2001-01-01", "1_0", "-.inf", "'a': ", "\"a\": ",
	"- # x\n", "é", "\t", "\r", "...", "1Ki", "8080:80", ".5",
}

// edited returns a manifest edited as people and editors do it, lines moved,
// indented, cut and joined, tokens put where they do not belong.
func edited(t *rapid.T, texts []string) []byte {
	lines := strings.SplitAfter(rapid.SampledFrom(texts).Draw(t, "text"), "\n")
	for range rapid.IntRange(0, 4).Draw(t, "edits") {
		i := rapid.IntRange(0, len(lines)-1).Draw(t, "line")
		switch rapid.IntRange(0, 6).Draw(t, "edit") {
		case 0:
			lines[i] = strings.Repeat(" ", rapid.IntRange(1, 4).Draw(t, "more")) + lines[i]
		case 1:
			lines[i] = strings.TrimPrefix(lines[i], strings.Repeat(" ", rapid.IntRange(1, 4).Draw(t, "less")))
		case 2:
			lines = slices.Insert(lines, i, rapid.SampledFrom(lines).Draw(t, "inserted"))
		case 3:
			if len(lines) > 1 {
				lines = slices.Delete(lines, i, i+1)
			}
		case 4:
			j := rapid.IntRange(0, len(lines)-1).Draw(t, "other")
			lines[i], lines[j] = lines[j], lines[i]
		default:
			at := rapid.IntRange(0, len(lines[i])).Draw(t, "at")
			lines[i] = lines[i][:at] + rapid.SampledFrom(tokens).Draw(t, "token") + lines[i][at:]
		}
	}
	return []byte(strings.Join(lines, ""))
}

// TestScan_CountsEditedManifests compares the counts before decoding with the decoded document.
func TestScan_CountsEditedManifests(t *testing.T) {
	t.Parallel()
	texts := manifests(t)
	rapid.Check(t, func(t *rapid.T) {
		for _, c := range split(edited(t, texts)) {
			sameCount(t, c)
		}
	})
}

// sameCount holds the scan of a chunk of YAML to its nodes: it never counts more
// of them, and not so many fewer that a limit means nothing.
func sameCount(t interface{ Fatalf(string, ...any) }, c chunk) {
	in, problem := scan(c)
	var root, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(c.text))
	if problem != nil || dec.Decode(&root) != nil || len(root.Content) == 0 || dec.Decode(&more) != io.EOF {
		return // not YAML, or not to its end
	}
	nodes, height := 0, 0
	var walk func(n *yaml.Node, depth int)
	walk = func(n *yaml.Node, depth int) {
		nodes++
		height = max(height, depth)
		for _, c := range n.Content {
			walk(c, depth+1)
		}
	}
	walk(root.Content[0], 0)
	if in.documents == 1 && (in.values > nodes || nodes > 4*in.values) || height > 2*maxDepth+2 {
		t.Fatalf("%d values counted, %d there, %d deep, in %q", in.values, nodes, height, c.text)
	}
}
