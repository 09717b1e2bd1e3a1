package manifest

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

var update = flag.Bool("update", false, "rewrite the goldens")

func options(file string) Options {
	return Options{Node: "N1", Source: "file", Location: "dir/", File: file, Static: true}
}

// TestParse_Goldens reads every file of every archive in testdata. The comment of an archive
// describes the case; "want" is the result, and "pod NAME" sections have complete pods. A line
// "validate: X" in the comment sets Options.Validate, "static: false" is for pods of an API,
// "member: true" for a node of a cluster.
//
// Shows: C-1.5.3, F45
func TestParse_Goldens(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives in testdata: %v", err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			golden(t, path)
		})
	}
}

func golden(t *testing.T, path string) {
	ar, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pods := map[string]string{}
	var got strings.Builder
	out := &txtar.Archive{Comment: ar.Comment}
	for _, f := range ar.Files {
		if f.Name == "want" || strings.HasPrefix(f.Name, "pod ") {
			continue
		}
		out.Files = append(out.Files, f)
		o := options(f.Name)
		for line := range strings.Lines(string(ar.Comment)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "validate: "); ok {
				o.Validate = v
			}
			switch strings.TrimSpace(line) {
			case "static: false":
				o.Static = false
			case "member: true":
				o.Member = true
			}
		}
		read, warnings := Parse(f.Data, o)
		got.WriteString(render(read, warnings))
		for _, s := range read.Pods {
			y, err := yaml.Marshal(s.Pod)
			if err != nil {
				t.Fatal(err)
			}
			pods["pod "+s.Name] = string(y)
		}
	}
	out.Files = append(out.Files, txtar.File{Name: "want", Data: []byte(got.String())})
	want := ""
	for _, f := range ar.Files {
		switch {
		case f.Name == "want":
			want = string(f.Data)
		case strings.HasPrefix(f.Name, "pod "):
			out.Files = append(out.Files, txtar.File{Name: f.Name, Data: []byte(pods[f.Name])})
			if diff := gocmp.Diff(string(f.Data), pods[f.Name]); diff != "" && !*update {
				t.Errorf("%s (-want +got):\n%s", f.Name, diff)
			}
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(out), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// render writes a reading as text, one fact per line.
func render(f source.File, warnings []pod.Problem) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:", f.File)
	if f.Incomplete {
		b.WriteString(" incomplete")
	}
	b.WriteString("\n")
	for _, s := range f.Pods {
		fmt.Fprintf(&b, "  pod %s at %s\n", s.Key, s.Origin)
	}
	for _, o := range f.Objects {
		fmt.Fprintf(&b, "  %s %s at %s\n", o.Kind, o.Key, o.Origin)
	}
	for _, k := range f.Broken {
		fmt.Fprintf(&b, "  broken %s\n", k)
	}
	for _, k := range f.BrokenObjects {
		fmt.Fprintf(&b, "  broken %s %s\n", cmp.Or(k.Kind, "workload"), k.Key)
	}
	for _, p := range f.Problems {
		fmt.Fprintf(&b, "  error: %s\n", p.Error())
		if p.Hint != "" {
			fmt.Fprintf(&b, "    hint: %s\n", p.Hint)
		}
	}
	for _, p := range warnings {
		fmt.Fprintf(&b, "  warning: %s\n", p.Error())
	}
	return b.String()
}
