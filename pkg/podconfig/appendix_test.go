package podconfig

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// layerReading is one reading of one layer: all its pods, in one file.
type layerReading struct {
	layer string
	pods  []*pod.Spec
}

func reads(layer string, pods ...any) layerReading {
	s := layerReading{layer: layer}
	for _, p := range pods {
		switch p := p.(type) {
		case string:
			s.pods = append(s.pods, podOf(p))
		case *pod.Spec:
			s.pods = append(s.pods, p)
		}
	}
	return s
}

// edited returns a pod with an edit that the notation has no sign for.
func edited(text string, edit func(*v1.Pod)) *pod.Spec { return with(podOf(text), edit) }

// The worked examples of the contract's appendix A, in all three modes. Here the
// identity of a pod is its key and not its UID, and a key has one owner in all layers.
// The rows where that matters say so.
var appendixA = []struct {
	name   string
	layers string
	prior  []layerReading
	input  []layerReading
	// want is the updates of Incremental, SnapshotAndUpdates and Snapshot.
	want [3]string
}{
	{
		name: "A1 the first set is empty", layers: "file",
		input: []layerReading{reads("file")},
		want:  [3]string{"ADD{} (file)", "SET{} (file)", "SET{} (file)"},
	},
	{
		name: "A2 still empty", layers: "file",
		prior: []layerReading{reads("file")}, input: []layerReading{reads("file")},
		want: [3]string{"—", "—", "—"},
	},
	{
		name: "A3 the first set has pods", layers: "file",
		input: []layerReading{reads("file", "A1", "B1")},
		want:  [3]string{"ADD{A1,B1} (file)", "SET{A1,B1} (file)", "SET{A1,B1} (file)"},
	},
	{
		name: "A4 nothing changed", layers: "file",
		prior: []layerReading{reads("file", "A1", "B1")}, input: []layerReading{reads("file", "A1", "B1")},
		want: [3]string{"—", "—", "—"},
	},
	{
		name: "A5 content", layers: "file",
		prior: []layerReading{reads("file", "A1")}, input: []layerReading{reads("file", "A2")},
		want: [3]string{"UPDATE{A2} (file)", "UPDATE{A2} (file)", "SET{A2} (file)"},
	},
	{
		name: "A6 one gone", layers: "file",
		prior: []layerReading{reads("file", "A1", "B1")}, input: []layerReading{reads("file", "A1")},
		want: [3]string{"REMOVE{B1} (file)", "SET{A1} (file)", "SET{A1} (file)"},
	},
	{
		name: "A7 all at once", layers: "file",
		prior: []layerReading{reads("file", "A1", "B1", "C1")}, input: []layerReading{reads("file", "B2", "C1", "D1")},
		want: [3]string{"REMOVE{A1} (file); ADD{D1} (file); UPDATE{B2} (file)", "SET{B2,C1,D1} (file); UPDATE{B2} (file)", "SET{B2,C1,D1} (file)"},
	},
	{
		name: "A8 deletion begins", layers: "api",
		prior: []layerReading{reads("api", "A1")}, input: []layerReading{reads("api", "A1'")},
		want: [3]string{"DELETE{A1'} (api)", "DELETE{A1'} (api)", "SET{A1'} (api)"},
	},
	{
		name: "A9 less grace", layers: "api",
		prior: []layerReading{reads("api", "A1'")}, input: []layerReading{reads("api", "A1'5")},
		want: [3]string{"DELETE{A1'} (api)", "DELETE{A1'} (api)", "SET{A1'} (api)"},
	},
	{
		name: "A10 status only", layers: "api",
		prior: []layerReading{reads("api", "A1s1")}, input: []layerReading{reads("api", "A1s2")},
		want: [3]string{"RECONCILE{A1s2} (api)", "—", "—"},
	},
	{
		name: "A11 status and content", layers: "api",
		prior: []layerReading{reads("api", "A1s1")}, input: []layerReading{reads("api", "A2s2")},
		want: [3]string{"UPDATE{A2s2} (api)", "UPDATE{A2s2} (api)", "SET{A2s2} (api)"},
	},
	{
		name: "A12 status and deletion", layers: "api",
		prior: []layerReading{reads("api", "A1s1")}, input: []layerReading{reads("api", "A1s2'")},
		want: [3]string{"DELETE{A1s2'} (api)", "DELETE{A1s2'} (api)", "SET{A1s2'} (api)"},
	},
	{
		name: "A13 the second layer's first set is empty", layers: "file http",
		prior: []layerReading{reads("file", "A1")}, input: []layerReading{reads("http")},
		want: [3]string{"ADD{} (http)", "SET{A1} (http)", "SET{A1} (http)"},
	},
	{
		name: "A14 the second layer gets a pod", layers: "file http",
		prior: []layerReading{reads("file", "A1"), reads("http")}, input: []layerReading{reads("http", "B1")},
		want: [3]string{"ADD{B1} (http)", "SET{A1,B1} (http)", "SET{A1,B1} (http)"},
	},
	{
		// The kubelet sends REMOVE and stops a pod that the file still defines. Here
		// the file held it all along: only the conflict ends.
		name: "A15 the later of two layers lets go", layers: "file http",
		prior: []layerReading{reads("file", "A1"), reads("http", "A1")}, input: []layerReading{reads("http")},
		want: [3]string{"—", "—", "—"},
	},
	{
		// As above, the other way round: the file takes over the same content.
		name: "A15 the earlier of two layers lets go", layers: "http file",
		prior: []layerReading{reads("http", "A1"), reads("file", "A1")}, input: []layerReading{reads("http")},
		want: [3]string{"RECONCILE{A1} (file)", "—", "—"},
	},
	{
		// As above, with other content: an UPDATE of the one pod, not its removal.
		name: "A15 the earlier of two layers lets go of another version", layers: "http file",
		prior: []layerReading{reads("http", "A1"), reads("file", "A2")}, input: []layerReading{reads("http")},
		want: [3]string{"UPDATE{A2} (file)", "UPDATE{A2} (file)", "SET{A2} (http)"},
	},
	{
		name: "A16 an annotation", layers: "file",
		prior: []layerReading{reads("file", "A1")},
		input: []layerReading{reads("file", edited("A1", func(p *v1.Pod) { p.Annotations = map[string]string{"x": "y"} }))},
		want:  [3]string{"UPDATE{A1} (file)", "UPDATE{A1} (file)", "SET{A1} (file)"},
	},
	{
		name: "A17 the kubelet's own annotations", layers: "file",
		prior: []layerReading{reads("file", "A1")},
		input: []layerReading{reads("file", edited("A1", func(p *v1.Pod) {
			p.Annotations = map[string]string{pod.AnnotationConfigSeen: "1", pod.AnnotationConfigSource: "2", pod.AnnotationConfigMirror: "3"}
		}))},
		want: [3]string{"—", "—", "—"},
	},
	{
		name: "A18 the config hash", layers: "file",
		prior: []layerReading{reads("file", edited("A1", func(p *v1.Pod) { p.Annotations = map[string]string{pod.AnnotationConfigHash: "1"} }))},
		input: []layerReading{reads("file", edited("A1", func(p *v1.Pod) { p.Annotations = map[string]string{pod.AnnotationConfigHash: "2"} }))},
		want:  [3]string{"UPDATE{A1} (file)", "UPDATE{A1} (file)", "SET{A1} (file)"},
	},
	{
		// The kubelet compares UIDs and sends nothing: the pod keeps its old name. Here
		// another name is another pod.
		name: "A19 C-1.2.13 renamed under one UID", layers: "file",
		prior: []layerReading{reads("file", "A1")},
		input: []layerReading{reads("file", edited("B1", func(p *v1.Pod) { p.UID = "a" }))},
		want:  [3]string{"REMOVE{A1} (file); ADD{B1} (file)", "SET{B1} (file)", "SET{B1} (file)"},
	},
	{
		name: "A20 C-1.2.2 one name twice, the first wins", layers: "file",
		prior: []layerReading{reads("file")},
		input: []layerReading{reads("file", "A1", edited("A2", func(p *v1.Pod) { p.UID = "x" }))},
		want:  [3]string{"ADD{A1} (file)", "SET{A1} (file)", "SET{A1} (file)"},
	},
	{
		// The kubelet removes one UID and adds the other. Here the key is the
		// pod: one UPDATE, by which its worker replaces the instance.
		name: "A21 another UID gets in front under the same name", layers: "file",
		prior: []layerReading{reads("file", "A1")},
		input: []layerReading{reads("file", edited("A3", func(p *v1.Pod) { p.UID = "x" }), "A1")},
		want:  [3]string{"UPDATE{A3} (file)", "UPDATE{A3} (file)", "SET{A3} (file)"},
	},
	{
		name: "A22 metadata that is not content", layers: "file",
		prior: []layerReading{reads("file", "A1")},
		input: []layerReading{reads("file", edited("A1", func(p *v1.Pod) {
			p.Finalizers, p.ResourceVersion, p.Generation = []string{"x/y"}, "7", 7
			p.OwnerReferences = []metav1.OwnerReference{{Name: "o"}}
		}))},
		want: [3]string{"—", "—", "—"},
	},
	{
		name: "A23 no labels and empty labels", layers: "api",
		prior: []layerReading{reads("api", "A1")},
		input: []layerReading{reads("api", edited("A1", func(p *v1.Pod) { p.Labels = map[string]string{} }))},
		want:  [3]string{"UPDATE{A1} (api)", "UPDATE{A1} (api)", "SET{A1} (api)"},
	},
	{
		name: "A24 deletion taken back", layers: "api",
		prior: []layerReading{reads("api", "A1'")}, input: []layerReading{reads("api", "A1")},
		want: [3]string{"UPDATE{A1} (api)", "UPDATE{A1} (api)", "SET{A1} (api)"},
	},
	{
		name: "A25 first seen while being deleted", layers: "api",
		input: []layerReading{reads("api", "A1'")},
		want:  [3]string{"ADD{A1'} (api)", "SET{A1'} (api)", "SET{A1'} (api)"},
	},
	{
		name: "A26 two sets in a row", layers: "file",
		prior: []layerReading{reads("file", "A1", "B1")},
		input: []layerReading{reads("file", "A2"), reads("file", "A1", "B1")},
		want: [3]string{
			"REMOVE{B1} (file); UPDATE{A2} (file); ADD{B1} (file); UPDATE{A1} (file)",
			"SET{A2} (file); UPDATE{A2} (file); SET{A1,B1} (file); UPDATE{A1} (file)",
			"SET{A2} (file); SET{A1,B1} (file)",
		},
	},
	{
		// In the kubelet both replace each other, and it sends UPDATE twice at every
		// set. Here they are two pods, whatever their UIDs.
		name: "C-1.2.12 one UID under two names", layers: "file",
		prior: []layerReading{reads("file", "A1", edited("B2", func(p *v1.Pod) { p.UID = "a" }))},
		input: []layerReading{reads("file", "A1", edited("B2", func(p *v1.Pod) { p.UID = "a" }))},
		want:  [3]string{"—", "—", "—"},
	},
}

// TestA1_A26_C_1_3_NotificationModes runs appendix A with and without content
// hashes: the fast way and the slow way to compare must agree.
//
// Shows: A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13, A14, A15, A16, A17, A18, A19, A20, A21, A22, A23, A24, A25, A26, C-1.3, Appendix A
func TestA1_A26_C_1_3_NotificationModes(t *testing.T) {
	for _, test := range appendixA {
		for i, mode := range []Mode{Incremental, SnapshotAndUpdates, Snapshot} {
			for _, withHash := range []bool{false, true} {
				if withHash && strings.HasPrefix(test.name, "A23") {
					continue // both ways to write no labels have the same hash
				}
				t.Run(fmt.Sprintf("%s/%s/hash=%t", test.name, mode, withHash), func(t *testing.T) {
					check(t, "updates", play(t, mode, withHash, test.layers, test.prior, test.input), test.want[i])
				})
			}
		}
	}
}

// play returns the result of input after prior.
func play(t *testing.T, mode Mode, withHash bool, layers string, prior, input []layerReading) string {
	t.Helper()
	names := strings.Fields(layers)
	c := New(Config{Mode: mode})
	var start []Layer
	for _, name := range names {
		start = append(start, NewLayer(name+":"+name, nil))
	}
	f := newFold(start, nil, nil)
	var updates []PodUpdate
	for i, s := range append(prior, input...) {
		var specs []*pod.Spec
		for _, p := range s.pods {
			if withHash {
				p = hashed(p)
			}
			specs = append(specs, p)
		}
		layer := -1
		for j, name := range names {
			if name == s.layer {
				layer = j
			}
		}
		full := s.layer + ":" + s.layer
		snapshot := set(source.File{File: "pods.yaml", Pods: in(full, "pods.yaml", specs...)})
		var b Batch
		f, b, _ = c.take(f, message{layer: layer, snapshot: snapshot}, noon)
		if i >= len(prior) {
			updates = append(updates, b.Updates...)
		}
	}
	return textOf(updates)
}
