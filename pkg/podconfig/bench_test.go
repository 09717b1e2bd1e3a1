package podconfig

import (
	"fmt"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

const many = 10_000

// edits returns a fold of one layer with 10,000 pods, and two readings that
// differ from each other in one of them.
func edits(files int) (f fold, readings [2]source.Snapshot) {
	for version := range readings {
		var s source.Snapshot
		for i := range files {
			name := fmt.Sprintf("pods-%05d.yaml", i)
			if version == 1 && i != files/2 {
				s.Files = append(s.Files, readings[0].Files[i])
				continue
			}
			held := source.File{File: name}
			for j := range many / files {
				key := pod.Key{Namespace: "default", Name: fmt.Sprintf("pod-%05d-%05d", i, j)}
				text := "A1"
				if version == 1 {
					if j != many/files/2 {
						held.Pods = append(held.Pods, readings[0].Files[i].Pods[j])
						continue
					}
					text = "A2"
				}
				spec := in(one, name, hashed(wanted(text)))[0]
				spec.Key = key
				held.Pods = append(held.Pods, spec)
			}
			s.Files = append(s.Files, held)
		}
		readings[version] = s
	}
	return newFold([]Layer{NewLayer(one, nil).Read(readings[0], noon), NewLayer(two, nil)}), readings
}

func benchmarkOneOfMany(b *testing.B, files int) {
	f, readings := edits(files)
	c := New(Config{})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		var batch Batch
		f, batch, _ = c.take(f, message{snapshot: readings[(i+1)%2]}, noon)
		if len(batch.Updates) != 1 || len(batch.Updates[0].Pods) != 1 {
			b.Fatalf("%d updates", len(batch.Updates))
		}
	}
}

// BenchmarkOneOfMany is one changed pod among 10,000: one a file, and all in one
// file.
func BenchmarkOneOfMany(b *testing.B) {
	b.Run("files", func(b *testing.B) { benchmarkOneOfMany(b, many) })
	b.Run("one file", func(b *testing.B) { benchmarkOneOfMany(b, 1) })
}

// BenchmarkFirstOfMany is the first reading of 10,000 pods.
func BenchmarkFirstOfMany(b *testing.B) {
	_, readings := edits(many)
	for b.Loop() {
		if m := Merge([]Layer{NewLayer(one, nil).Read(readings[0], noon)}); len(m.Pods) != many {
			b.Fatal("pods are missing")
		}
	}
}
