// Package source defines sources. A source reads desired pods from one place. It yields the complete set,
// or an error. It makes no decisions, and keeps no last good versions: podconfig does both.
//
// Each source is in its own package below this one, and passes the tests of sourcetest.
package source

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// Source reads desired pods from one place: it is one layer.
type Source interface {
	// Name returns the kind and location of the layer, in the form of pod.Origin.Layer.
	Name() string
	// Sets yields the complete set at once, and the complete new set after each change. An error says
	// that the source could not be read: the last good set stays in use. The sequence continues after
	// an error. It yields again when the source can be read, or the reason changes. The sequence ends
	// when ctx is done or the caller leaves the loop. It also ends when nothing can change any more, as
	// with standard input; the last set then stays in use. Call Sets only once.
	Sets(ctx context.Context) iter.Seq2[Snapshot, error]
}

// Snapshot is one complete reading of a source. It is immutable. Unchanged pods and objects have the same
// pointers as in the snapshot before.
type Snapshot struct {
	// Revision is the number of the snapshot, counted from 1 for each source.
	Revision uint64
	// Changed has the keys of the pods that were added, changed or removed since the snapshot before,
	// sorted. In the first snapshot it has all keys.
	Changed []pod.Key
	// Files has one entry for each file, URL, document stream, etcd key or object of an API server, in
	// byte order of File (see FilesOf). A snapshot shares unchanged parts of the list with the one
	// before.
	Files sorted.List[File]
	// Skipped has a notice with the reason for each part that the source ignored on purpose.
	Skipped []pod.Problem
}

// File is the content of one file of a source. While it has any problem, it removes nothing: podconfig
// keeps the pods and objects that it lacks, and uses those that it has.
type File struct {
	File     string
	Pods     []*pod.Spec
	Objects  []*pod.Object
	Problems []pod.Problem
	// Incomplete says that the file could not be read or decoded completely. Pods and
	// Objects have the readable part.
	Incomplete bool
	// Broken has the keys of the rejected pods of the file.
	Broken []pod.Key
	// BrokenObjects has the keys of the rejected workloads of the file. Kind is "" if it is not known.
	BrokenObjects []pod.ObjectKey
}

// FilesOf returns files for a Snapshot: in byte order of File, each name once. It joins several entries of
// one name.
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
