package readonly

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/workload"
)

// restricted is a policy that allows no privileged pod and no UID of an author.
const restricted = "rules: [{name: edge, sources: [{kind: file, location: /m}], podSecurity: {level: baseline}, uids: derived}]"

// deployed returns a Deployment in a file of /m, with this security context in its template.
func deployed(t *testing.T, kind, security string) *pod.Object {
	t.Helper()
	text := "apiVersion: apps/v1\nkind: " + kind + "\nmetadata: {name: web}\nspec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i, securityContext: {" + security + "}}]}}}\n"
	f, _ := manifest.Parse([]byte(text), manifest.Options{Node: "n1", Source: "file", Location: "/m", File: "/m/web.yaml", Static: true})
	if len(f.Objects) != 1 {
		t.Fatal(f.Problems)
	}
	return f.Objects[0]
}

// answering is a source that answers once.
type answering struct {
	file source.File
	err  error
}

func (a answering) Name() string { return "file:/m" }

func (a answering) Sets(context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		if a.err != nil {
			yield(source.Snapshot{}, a.err)
			return
		}
		yield(source.Snapshot{Revision: 1, Files: source.FilesOf(a.file)}, nil)
	}
}

// A privileged template of a restricted source does not enter the set. It comes from its file, or
// from a last good set that an agent without the policy has stored, while the source cannot be read or
// its file is invalid.
//
// Shows: D1
func TestRules_PrivilegedTemplate_IsRejected(t *testing.T) {
	t.Parallel()
	bad := deployed(t, pod.KindDeployment, "privileged: true")
	r, _ := judging(t, restricted)
	sets := map[string]podconfig.Restored{"file:/m": {At: time.Unix(1, 0), Files: []pod.LastGoodSet{{File: "/m/web.yaml", Objects: []*pod.Object{bad}}}}}
	for name, a := range map[string]answering{
		"from its file":      {file: source.File{File: "/m/web.yaml", Objects: []*pod.Object{bad}}},
		"the file is broken": {file: source.File{File: "/m/web.yaml", Incomplete: true, Problems: []pod.Problem{{File: "/m/web.yaml", Msg: "not YAML"}}}},
		"the source is away": {err: errors.New("away")},
	} {
		for _, restored := range []map[string]podconfig.Restored{nil, r.withoutForbidden(sets)} {
			c := podconfig.New(podconfig.Config{Sources: r.underPolicy([]source.Source{a}), Visible: r.Visible(), Restored: restored})
			if m := c.Once(t.Context()); m.Objects.Len() > 0 || m.Pods.Len() > 0 {
				t.Errorf("%s: %d objects, %d pods", name, m.Objects.Len(), m.Pods.Len())
			}
		}
	}
	if len(Rules{}.withoutForbidden(sets)["file:/m"].Files[0].Objects) != 1 {
		t.Error("without a policy the set is as it was stored")
	}
}

// Nothing of a privileged pod starts that a workload made from a state of before the policy. The
// pods of an allowed template start, whose UIDs their author has not chosen.
//
// Shows: D1
func TestForbids_PodOfAWorkload_IsChecked(t *testing.T) {
	t.Parallel()
	r, _ := judging(t, restricted)
	for _, kind := range []string{pod.KindDeployment, pod.KindReplicaSet, pod.KindStatefulSet, pod.KindDaemonSet} {
		good := workload.Next(workload.Input{Object: deployed(t, kind, ""), Node: "n1", Now: time.Unix(1, 0)})
		if len(good.Pods) != 1 {
			t.Errorf("%s: %d pods", kind, len(good.Pods))
		}
		for _, s := range good.Pods {
			if why := r.Forbids(s); why != "" {
				t.Errorf("%s, allowed: %s", kind, why)
			}
		}
		bad := workload.Next(workload.Input{Object: deployed(t, kind, "privileged: true"), Node: "n1", Now: time.Unix(1, 0)})
		for _, s := range bad.Pods {
			if why := r.Forbids(s); !strings.Contains(why, "privileged") {
				t.Errorf("%s, forbidden: %q", kind, why)
			}
		}
	}
}

// A template in a state file that an agent without the policy has written, or another program
// has changed, makes no pod that starts.
//
// Shows: D1
func TestForbids_TemplateOfAStateFile_IsChecked(t *testing.T) {
	t.Parallel()
	r, _ := judging(t, restricted)
	o := deployed(t, pod.KindStatefulSet, "")
	set := o.Object.(*appsv1.StatefulSet)
	partition, yes := int32(1), true
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition}
	first := workload.Next(workload.Input{Object: o, Node: "n1", Now: time.Unix(1, 0)})
	state := first.State
	evil := state.Revisions[0]
	evil.Number, evil.Hash, evil.Since = 0, "evil", metav1.Unix(0, 0)
	evil.Template = *evil.Template.DeepCopy()
	evil.Template.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: &yes}
	state.Revisions = append([]workload.Revision{evil}, state.Revisions...)
	state.StatefulSet = &workload.StatefulSetState{Current: "evil"}
	made := 0
	for _, s := range workload.Next(workload.Input{Object: o, Node: "n1", State: state, Now: time.Unix(2, 0)}).Pods {
		security := s.Pod.Spec.Containers[0].SecurityContext
		privileged := security != nil && security.Privileged != nil
		if privileged {
			made++
		}
		if why := r.Forbids(s); privileged != (why != "") {
			t.Errorf("%s, privileged %t: %q", s.Key, privileged, why)
		}
	}
	if made == 0 {
		t.Error("the state makes no privileged pod: the test shows nothing")
	}
}

// The running pods of a workload that a newer policy forbids stay, as a forbidden pod does, also if
// its file has objects that the policy allows. Nothing of them starts.
//
// Shows: D1
func TestForbids_RunningPodsOfAForbiddenWorkload_Stay(t *testing.T) {
	t.Parallel()
	bad := deployed(t, pod.KindDeployment, "privileged: true")
	config := &pod.Object{Key: pod.Key{Namespace: "default", Name: "conf"}, Kind: pod.KindConfigMap, Origin: bad.Origin, Hash: "v1-c", Object: &v1.ConfigMap{}}
	running := workload.Next(workload.Input{Object: bad, Node: "n1", Now: time.Unix(1, 0)}).Pods
	r, _ := judging(t, restricted)
	whole := source.File{File: "/m/web.yaml", Objects: []*pod.Object{bad, config}}
	for name, c := range map[string]struct {
		stored []*pod.Object
		file   source.File
		want   int
	}{
		"alone in its file":        {[]*pod.Object{bad}, source.File{File: "/m/web.yaml", Objects: []*pod.Object{bad}}, 1},
		"beside a ConfigMap":       {[]*pod.Object{bad, config}, whole, 1},
		"in a file that is broken": {[]*pod.Object{bad, config}, source.File{File: "/m/web.yaml", Incomplete: true, Problems: []pod.Problem{{File: "/m/web.yaml", Msg: "not YAML"}}}, 1},
		"removed from its file":    {[]*pod.Object{bad, config}, source.File{File: "/m/web.yaml", Objects: []*pod.Object{config}}, 0},
		"removed before":           {[]*pod.Object{config}, source.File{File: "/m/web.yaml", Objects: []*pod.Object{config}}, 0},
	} {
		sets := map[string]podconfig.Restored{"file:/m": {At: time.Unix(1, 0), Files: []pod.LastGoodSet{{File: "/m/web.yaml", Objects: c.stored}}}}
		p := podconfig.New(podconfig.Config{Sources: r.underPolicy([]source.Source{answering{file: c.file}}), Visible: r.Visible(), Recorded: running, Restored: r.withoutForbidden(sets)})
		m := p.Once(t.Context())
		if m.Pods.Len() != c.want {
			t.Errorf("%s: %d pods, want %d", name, m.Pods.Len(), c.want)
		}
		for s := range m.Pods.All() {
			if s.UID() != running[0].UID() || !strings.Contains(r.Forbids(s), "privileged") {
				t.Errorf("%s: %s, forbidden because of %q", name, s.Key, r.Forbids(s))
			}
		}
		if m.Object(pod.KindDeployment, bad.Key) != nil {
			t.Errorf("%s: the forbidden workload is in the set", name)
		}
	}
}
