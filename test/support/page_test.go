//go:build linux

package support

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/podspec"
)

var update = flag.Bool("update", false, "write docs/support.md")

const page = "../../docs/support.md"

// TestDocs_SupportPage holds docs/support.md equal to the table and the proofs.
func TestDocs_SupportPage(t *testing.T) {
	t.Parallel()
	want := newPage().text()
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("docs/support.md is not what the table says; go test ./test/support -run Page -update writes it (-page +table):\n%s", diff)
	}
}

// TestInitContainersAreAsContainers: one table on the page stands for both.
func TestInitContainersAreAsContainers(t *testing.T) {
	t.Parallel()
	rows := newPage().rows
	for path, f := range rows {
		rest, ok := strings.CutPrefix(path, "spec.containers[].")
		if !ok {
			continue
		}
		init, ok := rows["spec.initContainers[]."+rest]
		if !ok || init.Support != f.Support || init.Note != f.Note || init.Why != f.Why {
			t.Errorf("%s: an init container's is %+v", path, init)
		}
	}
}

const head = `# Fields of pods and workloads

This page lists nodectl's support for every field of a Pod manifest, of a [workload](#workloads) (Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, CronJob) and of a [Service](#services). The fields are those of the Kubernetes API types. ` + "`go test ./test/support -update`" + ` writes this page from the table in ` + "`pkg/podspec`" + `. The tests in ` + "`test/support`" + ` compare the table with nodectl's behavior.

- **supported**: the field takes effect. *For some values*: the note or the error message names the values.
- **rejected**: nodectl rejects a pod that sets the field, and names the field. An empty value does not count as set.
- **ignored, with a notice**: the field has no effect; the note gives the reason. nodectl reports the field in a manifest once, with file and line. It reports no value that an API server writes by itself, and no field of a pod from an API server.
- **ignored**: the field belongs to a status, or to an API server's bookkeeping.
- A rejected or ignored row also covers all fields below it.

The column **an edit restarts** names the restarted object: the *container* that has the field, the whole *pod*, or nothing (–). *resize* changes the resources of the running container without a restart (see ` + "`resizePolicy`" + `), or restarts the pod if its QoS class changes. In a pod from an API server, an edit of a container's name or image restarts the container, and a change of resources resizes it. With another UID it is another pod. All other edits restart nothing.

The column **shown by** names the case of ` + "`test/support`" + ` that sets the field and checks its effect: in a request to the container runtime, in a file, in the pod's status, or in the request of a probe. Without the field, the same case must fail (` + "`go test ./test/support -run 'TestFields/NAME'`" + `). Not every kernel has AppArmor and SELinux, so their cases check only the request to the container runtime.

The column **from an API server** has the differences for such a pod. The server has set its defaults, admitted it and bound it to this node.
`

// pageMaker has the data of the page.
type pageMaker struct {
	rows, api map[string]podspec.Field
	order     []podspec.Field
	shown     map[string][]string // names of proofs, by path
}

func newPage() *pageMaker {
	p := &pageMaker{rows: map[string]podspec.Field{}, api: map[string]podspec.Field{}, order: podspec.Fields(), shown: map[string][]string{}}
	for _, f := range p.order {
		p.rows[f.Path] = f
	}
	for _, f := range podspec.APIFields() {
		p.api[f.Path] = f
	}
	for _, m := range expand(proofs()) {
		for _, path := range m.paths {
			p.shown[path] = append(p.shown[path], m.name)
		}
	}
	return p
}

// parts are the parts of the page: a heading, the text below it, and the beginnings of the paths of
// its rows. A path belongs to the part with its longest beginning.
var parts = []struct{ heading, says, begins string }{
	{"Metadata", "", "metadata"},
	{"Pod", "", "spec"},
	{"Network identity", "", "spec.host|spec.hostname|spec.hostAliases|spec.hostnameOverride|spec.subdomain|spec.setHostnameAsFQDN|spec.dns|spec.hostNetwork"},
	{"Node and order", "", "spec.affinity|spec.nodeSelector|spec.nodeName|spec.tolerations|spec.priority|spec.preemptionPolicy|spec.topologySpreadConstraints|spec.scheduler|spec.schedulingGates|spec.schedulingGroup|spec.os"},
	{"Pod security context", "", "spec.securityContext"},
	{"Volumes", "", "spec.volumes"},
	{"Containers", containersSay, "spec.containers"},
	{"Environment", containersSay, "spec.containers[].env"},
	{"Container security context", containersSay, "spec.containers[].securityContext"},
	{"Probes", containersSay, "spec.containers[].livenessProbe|spec.containers[].readinessProbe|spec.containers[].startupProbe"},
	{"Lifecycle hooks", containersSay, "spec.containers[].lifecycle"},
	{"Init and ephemeral containers", "", "spec.initContainers|spec.ephemeralContainers"},
	{"Status", "", "status"},
}

const containersSay = "`spec.initContainers[]` has the same fields. So has `spec.ephemeralContainers[]` of a pod from an API server, except where the third column says no. An edit that restarts a container restarts the pod if the container is an init container and no sidecar; in an ephemeral container it restarts nothing."

// partOf is the number of the part that a path belongs to.
func partOf(path string) int {
	best, length := 0, -1
	for i, part := range parts {
		for begin := range strings.SplitSeq(part.begins, "|") {
			if strings.HasPrefix(path, begin) && len(begin) > length {
				best, length = i, len(begin)
			}
		}
	}
	return best
}

func (p *pageMaker) text() string {
	var b strings.Builder
	b.WriteString(head)
	for i, part := range parts {
		fmt.Fprintf(&b, "\n## %s\n\n", part.heading)
		if part.says != "" {
			b.WriteString(part.says + "\n\n")
		}
		other := "from an API server"
		if part.says != "" {
			other = "in an ephemeral container"
		}
		fmt.Fprintf(&b, "| field | support | %s | an edit restarts | shown by | note |\n|---|---|---|---|---|---|\n", other)
		for _, f := range p.all() {
			if partOf(f.Path) == i && !p.said(f.Path) {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", f.Path, p.support(f), p.server(f.Path), p.restarts(f), p.proof(f), note(f))
			}
		}
	}
	b.WriteString(workloadsText())
	b.WriteString(servicesText())
	return b.String()
}

// all are the rows of the table, and where it has none those for an API server's pods.
func (p *pageMaker) all() []podspec.Field {
	out := slices.Clone(p.order)
	for _, f := range podspec.APIFields() {
		if _, ok := p.rows[f.Path]; !ok {
			out = append(out, f)
		}
	}
	return out
}

// said reports whether the row of a regular container shows the same as the row of this path.
func (p *pageMaker) said(path string) bool {
	for _, list := range []string{"spec.initContainers[].", "spec.ephemeralContainers[]."} {
		if rest, ok := strings.CutPrefix(path, list); ok {
			_, static := p.rows["spec.containers[]."+rest]
			_, served := p.api["spec.containers[]."+rest]
			return static || served
		}
	}
	return false
}

func (p *pageMaker) support(f podspec.Field) string {
	_, table := p.rows[f.Path]
	switch {
	case !table:
		return "rejected"
	case f.Support == podspec.Rejected:
		return "rejected"
	case f.Support == podspec.Inert && strings.HasPrefix(f.Path, "spec."):
		return "ignored, with a notice"
	case f.Support == podspec.Inert:
		return "ignored"
	case f.Check != nil:
		return "supported for some values"
	}
	return "supported"
}

// server returns the difference for a pod from an API server, "" for none.
func (p *pageMaker) server(path string) string {
	if rest, ok := strings.CutPrefix(path, "spec.containers[]."); ok && p.api[path].Path == "" {
		f, ok := p.api["spec.ephemeralContainers[]."+rest]
		if !ok || f.Support == podspec.Inert {
			return "no"
		}
		return ""
	}
	f, ok := p.api[path]
	if !ok {
		return ""
	}
	word := map[podspec.Support]string{podspec.Honoured: "supported", podspec.Rejected: "rejected", podspec.Inert: "ignored"}[f.Support]
	if text := note(f); text != "" {
		word += ": " + text
	}
	return word
}

func (p *pageMaker) restarts(f podspec.Field) string {
	switch {
	case slices.ContainsFunc(p.order, func(g podspec.Field) bool {
		return strings.HasPrefix(g.Path, f.Path+".") || strings.HasPrefix(g.Path, f.Path+"[].")
	}):
		return "" // its fields say it
	case p.rows[f.Path].Support == podspec.Honoured && p.rows[f.Path].Path != "" && f.Restart != podspec.RestartNone:
		return f.Restart.String()
	}
	return "–"
}

func (p *pageMaker) proof(f podspec.Field) string {
	switch {
	case len(p.shown[f.Path]) > 0:
		return strings.Join(p.shown[f.Path], "; ")
	case f.Support == podspec.Rejected:
		return "TestRejected"
	}
	return "TestIgnored"
}

func note(f podspec.Field) string {
	text := f.Note
	if f.Support == podspec.Rejected {
		text = strings.TrimSuffix(strings.TrimSuffix(f.Why+": "+f.Note, ": "), ": ")
		if f.Why == "" {
			text = strings.TrimSuffix(podspec.NotYet+": "+f.Note, ": ")
		}
	}
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(text)
}
