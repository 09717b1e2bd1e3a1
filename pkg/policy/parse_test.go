package policy_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/policy"
)

// lines returns the problems of a policy as text.
func lines(text string, similar func(string, []string) string) []string {
	p, problems := policy.Parse([]byte(text), "p.yaml", similar)
	var all []string
	for _, problem := range problems {
		all = append(all, problem.Error())
	}
	if (p == nil) != (len(all) > 0) {
		all = append(all, "a policy and problems")
	}
	return all
}

// TestMistakesHaveAPlace: a problem of a policy has its line and column, all of it at
// once.
func TestMistakesHaveAPlace(t *testing.T) {
	t.Parallel()
	first := func(_ string, known []string) string { return known[0] }
	none := func(string, []string) string { return "" }
	if problems := lines(head+"default:\n  nam: x\n", first); !slices.Equal(problems, []string{`p.yaml:4:3: default.nam: unknown field "nam" (did you mean "externalIPs"?)`}) {
		t.Errorf("%q", problems)
	}
	const ruled = head + "rules:\n- name: a\n  sources: [{kind: file}]\n"
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", []string{`p.yaml:1: file is empty`}},
		{"a comment", "# nothing\n", []string{`p.yaml:1: file is empty`}},
		{"no value", "---\n", []string{`p.yaml:2:1: has no value`}},
		{"no YAML", head + "rules: [", []string{`p.yaml:3: not valid YAML: did not find expected node content`}},
		{"a list", "- a\n", []string{`p.yaml:1:1: expected an object, got a list`}},
		{"two documents", head + "default: {}\n---\nkind: SourcePolicy\n", []string{`p.yaml:4:1: a second document`}},
		{"a broken second document", head + "default: {}\n---\n[", []string{`p.yaml:5: not valid YAML: did not find expected node content`}},
		{"no rule", head, []string{`p.yaml:1: no rule and no default`}},
		{"an empty list of rules", head + "rules: []\n", []string{`p.yaml:1: no rule and no default`}},
		{"another kind", "apiVersion: v1\nkind: Pod\ndefault: {}\n", []string{`p.yaml:1:13: apiVersion: "v1" is not supported`, `p.yaml:2:7: kind: "Pod" is not supported`}},
		{"no kind", "default: {}\n", []string{`p.yaml:1: apiVersion: "" is not supported`, `p.yaml:1: kind: "" is not supported`}},
		{"a field twice", ruled + "  images: []\n  images: []\n", []string{`p.yaml:7:3: rules[0].images: field "images" is written twice, first at line 6`}},
		{"a key without a value", ruled + "  hostPaths:\n", []string{`p.yaml:6:13: rules[0].hostPaths: has no value`}},
		{"null", ruled + "  images: null\n  podSecurity: ~\n", []string{`p.yaml:6:11: rules[0].images: has no value`, `p.yaml:7:16: rules[0].podSecurity: has no value`}},
		{"a string for a list", ruled + "  images: x\n", []string{`p.yaml:6:11: rules[0].images: expected a list, got a string`}},
		{"a list for a string", head + "default:\n  images: [[a]]\n", []string{`p.yaml:4:12: default.images[0]: expected a string, got a list`}},
		{"a number for a string", ruled + "  podSecurity: {level: baseline, version: 1.36}\n", []string{`p.yaml:6:43: rules[0].podSecurity.version: expected a string, got a number`}},
		{"a string for a boolean", ruled + "  hostPaths: [{prefix: /x, readOnly: 'true'}]\n", []string{`p.yaml:6:38: rules[0].hostPaths[0].readOnly: expected true or false, got a string`}},
		{"yes for a boolean", ruled + "  hostPaths: [{prefix: /x, readOnly: yes}]\n", []string{`p.yaml:6:38: rules[0].hostPaths[0].readOnly: expected true or false, got a string`}},
		{"an alias", head + "default: {images: &a [x], namespaces: *a}\n", []string{`p.yaml:3:39: default.namespaces: a policy must not contain YAML aliases`}},
		{"a merge", head + "default: {<<: {images: []}}\n", []string{`p.yaml:3:11: default.<<: unknown field "<<"`}},

		{"a rule without a name", head + "rules:\n- sources: [{kind: file}]\n", []string{`p.yaml:4:3: rules[0]: the rule has no name`}},
		{"no name a rule can have", head + "rules:\n- {name: 'A b', sources: [{kind: file}]}\n", []string{`p.yaml:4:10: rules[0].name: "A b" cannot be a name`}},
		{"an empty name", head + "rules:\n- {name: '', sources: [{kind: file}]}\n", []string{`p.yaml:4:10: rules[0].name: "" cannot be a name`}},
		{"the default's name", head + "rules:\n- {name: default, sources: [{kind: file}]}\n", []string{`p.yaml:4:10: rules[0].name: the name default is reserved`}},
		{"a name twice", ruled + "- {name: a, sources: [{kind: http}]}\n", []string{`p.yaml:6:10: rules[1].name: rule "a" is already defined at line 4`}},
		{"no sources", head + "rules:\n- name: a\n", []string{`p.yaml:4:3: rules[0]: rule "a" has no sources`}},
		{"an empty list of sources", head + "rules:\n- {name: a, sources: []}\n", []string{`p.yaml:4:3: rules[0]: rule "a" has no sources`}},
		{"an empty source", head + "rules:\n- {name: a, sources: [{}]}\n", []string{`p.yaml:4:23: rules[0].sources[0]: a source without kind and location`}},
		{"an unknown kind", head + "rules:\n- {name: a, sources: [{kind: https}]}\n", []string{`p.yaml:4:30: rules[0].sources[0].kind: "https" is not one of api, etcd, file, http, stdin`}},
		{"an empty kind", head + "rules:\n- {name: a, sources: [{kind: ''}]}\n", []string{`p.yaml:4:30: rules[0].sources[0].kind: "" is not one of api, etcd, file, http, stdin`}},
		{"an empty location", head + "rules:\n- {name: a, sources: [{location: ''}]}\n", []string{`p.yaml:4:34: rules[0].sources[0].location: is empty`}},
		{"a * in a host", head + "rules:\n- {name: a, sources: [{location: 'https://cfg.example.com*'}]}\n", []string{`p.yaml:4:34: rules[0].sources[0].location: in a host name, * must be the whole name or its first label`}},
		{"no URL", head + "rules:\n- {name: a, sources: [{kind: http, location: 'cfg.example.com/*'}]}\n", []string{`p.yaml:4:46: rules[0].sources[0].location: "cfg.example.com/*" is not a URL`}},
		{"sources of the default", head + "default: {sources: []}\n", []string{`p.yaml:3:11: default.sources: unknown field "sources"`}},

		{"no level", ruled + "  podSecurity: {version: latest}\n", []string{`p.yaml:6:16: rules[0].podSecurity: podSecurity without a level`}},
		{"an unknown level", ruled + "  podSecurity: {level: Baseline}\n", []string{`p.yaml:6:24: rules[0].podSecurity.level: "Baseline" is not one of baseline, privileged, restricted`}},
		{"an unknown version", ruled + "  podSecurity: {level: baseline, version: '1.36'}\n", []string{`p.yaml:6:43: rules[0].podSecurity.version: "1.36" must be "latest" or "v1.x"`}},
		{"an empty version", ruled + "  podSecurity: {level: baseline, version: ''}\n", []string{`p.yaml:6:43: rules[0].podSecurity.version: "" must be "latest" or "v1.x"`}},
		{"an empty namespace", ruled + "  namespaces: ['']\n  podSecurity: {level: baseline, exempt: {namespaces: ['']}}\n", []string{`p.yaml:7:56: rules[0].podSecurity.exempt.namespaces[0]: is empty`, `p.yaml:6:16: rules[0].namespaces[0]: is empty`}},
		{"host paths", ruled + "  hostPaths: [{prefix: data}, {prefix: /a/../b}, {prefix: '/data*'}, {readOnly: true}, {prefix: /x}, {prefix: /x/}]\n", []string{
			`p.yaml:6:24: rules[0].hostPaths[0].prefix: "data" is not an absolute path without .. and *`,
			`p.yaml:6:40: rules[0].hostPaths[1].prefix: "/a/../b" is not an absolute path without .. and *`,
			`p.yaml:6:59: rules[0].hostPaths[2].prefix: "/data*" is not an absolute path without .. and *`,
			`p.yaml:6:70: rules[0].hostPaths[3]: a host path without a prefix`,
			`p.yaml:6:111: rules[0].hostPaths[5].prefix: "/x" is listed twice`,
		}},
		{"other kinds' objects", ruled + "  objectsFrom: [files]\n", []string{`p.yaml:6:17: rules[0].objectsFrom[0]: "files" is not one of api, etcd, file, http, stdin`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := lines(c.text, none); !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestPatternsThatSayAnotherThing: patterns of images that would match more, or
// something else, than their author means.
func TestPatternsThatSayAnotherThing(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		"registry.local*", "registry.local:5000*", "registry.local:*", "registry.local*/x", "registry.*/x", "*registry.local/x", "10.0.0.*/x", "a.*.com/x", "*.*.com/x", "**/x",
		"", "/", "/x", "a//b", "x:", "x@", "x:y:z", "x:a/b", "x@sha256:a@b", "UPPER", "a/UPPER", " x", "https://registry.local/x", "registry.local/",
	} {
		got := lines(head+"default:\n  images: ["+strings.ReplaceAll(`"`+pattern+`"`, "\\", "")+"]\n", func(string, []string) string { return "" })
		if len(got) != 1 || !strings.HasPrefix(got[0], "p.yaml:4:12: default.images[0]: ") {
			t.Errorf("%q: %q", pattern, got)
		}
	}
}

// TestDocumentedPolicyIsRead: the example in the documentation is a policy, and it
// shows every field.
func TestDocumentedPolicyIsRead(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../docs/source-policy.md")
	must(t, err)
	_, rest, ok := strings.Cut(string(data), "```yaml\n")
	example, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("no example")
	}
	if got := lines(example, func(string, []string) string { return "" }); got != nil {
		t.Errorf("%q", got)
	}
	for _, field := range []string{"apiVersion", "kind", "rules", "name", "sources", "location", "podSecurity", "level", "version", "exempt", "namespaces", "hostPaths", "prefix", "readOnly", "images", "objectsFrom", "default"} {
		if !strings.Contains(example, field+":") {
			t.Errorf("the example does not show %s", field)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "default: {images: [\"a/*\"], hostPaths: [{prefix: /x}]}"))
	f.Add([]byte(head + "rules: [{name: a, sources: [{kind: http, location: \"https://*.a/*\"}]}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, problems := policy.Parse(data, "p.yaml", func(string, []string) string { return "" })
		if (p == nil) != (len(problems) > 0) {
			t.Errorf("policy %v with problems %q", p, problems)
		}
		for _, problem := range problems {
			if problem.Line < 1 || problem.Msg == "" {
				t.Errorf("%+v", problem)
			}
		}
	})
}
