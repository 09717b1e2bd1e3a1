// Package source defines sources. A source reads desired pods from one place and yields
// complete readings; it keeps no last good versions and makes no decisions. Only
// podconfig keeps last good versions.
//
// Each source is in its own package below this one, and passes sourcetest.
//
// The one rule: a source yields the complete set or an error.
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
	// in use. The sequence continues and yields again when the source can be read or
	// the reason changed. The sequence ends when ctx is done, when the caller leaves
	// the loop, or when nothing can ever change again (standard input); its last set
	// then stays in use. Sets is called once.
	Sets(ctx context.Context) iter.Seq2[Snapshot, error]
}

// Snapshot is one complete reading of a source. It is immutable and shares structure with the
// previous one: an unchanged part is the same pointer.
type Snapshot struct {
	// Revision rises by one with every snapshot of a source, from 1.
	Revision uint64
	// Changed holds the keys whose pods differ from the snapshot before
	// (added, changed, removed); in a first snapshot, every key.
	Changed []pod.Key
	// Files is the reading, one entry per file (URL, document stream, etcd
	// key), in byte order of File, each File once (see FilesOf). A snapshot
	// shares the list with the one before, but for the files that changed.
	Files sorted.List[File]
	// Skipped lists the parts that were skipped on purpose, each with its reason.
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
	// Broken names pods that the file holds but that are rejected.
	Broken []pod.Key
	// BrokenObjects names workloads that the file holds but that are rejected. The Kind is
	// empty where it is not known.
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
