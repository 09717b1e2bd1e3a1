package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/policy"
	"github.com/nodectl/nodectl/pkg/source"

	"sigs.k8s.io/yaml"
)

const head = "apiVersion: nodectl.dev/v1alpha1\nkind: SourcePolicy\n"

// parsed returns a policy, whose text is right.
func parsed(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, problems := policy.Parse([]byte(head+text), "policy.yaml", func(string, []string) string { return "" })
	if len(problems) > 0 {
		t.Fatalf("%q", problems)
	}
	return p
}

// edge returns a policy whose one rule, edge, is for all and says allow.
func edge(t testing.TB, allow string) *policy.Policy {
	t.Helper()
	return parsed(t, "rules: [{name: edge, sources: [{location: '*'}], "+allow+"}]")
}

// podOf returns the pod that text describes.
func podOf(t testing.TB, text string) *pod.Spec {
	t.Helper()
	p := &v1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), p); err != nil {
		t.Fatal(err)
	}
	if p.Name == "" {
		p.Name = "web"
	}
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{Source: "file", Location: "/m", File: "/m/web.yaml", Line: 7}}
}

// checkedBy returns the checked version of one file from a source.
func checkedBy(t testing.TB, p *policy.Policy, kind, location string, f source.File) source.File {
	t.Helper()
	inner := &script{name: kind + ":" + location, words: []word{{snapshot: source.Snapshot{Revision: 1, Files: source.FilesOf(f)}}}}
	for s, err := range policy.Source(inner, p, kind, location).Sets(t.Context()) {
		if err != nil || s.Files.Len() != 1 {
			t.Fatalf("%v, %d files", err, s.Files.Len())
		}
		return s.Files.At(0)
	}
	t.Fatal("the source yields no snapshot")
	return source.File{}
}

// refused returns the policy's problems of a file's pod, one line each. It checks that
// every problem is complete.
func refused(t testing.TB, p *policy.Policy, s *pod.Spec) []string {
	t.Helper()
	f := checkedBy(t, p, "file", "/m", source.File{File: s.Origin.File, Pods: []*pod.Spec{s}})
	if rejected := len(f.Problems) > 0; rejected != (len(f.Pods) == 0) || rejected != slices.Equal(f.Broken, []pod.Key{s.Key}) || f.Incomplete {
		t.Fatalf("%d pods, broken %v, incomplete %t with problems %q", len(f.Pods), f.Broken, f.Incomplete, f.Problems)
	}
	var all []string
	for _, problem := range f.Problems {
		if problem.File != s.Origin.File || problem.Line != s.Origin.Line {
			t.Errorf("the problem's place is %s", problem.Place())
		}
		all = append(all, problem.Path+": "+problem.Msg)
	}
	return all
}

// TestEveryRule: pods that each key of a rule allows and forbids, with the rule's name and the
// field.
func TestEveryRule(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, allow, pod, want string }{
		{"nothing said, all allowed", ``, `spec: {hostNetwork: true, containers: [{name: c, image: "x.evil/y", securityContext: {privileged: true}}], volumes: [{name: v, hostPath: {path: /}}]}`, ""},
		{"namespace", `namespaces: [default]`, `metadata: {namespace: default}`, ""},
		{"namespace by pattern", `namespaces: ["edge-*"]`, `metadata: {namespace: edge-1}`, ""},
		{"another namespace", `namespaces: ["edge-*", default]`, `metadata: {namespace: kube-system}`,
			`metadata.namespace: source policy rule "edge" does not allow namespace "kube-system": no pattern of namespaces matches`},
		{"no pattern reaches past an end", `namespaces: ["edge"]`, `metadata: {namespace: edge-1}`, `metadata.namespace: source policy rule "edge" does not allow namespace "edge-1": no pattern of namespaces matches`},
		{"no namespace at all", `namespaces: []`, `metadata: {namespace: default}`, `metadata.namespace: source policy rule "edge" does not allow namespace "default": no pattern of namespaces matches`},

		{"baseline", `podSecurity: {level: baseline}`, `spec: {hostPID: true, hostNetwork: true, containers: [{name: c}]}`,
			`spec: source policy rule "edge" does not allow host namespaces: pod security level baseline, check hostNamespaces: hostNetwork=true, hostPID=true`},
		{"baseline on volumes", `podSecurity: {level: baseline}`, `spec: {containers: [{name: c}], volumes: [{name: v, hostPath: {path: /data}}]}`,
			`spec.volumes: source policy rule "edge" does not allow hostPath volumes: pod security level baseline, check hostPathVolumes: volume "v"`},
		{"baseline on sysctls", `podSecurity: {level: baseline}`, `spec: {containers: [{name: c}], securityContext: {sysctls: [{name: kernel.msgmax, value: "1"}]}}`,
			`spec.securityContext.sysctls: source policy rule "edge" does not allow forbidden sysctls: pod security level baseline, check sysctls: kernel.msgmax`},
		{"baseline allows what restricted does not", `podSecurity: {level: baseline}`, `spec: {containers: [{name: c}]}`, ""},
		{"restricted in an old version", `podSecurity: {level: restricted, version: v1.0}`, `spec: {containers: [{name: c}]}`,
			`spec: source policy rule "edge" does not allow runAsNonRoot != true: pod security level restricted, check runAsNonRoot: pod or container "c" must set securityContext.runAsNonRoot=true`},
		{"privileged", `podSecurity: {level: privileged}`, `spec: {hostNetwork: true, containers: [{name: c, securityContext: {privileged: true}}]}`, ""},
		{"an exempt namespace", `podSecurity: {level: restricted, exempt: {namespaces: [kube-system]}}`, "metadata: {namespace: kube-system}\nspec: {hostNetwork: true, containers: [{name: c}]}", ""},
		{"a namespace that is not exempt", `podSecurity: {level: baseline, exempt: {namespaces: [kube-system]}}`, "metadata: {namespace: kube-system-2}\nspec: {hostIPC: true, containers: [{name: c}]}",
			`spec: source policy rule "edge" does not allow host namespaces: pod security level baseline, check hostNamespaces: hostIPC=true`},
		{"not eased for another system", `podSecurity: {level: restricted, version: v1.25}`, `spec: {os: {name: windows}, securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, containers: [{name: c, securityContext: {capabilities: {drop: [ALL]}}}]}`,
			`spec: source policy rule "edge" does not allow allowPrivilegeEscalation != false: pod security level restricted, check allowPrivilegeEscalation: container "c" must set securityContext.allowPrivilegeEscalation=false`},

		{"ephemeral containers' images", `images: ["r/*"]`, `spec: {containers: [{name: c, image: "docker.io/r/c"}], ephemeralContainers: [{name: e, image: evil.com/e}]}`,
			`spec.ephemeralContainers[0].image: source policy rule "edge" does not allow image "evil.com/e": no pattern of images matches "evil.com/e:latest"`},
		{"init containers' images", `images: ["r/*"]`, `spec: {containers: [{name: c, image: "r/c"}], initContainers: [{name: e, image: evil}]}`,
			`spec.initContainers[0].image: source policy rule "edge" does not allow image "evil": no pattern of images matches "docker.io/library/evil:latest"`},
		{"image volumes", `images: ["r/*"]`, `spec: {containers: [{name: c, image: "r/c"}], volumes: [{name: v, image: {reference: "evil.com/v:1"}}]}`,
			`spec.volumes[0].image.reference: source policy rule "edge" does not allow image "evil.com/v:1": no pattern of images matches`},
		{"an image volume", `images: ["r/*"]`, `spec: {containers: [{name: c, image: "r/c"}], volumes: [{name: v, image: {reference: "r/v:1"}}]}`, ""},
		{"no image at all", `images: []`, `spec: {containers: [{name: c, image: "r/c:1"}]}`,
			`spec.containers[0].image: source policy rule "edge" does not allow image "r/c:1": no pattern of images matches "docker.io/r/c:1"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := strings.Join(refused(t, edge(t, c.allow), podOf(t, c.pod)), "\n"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestPatternsAreStars: * and nothing else is special.
func TestPatternsAreStars(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "x", true}, {"a*", "a", true}, {"*a", "a", true}, {"a*a", "a", false}, {"a*a", "aa", true}, {"*-edge", "x-edge-y", false}, {"*-edge", "x-edge-y-edge", true},
		{"a*b*c", "a-b-c", true}, {"a*b*c", "acb", false}, {"a*b*c", "a-c-b-c", true}, {"**", "x", true}, {"a?", "ab", false}, {"[a]", "a", false}, {".", "a", false}, {"a*", "ba", false},
	} {
		s := podOf(t, "metadata: {namespace: x}")
		s.Pod.Namespace = c.name
		if got := refused(t, edge(t, fmt.Sprintf("namespaces: [%q]", c.pattern)), s) == nil; got != c.want {
			t.Errorf("pattern %s matches %s: %t", c.pattern, c.name, got)
		}
	}
}

// TestPolicy_SeveralErrors_AreAllReported: one pod, all its mistakes, up to the limit of problems.
func TestPolicy_SeveralErrors_AreAllReported(t *testing.T) {
	t.Parallel()
	p := edge(t, `namespaces: [a], podSecurity: {level: baseline}, hostPaths: [], images: [r/*]`)
	got := refused(t, p, podOf(t, `spec: {hostNetwork: true, containers: [{name: c, image: x}], volumes: [{name: v, hostPath: {path: /etc}}]}`))
	if len(got) != 5 {
		t.Errorf("%d problems: %q", len(got), got)
	}
	many := podOf(t, `spec: {}`)
	for i := range 100 {
		many.Pod.Spec.Containers = append(many.Pod.Spec.Containers, v1.Container{Name: fmt.Sprint(i), Image: strings.Repeat("x", 3000)})
	}
	got = refused(t, p, many)
	if len(got) != 21 || got[20] != ": and 81 more problems of this pod" {
		t.Errorf("%d problems, the last %q", len(got), got[len(got)-1])
	}
	for _, line := range got {
		if len(line) > 900 {
			t.Errorf("%d bytes in one message", len(line))
		}
	}
}

// TestF_CanaryInNoProblem: values of the environment, of annotations and of
// commands are in no problem, whatever is wrong with a pod.
func TestF_CanaryInNoProblem(t *testing.T) {
	t.Parallel()
	s := podOf(t, `
metadata: {annotations: {token: canary}, labels: {a: canary}}
spec:
  hostNetwork: true
  volumes: [{name: v, hostPath: {path: /etc}}]
  containers:
  - {name: c, image: evil.com/x, command: [canary], args: [canary], env: [{name: PASSWORD, value: canary}],
     securityContext: {privileged: true, capabilities: {add: [NET_RAW, ALL]}, runAsUser: 0},
     livenessProbe: {httpGet: {host: 1.2.3.4, port: 80, httpHeaders: [{name: a, value: canary}]}}}
`)
	p := edge(t, `namespaces: [], podSecurity: {level: restricted}, hostPaths: [], images: []`)
	got := refused(t, p, s)
	if len(got) < 8 {
		t.Fatalf("only %d problems", len(got))
	}
	if strings.Contains(strings.Join(got, "\n"), "canary") {
		t.Errorf("%q", got)
	}
}

// TestWhichRuleHolds: the first that matches a source, then the default, and without
// one nothing.
func TestWhichRuleHolds(t *testing.T) {
	t.Parallel()
	rules := `
rules:
- {name: one, sources: [{kind: http, location: "https://cfg.example.com/*"}], namespaces: []}
- {name: below, sources: [{kind: http, location: "https://*.example.com/x"}], namespaces: []}
- {name: paths, sources: [{location: "/etc/*"}, {kind: stdin}], namespaces: []}
`
	for _, c := range []struct{ kind, location, want string }{
		{"http", "https://cfg.example.com/pods.yaml", "one"},
		{"http", "https://cfg.example.com/a/b?c=d", "one"},
		{"http", "https://cfg.example.com.evil.com/pods.yaml", ""},
		{"http", "https://evil.com/https://cfg.example.com/pods.yaml", ""},
		{"http", "https://evil.com#cfg.example.com/", ""},
		{"http", "http://cfg.example.com/pods.yaml", ""},
		{"http", "https://cfg.example.com:8443/pods.yaml", ""},
		{"http", "https://a.b.example.com/x", "below"},
		{"http", "https://.example.com/x", ""},
		{"http", "https://example.com/x", ""},
		{"http", "https://evilexample.com/x", ""},
		{"file", "/etc/nodectl/manifests", "paths"},
		{"api", "/etc/kubeconfig", "paths"},
		{"file", "/srv/etc/", ""},
		{"stdin", "-", "paths"},
		{"etcd", "/nodectl/manifests/", ""},
	} {
		s := podOf(t, "spec: {}")
		for _, fallback := range []bool{true, false} {
			text, want := rules, `source policy rule "`+c.want+`" does not allow namespace`
			switch {
			case fallback:
				text += "default: {namespaces: []}"
				if c.want == "" {
					want = `source policy rule "default" does not allow namespace`
				}
			case c.want == "":
				want = fmt.Sprintf("source policy has no rule for source %s %q, and no default", c.kind, c.location)
			}
			f := checkedBy(t, parsed(t, text), c.kind, c.location, source.File{File: "f", Pods: []*pod.Spec{s}})
			if len(f.Problems) != 1 || !strings.HasPrefix(f.Problems[0].Msg, want) || len(f.Pods) != 0 {
				t.Errorf("%s %s: %q, want %s", c.kind, c.location, f.Problems, want)
			}
		}
	}
}

// TestVisible: whose config objects pods may name, by kind.
func TestVisible(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		see        []string // "a>b": of all pairs of two kinds, these
	}{
		{"nothing said", "default: {}", nil},
		{"default", "default: {objectsFrom: [file]}", []string{"api>file", "etcd>file", "http>file", "stdin>file"}},
		{"a rule, no default", "rules: [{name: a, sources: [{kind: http}], objectsFrom: [file, api]}]", []string{"http>api", "http>file"}},
		{"a rule for all before the default", "default: {}\nrules: [{name: a, sources: [{kind: http}], objectsFrom: [file]}]", []string{"http>file"}},
		{"a rule for some before a default that says no", "default: {}\nrules: [{name: a, sources: [{kind: http, location: 'https://a/*'}], objectsFrom: [file]}]", nil},
		{"a rule for some before no default", "rules: [{name: a, sources: [{kind: http, location: 'https://a/*'}], objectsFrom: [file]}]", nil},
		{"the strictest of two", "default: {objectsFrom: [file, etcd]}\nrules: [{name: a, sources: [{kind: http, location: 'https://a/*'}], objectsFrom: [file]}]",
			[]string{"api>etcd", "api>file", "etcd>file", "file>etcd", "http>file", "stdin>etcd", "stdin>file"}},
		{"a location alone is for every kind", "default: {objectsFrom: [file]}\nrules: [{name: a, sources: [{location: /x}]}]", nil},
		{"a later rule that no pod reaches", "rules: [{name: a, sources: [{kind: http}], objectsFrom: [file]}, {name: b, sources: [{kind: http, location: 'https://a/*'}]}]", []string{"http>file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := parsed(t, c.text)
			var got []string
			for _, from := range []string{"api", "etcd", "file", "http", "stdin"} {
				for _, of := range []string{"api", "etcd", "file", "http", "stdin"} {
					switch sees := p.Visible(from, of); {
					case from == of && !sees:
						t.Errorf("Visible: pods of %s do not see objects of the same kind of source", from)
					case from != of && sees:
						got = append(got, from+">"+of)
					}
				}
			}
			if !slices.Equal(got, c.see) {
				t.Errorf("got %q, want %q", got, c.see)
			}
		})
	}
}

// TestObjectsOfOtherNamespaces: config objects are left out where pods would be
// rejected, and pods beside them stay.
func TestObjectsOfOtherNamespaces(t *testing.T) {
	t.Parallel()
	object := func(kind, namespace string) *pod.Object {
		return &pod.Object{Kind: kind, Key: pod.Key{Namespace: namespace, Name: "o"}, Origin: pod.Origin{File: "f", Line: 3}}
	}
	f := source.File{File: "f", Pods: []*pod.Spec{podOf(t, "spec: {}")}, Objects: []*pod.Object{
		object(pod.KindSecret, "kube-system"), object(pod.KindConfigMap, "default"), object(pod.KindClaim, "kube-system"),
	}}
	got := checkedBy(t, edge(t, "namespaces: [default], images: []"), "file", "/m", f)
	if len(got.Pods) != 1 || len(got.Objects) != 1 || got.Objects[0] != f.Objects[1] || len(got.Broken) != 0 || len(got.Problems) != 2 {
		t.Fatalf("%+v", got)
	}
	if p := got.Problems[0]; p.Place() != "f:3" || p.Path != "metadata.namespace" || !strings.Contains(p.Msg, `rule "edge" does not allow namespace "kube-system"`) {
		t.Errorf("%+v", p)
	}
	got = checkedBy(t, parsed(t, "rules: [{name: a, sources: [{kind: http}]}]"), "file", "/m", f)
	if len(got.Pods)+len(got.Objects) != 0 || len(got.Problems) != 4 {
		t.Errorf("without a rule: %+v", got)
	}
}

// TestDeletedAPIPods: a pod that an API server deletes has to stop, so nothing
// holds it up; a manifest that says it was deleted gets nothing by it.
func TestDeletedAPIPods(t *testing.T) {
	t.Parallel()
	f := source.File{File: "f", Pods: []*pod.Spec{
		podOf(t, `metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}`), podOf(t, "metadata: {name: stays}"),
	}}
	for kind, want := range map[string]int{"api": 1, "file": 0, "etcd": 0} {
		if got := checkedBy(t, edge(t, "namespaces: []"), kind, "/x", f); len(got.Pods) != want || len(got.Problems) != 2-want {
			t.Errorf("%s: %+v", kind, got)
		}
		if got := checkedBy(t, parsed(t, "rules: [{name: a, sources: [{kind: http}]}]"), kind, "/x", f); len(got.Pods) != want {
			t.Errorf("%s without a rule: %+v", kind, got)
		}
	}
}

// TestHostPaths: whole components of clean paths, and no way around them. Links are not
// followed: a user that may write below a root can point pods anywhere.
func TestHostPaths(t *testing.T) {
	t.Parallel()
	const roots = `hostPaths: [{prefix: /data, readOnly: true}, {prefix: /data/rw/}, {prefix: "/srv/x"}]`
	for _, c := range []struct{ path, want string }{
		{"/data", "reads"}, {"/data/", "reads"}, {"//data", "reads"}, {"/data/a/b", "reads"}, {"/./data/./a", "reads"}, {"/data/rwx", "reads"},
		{"/data/rw", "writes"}, {"/data//rw/a", "writes"}, {"/srv/x/y", "writes"},
		{"/data/../etc", "it contains .."}, {"/data/rw/..", "it contains .."}, {"/data/rw/../../etc", "it contains .."}, {"/..", "it contains .."}, {"/srv/x/../x", "it contains .."},
		{"/data-evil", "no prefix"}, {"/dat", "no prefix"}, {"/", "no prefix"}, {"/srv", "no prefix"}, {"/DATA", "no prefix"}, {"/etc/data", "no prefix"}, {"/data\x00/x", "no prefix"},
		{"data", "it is not absolute"}, {"", "it is not absolute"}, {"./data", "it is not absolute"},
		{"/data/..x", "reads"}, {"/srv/x/...", "writes"},
	} {
		p := edge(t, roots)
		for _, list := range []string{"containers", "initContainers", "ephemeralContainers"} {
			for _, readOnly := range []bool{true, false} {
				s := podOf(t, fmt.Sprintf(`spec: {%s: [{name: a, volumeMounts: [{name: other}, {name: v, readOnly: %t}]}], volumes: [{name: other, emptyDir: {}}, {name: v, hostPath: {type: Directory}}]}`, list, readOnly))
				s.Pod.Spec.Volumes[1].HostPath.Path = c.path
				got := strings.Join(refused(t, p, s), "\n")
				switch {
				case c.want == "writes" || c.want == "reads" && readOnly:
					if got != "" {
						t.Errorf("%q read only %t: %s", c.path, readOnly, got)
					}
				case c.want == "reads":
					want := fmt.Sprintf(`spec.%s[0].volumeMounts[1].readOnly: source policy rule "edge" does not allow to write to host path %q: "/data" and everything below it is read-only`, list, c.path)
					if got != want {
						t.Errorf("%q:\n got %s\nwant %s", c.path, got, want)
					}
				default:
					want := fmt.Sprintf(`spec.volumes[1].hostPath.path: source policy rule "edge" does not allow host path %q: %s`, c.path, c.want)
					if !strings.HasPrefix(got, want) {
						t.Errorf("%q:\n got %s\nwant %s", c.path, got, want)
					}
				}
			}
		}
	}
	s := podOf(t, `spec: {volumes: [{name: v, hostPath: {path: /anything}}]}`)
	if got := refused(t, edge(t, "hostPaths: []"), s); len(got) != 1 {
		t.Errorf("an empty list allows: %q", got)
	}
	if got := refused(t, edge(t, "hostPaths: [{prefix: /}]"), s); got != nil {
		t.Errorf("the prefix / does not allow every path: %q", got)
	}
}

// TestReadOnlyHostPaths: below a read-only root neither a container writes nor anybody
// makes anything, whatever way leads there.
func TestReadOnlyHostPaths(t *testing.T) {
	t.Parallel()
	const (
		roots  = `hostPaths: [{prefix: /data, readOnly: true}, {prefix: /data/rw}, {prefix: /srv}, {prefix: /srv/x, readOnly: true}]`
		refuse = `: source policy rule "edge" does not allow `
		data   = `: "/data" and everything below it is read-only`
		srvX   = `: "/srv/x" and everything below it is read-only`
		part   = `, and a missing subPath would be created`
	)
	for _, c := range []struct{ volume, mount, want string }{
		{`path: /data/a, type: Directory`, `readOnly: true`, ""},
		{`path: /data, type: Directory`, `readOnly: true, recursiveReadOnly: Enabled`, ""},
		{`path: /data/f, type: File`, `readOnly: true`, ""},
		{`path: /data/s, type: Socket`, `readOnly: true`, ""},
		{`path: /data/c, type: CharDevice`, `readOnly: true`, ""},
		{`path: /data/b, type: BlockDevice`, `readOnly: true`, ""},
		{`path: /data/a`, `readOnly: true`, `spec.volumes[0].hostPath.type` + refuse + `to create host path "/data/a"` + data},
		{`path: /data/a, type: ""`, `readOnly: true`, `spec.volumes[0].hostPath.type` + refuse + `to create host path "/data/a"` + data},
		{`path: /data/a, type: DirectoryOrCreate`, `readOnly: true`, `spec.volumes[0].hostPath.type` + refuse + `to create host path "/data/a"` + data},
		{`path: /data/a, type: FileOrCreate`, `readOnly: true`, `spec.volumes[0].hostPath.type` + refuse + `to create host path "/data/a"` + data},
		{`path: /data/a, type: FileOrCreate`, `name: other`, `spec.volumes[0].hostPath.type` + refuse + `to create host path "/data/a"` + data},
		{`path: /data/a, type: Directory`, `readOnly: true, subPath: b`, `spec.containers[0].volumeMounts[0].subPath` + refuse + `a subPath of host path "/data/a"` + data + part},
		{`path: /data/a, type: Directory`, `readOnly: true, subPathExpr: $(B)`, `spec.containers[0].volumeMounts[0].subPathExpr` + refuse + `a subPath of host path "/data/a"` + data + part},
		{`path: /data/a, type: Directory`, `readOnly: false`, `spec.containers[0].volumeMounts[0].readOnly` + refuse + `to write to host path "/data/a"` + data},
		// Below it is a root that may be written, above it as well.
		{`path: /data/rw/a, type: FileOrCreate`, `subPath: b`, ""},
		{`path: /srv/y`, `subPath: b`, ""},
		{`path: /srv/xy`, `subPath: b`, ""},
		{`path: /srv`, `readOnly: true`, ""},
		{`path: /srv/`, `readOnly: false`, `spec.containers[0].volumeMounts[0].readOnly` + refuse + `to write to host path "/srv/"` + srvX},
		{`path: /srv`, `readOnly: true, subPath: x/new`, `spec.containers[0].volumeMounts[0].subPath` + refuse + `a subPath of host path "/srv"` + srvX + part},
		{`path: /srv/x, type: Directory`, `readOnly: true`, ""},
		{`path: /srv/x`, `readOnly: true`, `spec.volumes[0].hostPath.type` + refuse + `to create host path "/srv/x"` + srvX},
	} {
		mount := c.mount
		if !strings.Contains(mount, "name:") {
			mount = "name: v, " + mount
		}
		s := podOf(t, "spec: {containers: [{name: a, volumeMounts: [{"+mount+"}]}], volumes: [{name: v, hostPath: {"+c.volume+"}}]}")
		if got := strings.Join(refused(t, edge(t, roots), s), "\n"); got != c.want {
			t.Errorf("%s, %s:\n got %s\nwant %s", c.volume, c.mount, got, c.want)
		}
	}
}

// TestHostPathsNeverLeaveTheirRoot: for any text, an allowed path lies below the root after
// cleaning, and contains no ...
func TestHostPathsNeverLeaveTheirRoot(t *testing.T) {
	t.Parallel()
	p := edge(t, "hostPaths: [{prefix: /data/in}]")
	rapid.Check(t, func(rt *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{"/", "//", "data", "in", ".", "..", "data/in", "evil", "-", "\x00", "/data/in"}), 1, 8).Draw(rt, "parts")
		s := podOf(t, `spec: {volumes: [{name: v, hostPath: {path: /}}]}`)
		written := strings.Join(parts, "")
		s.Pod.Spec.Volumes[0].HostPath.Path = written
		if refused(t, p, s) == nil {
			var down []string
			for _, part := range strings.Split(written, "/") {
				if part != "" && part != "." {
					down = append(down, part)
				}
			}
			if len(down) < 2 || down[0] != "data" || down[1] != "in" || slices.Contains(down, "..") {
				rt.Errorf("%q is allowed", written)
			}
		}
	})
}
