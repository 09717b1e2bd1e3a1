// Package source defines sources. A source reads desired pods from one place and yields
// complete readings. It decides nothing, and keeps no last good versions: podconfig does.
//
// Each source is in its own package below this one, and passes the tests of sourcetest.
//
// A source yields the complete set or an error.
package source

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// Source is one place of desired pods: one layer.
type Source interface {
	// Name returns the layer's kind and location, as Origin.Layer gives it.
	Name() string
	// Sets yields the complete set at once, then the complete new set after every
	// change. An error means that the source could not be read: the last good set stays
	// in use. The sequence continues, and yields again when the source can be read or
	// the reason changes. It ends when ctx is done or the caller leaves the loop. It also
	// ends when nothing can change any more, as with standard input; the last set then
	// stays in use. The caller calls Sets once.
	Sets(ctx context.Context) iter.Seq2[Snapshot, error]
}

// Snapshot is one complete reading of a source. It is immutable and shares structure with the
// previous one: an unchanged part is the same pointer.
type Snapshot struct {
	// Revision rises by one with every snapshot of a source, from 1.
	Revision uint64
	// Changed has the keys of the pods that were added, changed or removed since the
	// snapshot before; in a first snapshot, every key.
	Changed []pod.Key
	// Files is the reading: one entry for each file, URL, document stream or etcd key, in
	// byte order of File (see FilesOf). A snapshot shares the list with the one before,
	// except for the files that changed.
	Files sorted.List[File]
	// Skipped lists the parts that the source skipped on purpose, each with its reason.
	Skipped []pod.Problem
}

// File is the content of one file of a source. While it has any problem, it removes
// nothing: podconfig keeps the pods and objects read before, together with those that
// can be read now.
type File struct {
	File     string
	Pods     []*pod.Spec
	Objects  []*pod.Object
	Problems []pod.Problem
	// Incomplete says that the file could not be read or decoded completely. Pods and
	// Objects have the readable part.
	Incomplete bool
	// Broken names the pods that the file has in a form that was rejected.
	Broken []pod.Key
	// BrokenObjects names the workloads that the file has in a form that was rejected. The
	// Kind is empty where it is not known.
	BrokenObjects []pod.ObjectKey
}

// FilesOf returns files as a Snapshot holds them: in byte order of File, each once.
// Several entries of one File are combined.
func FilesOf(files ...File) sorted.List[File] {
	all := sorted.From(files, CompareFiles).Slice()
	out := all[:0]
	for _, f := range all {
		if len(out) == 0 || out[len(out)-1].File != f.File {
			out = append(out, f)
			continue
		}
		last := &out[len(out)-1]
		last.Pods = append(slices.Clip(last.Pods), f.Pods...)
		last.Objects = append(slices.Clip(last.Objects), f.Objects...)
		last.Problems = append(slices.Clip(last.Problems), f.Problems...)
		last.Broken = append(slices.Clip(last.Broken), f.Broken...)
		last.BrokenObjects = append(slices.Clip(last.BrokenObjects), f.BrokenObjects...)
		last.Incomplete = last.Incomplete || f.Incomplete
	}
	return sorted.Of(out...)
}

// CompareFiles orders files by their names, in byte order.
func CompareFiles(a, b File) int { return strings.Compare(a.File, b.File) }

func (f File) compare(name string) int { return strings.Compare(f.File, name) }
