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
	"k8s.io/apimachinery/pkg/util/dump"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/nodectl/nodectl/pkg/podspec"
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

// revise returns the revisions with the template as the newest one, which is the last. A
// template that is one of them keeps that revision's hash, and the revision gets the highest
// number. hash computes the hash of a new revision; it is called with a rising count while
// another revision has the hash. The slice of list does not change.
func revise(list []Revision, t *v1.PodTemplateSpec, now time.Time, hash func(collisions int32) string) []Revision {
	at := slices.IndexFunc(list, func(r Revision) bool { return sameTemplate(&r.Template, t) })
	if at >= 0 && at == len(list)-1 {
		return list
	}
	out := slices.Clone(list)
	var newest Revision
	if at >= 0 {
		newest, out = out[at], slices.Delete(out, at, at+1)
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

// indexOf returns the index of the revision with a hash, -1 for none.
func indexOf(list []Revision, hash string) int {
	return slices.IndexFunc(list, func(r Revision) bool { return r.Hash == hash })
}

// sameTemplate reports whether two templates have the same content. Explicit defaults and
// spellings do not count, as they do not for a static pod.
func sameTemplate(a, b *v1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(a, b) || contentHash(a) == contentHash(b)
}

func contentHash(t *v1.PodTemplateSpec) string {
	hash, _, _ := podspec.NewHashes(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: t.Labels, Annotations: t.Annotations}, Spec: t.Spec})
	return hash
}

// defaultHistory is the default revisionHistoryLimit.
const defaultHistory = 10

// prune returns the revisions without the oldest ones beyond the limit. The newest revision and
// those for which used is true stay. The slice of list does not change.
func prune(list []Revision, limit *int32, used func(*Revision) bool) []Revision {
	keep := valueOr(limit, defaultHistory)
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

// valueOr returns the value of an optional field, or its default.
func valueOr[T any](field *T, otherwise T) T {
	if field == nil {
		return otherwise
	}
	return *field
}

// seconds returns a time as JSON keeps it, so that a state is the same after a restart of the
// agent.
func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
