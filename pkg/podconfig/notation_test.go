package podconfig

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"go.uber.org/goleak"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// podOf parses one pod in the notation of the contract's appendix A. "A1" is the pod named a
// with UID a in version 1; "A1s2" is the same with status 2. "A1'" is the same while it is
// deleted with a grace period of 30 seconds; "A1'5" has one of 5 seconds.
func podOf(text string) *pod.Spec {
	text, grace, deleting := strings.Cut(text, "'")
	text, status, _ := strings.Cut(text, "s")
	name := strings.ToLower(text[:1])
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "image:" + text[1:]}}},
		Status:     v1.PodStatus{Message: status},
	}
	if deleting {
		seconds := int64(30)
		if grace != "" {
			seconds, _ = strconv.ParseInt(grace, 10, 64)
		}
		at := metav1.NewTime(noon)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &seconds
	}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p}
}

// with returns a copy of a spec whose pod was edited.
func with(s *pod.Spec, edit func(*v1.Pod)) *pod.Spec {
	c := *s
	c.Pod = s.Pod.DeepCopy()
	edit(c.Pod)
	c.Key = pod.KeyOf(c.Pod)
	return &c
}

// hashed returns a copy of a spec that carries a content hash.
func hashed(s *pod.Spec) *pod.Spec {
	c := *s
	annotations := make(map[string]string)
	for k, v := range s.Pod.Annotations {
		if k != pod.AnnotationConfigSeen && k != pod.AnnotationConfigSource && k != pod.AnnotationConfigMirror {
			annotations[k] = v
		}
	}
	text, err := json.Marshal([]any{s.Pod.Spec, s.Pod.Labels, annotations})
	if err != nil {
		panic(err)
	}
	c.Hash = fmt.Sprintf("v1-%x", sha256.Sum256(text))
	return &c
}

// in returns a copy of specs as layer and file wrote them, one a line.
func in(layer, file string, specs ...*pod.Spec) []*pod.Spec {
	kind, location, _ := strings.Cut(layer, ":")
	out := make([]*pod.Spec, 0, len(specs))
	for i, s := range specs {
		c := *s
		c.Origin = pod.Origin{Source: kind, Location: location, File: file, Line: i + 1}
		out = append(out, &c)
	}
	return out
}

// file returns a file of a layer that holds these pods.
func file(layer, name string, pods ...string) source.File {
	var specs []*pod.Spec
	for _, p := range pods {
		specs = append(specs, hashed(podOf(p)))
	}
	return source.File{File: name, Pods: in(layer, name, specs...)}
}

// broken returns a file none of which could be read.
func broken(name string) source.File {
	return source.File{File: name, Incomplete: true, Problems: []pod.Problem{{File: name, Line: 1, Msg: "unexpected end of file"}}}
}

// rejecting returns f with these pods rejected.
func rejecting(f source.File, pods ...string) source.File {
	for _, p := range pods {
		f.Broken = append(f.Broken, pod.Key{Namespace: "default", Name: p})
		f.Problems = append(f.Problems, pod.Problem{File: f.File, Line: 9, Msg: "unknown field in " + p})
	}
	return f
}

// object returns a ConfigMap as layer and file wrote it.
func object(layer, file, name, content string) *pod.Object {
	kind, location, _ := strings.Cut(layer, ":")
	return &pod.Object{
		Key: pod.Key{Namespace: "default", Name: name}, Kind: "ConfigMap", Hash: "v1-" + content,
		Origin: pod.Origin{Source: kind, Location: location, File: file, Line: 1},
		Object: &v1.ConfigMap{Data: map[string]string{"content": content}},
	}
}

// set returns one reading of files.
func set(files ...source.File) source.Snapshot {
	return source.Snapshot{Files: source.FilesOf(files...)}
}

// notation is the reverse of podOf.
func notation(s *pod.Spec) string {
	var b strings.Builder
	b.WriteString(strings.ToUpper(s.Name) + strings.TrimPrefix(s.Pod.Spec.Containers[0].Image, "image:"))
	if s.Pod.Status.Message != "" {
		b.WriteString("s" + s.Pod.Status.Message)
	}
	if s.Pod.DeletionTimestamp != nil {
		b.WriteString("'")
	}
	return b.String()
}

// textOf writes updates as appendix A does, "—" for none.
func textOf(updates []PodUpdate) string {
	if len(updates) == 0 {
		return "—"
	}
	var out []string
	for _, u := range updates {
		var pods []string
		for _, s := range u.Pods {
			pods = append(pods, notation(s))
		}
		out = append(out, fmt.Sprintf("%s{%s} (%s)", u.Op, strings.Join(pods, ","), u.Source))
	}
	return strings.Join(out, "; ")
}

// places writes the file that holds each pod: "A1=a.yaml B2=b.yaml".
func places(pods []*pod.Spec) string {
	var out []string
	for _, s := range pods {
		out = append(out, notation(s)+"="+s.Origin.File)
	}
	return strings.Join(out, " ")
}

// conflictTexts writes conflicts: "A a.yaml over b.yaml: first path in byte order".
func conflictTexts(conflicts []Conflict) string {
	var out []string
	for _, c := range conflicts {
		out = append(out, fmt.Sprintf("%s %s over %s: %s", strings.ToUpper(c.Key.Name), c.Winner, c.Loser, c.Reason))
	}
	return strings.Join(out, "; ")
}

// history applies snapshots one after another to a single layer.
func history(l Layer, snapshots ...source.Snapshot) Layer {
	for i, s := range snapshots {
		l = l.Read(s, noon.Add(time.Duration(i)*time.Second))
	}
	return l
}

// check compares texts.
func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// sortedKeys returns the keys of pods as text.
func sortedKeys(pods []*pod.Spec) []string {
	var out []string
	for _, s := range pods {
		out = append(out, s.Key.String())
	}
	slices.Sort(out)
	return out
}
