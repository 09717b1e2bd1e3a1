package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
)

var update = flag.Bool("update", false, "rewrite docs/kubelet-config.md")

// field is one field of the type: its path, and the kinds that can hold it.
type field struct {
	path  string
	kinds []fieldKind
	zero  bool // it cannot tell a zero from none
}

// typeFields walks a struct of the configuration. A field with a row of the kind
// whole ends the walk.
func typeFields(t *testing.T, above string, typ reflect.Type, rows map[string]kubeletRow) (all []field) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous {
			continue // apiVersion and kind
		}
		path := above + name
		if rows[path].kind == ofWhole {
			all = append(all, field{path: path, kinds: []fieldKind{ofWhole}})
			continue
		}
		typ, pointer := f.Type, f.Type.Kind() == reflect.Pointer
		if pointer {
			typ = typ.Elem()
		}
		kinds, zero := kindsOf(typ)
		switch {
		case kinds != nil:
			all = append(all, field{path, kinds, zero && !pointer})
		case typ.Kind() == reflect.Struct:
			all = append(all, typeFields(t, path+".", typ, rows)...)
		default:
			t.Errorf("%s: no kind holds %s", path, typ)
		}
	}
	return all
}

func kindsOf(typ reflect.Type) (kinds []fieldKind, zero bool) {
	switch typ {
	case reflect.TypeFor[metav1.Duration]():
		return []fieldKind{ofSpan}, true
	case reflect.TypeFor[[]v1.Taint]():
		return []fieldKind{ofTaints}, false
	case reflect.TypeFor[map[string]string]():
		return []fieldKind{ofAmounts}, false
	case reflect.TypeFor[map[string]bool]():
		return []fieldKind{ofGates}, false
	case reflect.TypeFor[map[string][]string]():
		return []fieldKind{ofHeaders}, false
	}
	switch typ.Kind() {
	case reflect.String:
		return []fieldKind{ofText, ofPath}, true
	case reflect.Bool:
		return []fieldKind{ofTruth}, true
	case reflect.Int32, reflect.Int64, reflect.Uint32:
		return []fieldKind{ofNumber}, true
	case reflect.Float64:
		return []fieldKind{ofFraction}, true
	case reflect.Slice:
		switch typ.Elem().Kind() {
		case reflect.String:
			return []fieldKind{ofTexts}, false
		case reflect.Int32:
			return []fieldKind{ofNumbers}, false
		}
	}
	return nil, false
}

// TestC_1_44_3_EveryFieldHasARow: what the type has and the table has not fails,
// and the other way round.
func TestC_1_44_3_EveryFieldHasARow(t *testing.T) {
	t.Parallel()
	rows := kubeletRows()
	if len(rows) != len(kubeletTable()) {
		t.Fatal("a field has two rows")
	}
	seen := map[string]bool{}
	for _, f := range typeFields(t, "", reflect.TypeFor[kubelet.KubeletConfiguration](), rows) {
		row, ok := rows[f.path]
		seen[f.path] = true
		switch {
		case !ok:
			t.Errorf("%s has no row", f.path)
		case !slices.Contains(f.kinds, row.kind):
			t.Errorf("%s: kind %v, want one of %v", f.path, row.kind, f.kinds)
		case f.zero != row.zero && row.kind != ofTruth: // a false that is written is meant
			t.Errorf("%s: zero is no value: %v, want %v", f.path, row.zero, f.zero)
		}
	}
	for path := range rows {
		if !seen[path] {
			t.Errorf("%s is no field of the type", path)
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d fields", len(seen))
	}
}

// TestEveryRowSetsASetting: what a row sets is a field of Config.
func TestEveryRowSetsASetting(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	typ := reflect.TypeFor[Config]()
	for i := range typ.NumField() {
		known[typ.Field(i).Tag.Get("mapstructure")] = true
	}
	for _, row := range kubeletTable() {
		if row.setting != "" && !known[row.setting] {
			t.Errorf("%s sets %q, which is no setting", row.path, row.setting)
		}
		if (row.setting == "") != (row.does != honoured || row.any) {
			t.Errorf("%s is %s and sets %q", row.path, row.does, row.setting)
		}
		if row.does != honoured && row.note == "" {
			t.Errorf("%s is %s without a reason", row.path, row.does)
		}
		if row.does == refused && row.refuse == nil {
			t.Errorf("%s is refused without a check", row.path)
		}
	}
}

// TestKubeletConfigIsWrittenDown: docs/kubelet-config.md is the table.
func TestKubeletConfigIsWrittenDown(t *testing.T) {
	t.Parallel()
	const file = "../../docs/kubelet-config.md"
	var b bytes.Buffer
	b.WriteString(kubeletConfigHead)
	for _, row := range kubeletTable() {
		outcome := string(row.does)
		if row.does == honoured && row.setting != "" {
			outcome = "`" + row.setting + "`"
		}
		note := row.note
		if row.does == warned && len(row.fine) > 0 && row.fine[0] != "" {
			note += fmt.Sprintf("; silent for `%s`", strings.Join(row.fine, "`, `"))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", row.path, outcome, note)
	}
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.String(), string(have)); diff != "" {
		t.Errorf("%s is not the table; go test ./pkg/config -update writes it\n%s", file, diff)
	}
}

const kubeletConfigHead = `# KubeletConfiguration, field by field

` + "`nodectl serve --kubelet-config FILE`" + ` reads a ` + "`KubeletConfiguration`" + ` of
` + "`kubelet.config.k8s.io/v1beta1`" + `, and ` + "`--config FILE`" + ` does where the file's kind is
that. ` + "`--config-dir DIR`" + ` names a directory of drop-ins, ` + "`*.conf`" + `, merged over it in
the byte order of their names: lists are replaced, maps are merged key by key,
null takes a value back.

A setting comes from the first of these that has it: a flag, a ` + "`NODECTL_*`" + `
variable, nodectl's own file, the KubeletConfiguration with its drop-ins, the
default. nodectl's own file is above the KubeletConfiguration because it is the
narrower one: a cluster's tools write the same KubeletConfiguration to every node,
and what a node needs beside it is said in nodectl's own words. ` + "`nodectl config\nview --show-origin`" + ` shows which one won, with file and line.

A field that no KubeletConfiguration has is named in a warning with its line, and
otherwise ignored. A value of the wrong type is an error. A path that is not
absolute starts at the directory of the file it stands in.

Each field is one of these:

- a setting of nodectl's, by its name: it is honoured;
- *honoured*: it changes nothing, for the reason given;
- *warned about*: its part does not exist yet. All such fields that ask for
  something are named in one warning when ` + "`serve`" + ` starts;
- *refused*: the values given would be ignored at the cost of security, so nodectl
  does not start.

Where a field is not set, nodectl's default holds; ` + "`nodectl config view`" + ` prints it.

| Field | Outcome | Beside |
|---|---|---|
`
