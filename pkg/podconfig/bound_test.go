package podconfig

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// unending is one answer of a source that is never read completely: pods and objects
// with new names, and one document that cannot be read.
func unending(answer, pods, objects int, text string) source.File {
	f := broken("a")
	for i := range pods {
		s := with(podOf("A1"), func(p *v1.Pod) {
			p.Name = fmt.Sprintf("p%d-%d", answer, i)
			p.Spec.Containers[0].Args = []string{text}
		})
		s.Hash = "v1-" + s.Name
		f.Pods = append(f.Pods, s)
	}
	for i := range objects {
		o := object(dir, "a", fmt.Sprintf("o%d-%d", answer, i), text)
		o.Object = &v1.ConfigMap{Data: map[string]string{"k": text}}
		f.Objects = append(f.Objects, o)
	}
	return f
}

// TestRead_BrokenFileNamesOtherPodsEachTime_IsBounded: an attacker's source answers
// each poll with one broken document and new names. The first pods stay, and the last
// good set stops growing.
func TestRead_BrokenFileNamesOtherPodsEachTime_IsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answers, pods, objects, text, most int }{
		"large pods":    {1000, 1, 0, 256 << 10, 128},
		"large objects": {1000, 0, 1, 256 << 10, 128},
		"many pods":     {4, 20_000, 0, 1, 50_000},
		"many of both":  {4, 10_000, 10_000, 1, 50_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := strings.Repeat("x", c.text)
			l := NewLayer(dir, nil)
			var builder source.Builder
			for answer := range c.answers {
				builder.Put(unending(answer, c.pods, c.objects, text), nil)
				l = l.Read(builder.Snapshot(), noon)
			}
			last := l.lastGoodOf("a")
			if n := len(last.Pods) + len(last.Objects); n > c.most || n < c.most/2 {
				t.Errorf("the last good set has %d pods and %d objects, want at most %d", len(last.Pods), len(last.Objects), c.most)
			}
			for _, s := range last.Pods[max(0, len(last.Pods)-c.pods):] { // the oldest are last
				if !strings.HasPrefix(s.Name, "p0-") {
					t.Fatalf("the last pod of the last good set is %s, want the one that was read first", s.Name)
				}
			}
			if len(l.problems) != 2 || !strings.HasSuffix(l.problems[1].Msg, "its last good set stays in use") {
				t.Errorf("problems %v", l.problems)
			}
			l = l.Read(set(file(dir, "a", "A1")), noon)
			if got := l.lastGoodOf("a"); len(got.Pods) != 1 || len(got.Objects) != 0 || len(l.problems) > 0 {
				t.Errorf("fixed: %d pods, %d objects, problems %v", len(got.Pods), len(got.Objects), l.problems)
			}
		})
	}
}

// TestRead_PodsMoveIntoABrokenFileAgainAndAgain_IsBounded: an attacker writes pods to a good
// file and takes them out of it, while a broken one rejects pods of those names.
func TestRead_PodsMoveIntoABrokenFileAgainAndAgain_IsBounded(t *testing.T) {
	t.Parallel()
	const each = 20_000
	l := NewLayer(dir, nil)
	bad := broken("b")
	for answer := range 4 {
		good := unending(answer, each, 0, "x")
		good.File, good.Incomplete, good.Problems = "a", false, nil
		l = l.Read(set(good, bad), noon)
		bad.Broken = nil
		for _, s := range good.Pods {
			bad.Broken = append(bad.Broken, s.Key)
		}
		l = l.Read(set(good, bad), noon)
		l = l.Read(set(bad), noon)
	}
	if n := len(l.lastGoodOf("b").Pods); n > 50_000 || n < 40_000 || l.pods.winners.Len() != n {
		t.Errorf("the broken file keeps %d pods, %d in all", n, l.pods.winners.Len())
	}
}

// TestRead_PodsMoveToABrokenFile_CopiesThemOnce: memory grows with the number of pods
// that one file takes over, not with its square.
func TestRead_PodsMoveToABrokenFile_CopiesThemOnce(t *testing.T) {
	moved := func(n int) uint64 {
		good := unending(0, n, 0, "x")
		good.File, good.Incomplete, good.Problems = "a", false, nil
		bad := broken("b")
		for _, s := range good.Pods {
			bad.Broken = append(bad.Broken, s.Key)
		}
		l := NewLayer(dir, nil).Read(set(good), noon)
		gone := set(bad)
		took := allocated(func() { l = l.Read(gone, noon) })
		if len(l.lastGoodOf("b").Pods) != n {
			t.Fatalf("the last good set has %d of %d pods", len(l.lastGoodOf("b").Pods), n)
		}
		return took
	}
	if few, many := moved(500), moved(5000); many > 30*few {
		t.Errorf("500 pods take %d bytes, 5000 take %d", few, many)
	}
}

// TestKeepImmutable_ManyObjects_AreFoundByName: an attacker's source renames this many
// immutable objects at each poll. Compared with each other, they take minutes.
func TestKeepImmutable_ManyObjects_AreFoundByName(t *testing.T) {
	t.Parallel()
	const n = 150_000
	read := func(version string) source.File {
		f := source.File{File: "a"}
		yes := true
		for i := range n {
			name := fmt.Sprint(version, i)
			f.Objects = append(f.Objects, &pod.Object{
				Key: pod.Key{Namespace: "default", Name: name}, Kind: pod.KindConfigMap, Hash: "v1-" + name,
				Origin: pod.Origin{Source: "file", Location: "/m", File: "a", Line: i}, Object: &v1.ConfigMap{Immutable: &yes},
			})
		}
		return f
	}
	var builder source.Builder
	l := NewLayer(dir, nil)
	for _, version := range []string{"a", "b"} {
		builder.Put(read(version), nil)
		l = l.Read(builder.Snapshot(), noon)
	}
	if got := l.lastGoodOf("a").Objects; len(got) != n || got[0].Name != "b0" || len(l.problems) > 0 {
		t.Errorf("%d objects, problems %v", len(got), l.problems)
	}
}
