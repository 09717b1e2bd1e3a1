package workload

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podstatic"
)

// templateHash returns the hash by which Kubernetes names the ReplicaSet of a pod template
// (pod-template-hash) and the revision of a DaemonSet. collisions is the collision count of the
// workload's status, 0 for none.
func templateHash(t *v1.PodTemplateSpec, collisions int32) string {
	sum := fnv.New32a()
	fmt.Fprintf(sum, "%v", dump.ForHash(*podstatic.DefaultTemplate(t)))
	if collisions > 0 {
		var count [8]byte
		binary.LittleEndian.PutUint32(count[:], uint32(collisions))
		fmt.Fprintf(sum, "%s", count[:])
	}
	return rand.SafeEncodeString(fmt.Sprint(sum.Sum32()))
}

// revise returns the revisions with the one of the template last, as the newest. If a revision has
// this template already, it keeps its hash and gets the highest number. Otherwise hash computes the
// hash of a new revision; revise calls it with a rising collision count until no other revision has
// the hash. It does not change list.
func revise(list []Revision, t *v1.PodTemplateSpec, now time.Time, hash func(collisions int32) string) []Revision {
	at := indexOfTemplate(list, t)
	if at >= 0 && at == len(list)-1 {
		return list
	}
	out := slices.Clone(list)
	var newest Revision
	if at >= 0 {
		newest = list[at]
		newest.Failed = "" // the revision is tried again
		out = slices.Delete(out, at, at+1)
	} else {
		newest.Template = *t.DeepCopy()
		for n := int32(0); newest.Hash == "" || indexOf(list, newest.Hash) >= 0; n++ {
			newest.Hash = hash(n)
		}
	}
	for i := range list {
		newest.Number = max(newest.Number, list[i].Number)
	}
	newest.Number++
	newest.First = cmp.Or(newest.First, newest.Number)
	newest.Since = seconds(now)
	return append(out, newest)
}

// indexOf returns the index of the revision with this hash, or -1.
func indexOf(list []Revision, hash string) int {
	return slices.IndexFunc(list, func(r Revision) bool { return r.Hash == hash })
}

// indexOfTemplate returns the index of the revision with an equal template, or -1. As in Kubernetes,
// it compares templates with all defaults: an explicit default makes no difference.
func indexOfTemplate(list []Revision, t *v1.PodTemplateSpec) int {
	last := len(list) - 1
	if last < 0 || equality.Semantic.DeepEqual(&list[last].Template, t) {
		return last
	}
	full := podstatic.DefaultTemplate(t)
	for i := last; i >= 0; i-- {
		if equality.Semantic.DeepEqual(podstatic.DefaultTemplate(&list[i].Template), full) {
			return i
		}
	}
	return -1
}

// adopt returns the revisions, and adds a revision for each pod that has none: an earlier state was
// lost. labels are the labels that the controller adds to pods, the hash first. A pod belongs to
// the template's revision if its hash over the manifest's text is the template's, even if other
// defaults changed the revision's hash: a lost state must not replace pods. adopt does not change
// list.
func adopt(in *Input, list []Revision, t *v1.PodTemplateSpec, labels ...string) []Revision {
	var older, same []Revision
	for _, p := range in.Pods {
		hash := p.Spec.Pod.Labels[labels[0]]
		if p.Leaving || hash == "" || indexOf(list, hash) >= 0 || indexOf(older, hash) >= 0 || indexOf(same, hash) >= 0 {
			continue
		}
		added := make(map[string]string, len(labels))
		for _, name := range labels {
			if value, ok := p.Spec.Pod.Labels[name]; ok {
				added[name] = value
			}
		}
		r := Revision{Hash: hash, Since: seconds(in.Now)}
		if in.newPod(t, podParts{labels: added}).Hash != p.Spec.Hash {
			older = append(older, r)
			continue
		}
		r.Template = *t.DeepCopy()
		same = append(same, r)
	}
	if len(older)+len(same) == 0 {
		return list
	}
	out := slices.Concat(list, older, same)
	for i := len(list); i < len(out); i++ {
		if i > 0 {
			out[i].Number = out[i-1].Number
		}
		out[i].Number++
		out[i].First = out[i].Number
	}
	return out
}

// isKnown reports whether the revision's template is known, so that pods can be made from it.
func (r *Revision) isKnown() bool { return len(r.Template.Spec.Containers) > 0 }

// defaultHistory is the default revisionHistoryLimit.
const defaultHistory = 10

// history selects the revisions that a workload keeps: those in use, and a number of others.
type history struct {
	limit *int32
	used  func(*Revision) bool
}

// dropHistory removes the revisions beyond the history limit. It keeps a revision to which a rollback
// may return, even with revisionHistoryLimit 0.
func (in *Input) dropHistory(d *Decision) {
	h := d.history
	if d.history = nil; h == nil {
		return
	}
	back := in.mayReturnTo(d)
	d.State.Revisions = prune(d.State.Revisions, h.limit, func(r *Revision) bool {
		return h.used(r) || d.State.needs(r) || r.Hash == back
	})
}

// mayReturnTo returns the hash of the revision that a rollback would restore if the newest one failed
// later, or "". For a workload of a release it returns "": needs keeps the revision of a release.
func (in *Input) mayReturnTo(d *Decision) string {
	n, o := len(d.State.Revisions), d.State.Override
	guarded := annotationsOf(in.Object)[pod.AnnotationRollback] == pod.RollbackOnFailure && ReleaseOf(in.Object).Name == ""
	if n == 0 || !guarded || o != nil && o.Template != nil && o.Template.Rollback {
		return ""
	}
	newest := &d.State.Revisions[n-1]
	over := newest.Good // without a trial, for example while the workload is paused
	if t := d.State.Trial; t != nil && t.Number == newest.Number {
		over = t.Over
	}
	if over {
		return ""
	}
	if back := target(d.State.Revisions, newest.Hash, in.allows); back != nil {
		return back.Hash
	}
	return ""
}

// prune returns the revisions without the oldest ones beyond the limit. It keeps the newest
// revision and each revision for which used returns true. It does not change list.
func prune(list []Revision, limit *int32, used func(*Revision) bool) []Revision {
	keep := ptr.Deref(limit, defaultHistory)
	drop := len(list) - 1 - int(keep)
	if drop <= 0 || keep == math.MaxInt32 {
		return list
	}
	out := make([]Revision, 0, len(list))
	for i := range list {
		if drop > 0 && i < len(list)-1 && !used(&list[i]) {
			drop--
			continue
		}
		out = append(out, list[i])
	}
	return out
}

// seconds returns a time in whole seconds, as JSON stores it, so that a restart of the agent does
// not change a state.
func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
