package workload

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// indexes is a set of completion indexes, as sorted spans with gaps between them.
type indexes []span

type span struct{ first, last int32 }

// parseIndexes parses the form of a Job's status and successPolicy: "0,2-5". It leaves out numbers
// that are not below limit, and parts that it cannot parse.
func parseIndexes(text string, limit int32) indexes {
	var out indexes
	for _, part := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseInt(from, 10, 32)
		if err != nil || first >= int64(limit) {
			continue
		}
		last, err := strconv.ParseInt(to, 10, 32)
		if err != nil || last < first {
			continue
		}
		s := span{int32(first), min(int32(last), limit-1)}
		if n := len(out); n > 0 && out[n-1].last+1 == s.first {
			out[n-1].last = s.last
			continue
		}
		out = append(out, s)
	}
	return out
}

// String returns the set in the form of a Job's status.
func (x indexes) String() string {
	parts := make([]string, 0, len(x))
	for _, s := range x {
		switch s.last - s.first {
		case 0:
			parts = append(parts, strconv.Itoa(int(s.first)))
		case 1:
			parts = append(parts, fmt.Sprintf("%d,%d", s.first, s.last))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", s.first, s.last))
		}
	}
	return strings.Join(parts, ",")
}

// count returns how many indexes the set has.
func (x indexes) count() int32 {
	var n int32
	for _, s := range x {
		n += s.last - s.first + 1
	}
	return n
}

// find returns the position of the first span that ends at index or after it.
func (x indexes) find(index int32) int {
	return sort.Search(len(x), func(i int) bool { return x[i].last >= index })
}

// has reports whether the set contains an index, and returns the last index of its span.
func (x indexes) has(index int32) (last int32, has bool) {
	if at := x.find(index); at < len(x) && x[at].first <= index {
		return x[at].last, true
	}
	return 0, false
}

// with returns the set with one more index. It does not change the receiver.
func (x indexes) with(index int32) indexes {
	if _, has := x.has(index); has {
		return x
	}
	at := x.find(index)
	out := slices.Insert(slices.Clone(x), at, span{index, index})
	if at+1 < len(out) && out[at+1].first == index+1 {
		out[at].last = out[at+1].last
		out = slices.Delete(out, at+1, at+2)
	}
	if at > 0 && out[at-1].last+1 == index {
		out[at-1].last = out[at].last
		out = slices.Delete(out, at, at+1)
	}
	return out
}

// common returns how many indexes two sets have in common.
func (x indexes) common(y indexes) int32 {
	var n int32
	for i, j := 0, 0; i < len(x) && j < len(y); {
		n += max(0, min(x[i].last, y[j].last)-max(x[i].first, y[j].first)+1)
		if x[i].last < y[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

// matchSuccessPolicy returns the message of the first rule that the succeeded indexes meet.
func matchSuccessPolicy(policy *batchv1.SuccessPolicy, completions int32, done indexes) (message string, met bool) {
	if policy == nil || len(done) == 0 {
		return "", false
	}
	for i, rule := range policy.Rules {
		count := done.count()
		if rule.SucceededIndexes != nil {
			required := parseIndexes(*rule.SucceededIndexes, completions)
			if len(required) == 0 {
				continue
			}
			count = required.common(done)
			met = count == required.count()
		}
		if met || rule.SucceededCount != nil && count >= *rule.SucceededCount {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}

// indexed reports whether each pod of the Job has a completion index.
func (j *jobRun) indexed() bool { return *j.spec.CompletionMode == batchv1.IndexedCompletion }

// perIndex reports whether each index has a back-off limit of its own.
func (j *jobRun) perIndex() bool { return j.indexed() && j.spec.BackoffLimitPerIndex != nil }

// indexOf returns the completion index of a pod; ok is false if the Job has no such index. A pod
// of a Job without indexes has index -1.
func (j *jobRun) indexOf(p Pod) (index int32, ok bool) {
	if !j.indexed() {
		return -1, true
	}
	n, err := strconv.ParseInt(p.Spec.Pod.Annotations[batchv1.JobCompletionIndexAnnotation], 10, 32)
	return int32(n), err == nil && n >= 0 && n < int64(*j.spec.Completions)
}

// pending returns the lowest indexes, at most n, that have neither a pod nor a result.
func (j *jobRun) pending(n int32) []int32 {
	busy := map[int32]bool{}
	note := func(pods []Pod) {
		for _, p := range pods {
			if i, ok := j.indexOf(p); ok {
				busy[i] = true
			}
		}
	}
	note(j.active)
	if j.replacesFailedOnly() {
		note(j.leaving)
	}
	var out []int32
	for i := int32(0); i < *j.spec.Completions && int32(len(out)) < n; i++ {
		if last, has := j.done.has(i); has {
			i = last
		} else if last, has := j.failed.has(i); has {
			i = last
		} else if !busy[i] {
			out = append(out, i)
		}
	}
	return out
}

// dropDuplicates removes the active pods whose index the Job does not have, or which another active
// pod has. Such pods exist after an elastic Job became smaller, or after a loss of the state.
func (j *jobRun) dropDuplicates() {
	if !j.indexed() {
		return
	}
	slices.SortStableFunc(j.active, func(a, b Pod) int { return removalOrder(b, a) })
	seen := map[int32]bool{}
	j.active = slices.DeleteFunc(j.active, func(p Pod) bool {
		i, ok := j.indexOf(p)
		_, done := j.done.has(i)
		switch {
		case !ok:
			j.drop(p, fmt.Sprintf("the Job has %d completions", *j.spec.Completions))
			return true
		case seen[i], done:
			j.drop(p, fmt.Sprintf("another pod has completion index %d", i))
			return true
		}
		seen[i] = true
		return false
	})
}

// completionIndexEnv is the environment variable with the completion index.
const completionIndexEnv = "JOB_COMPLETION_INDEX"

// setIndex gives a pod the host name and the environment of a completion index, as Kubernetes
// does.
func setIndex(p *v1.Pod, job string, index int32) {
	p.Spec.Hostname = fmt.Sprintf("%s-%d", job, index)
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if slices.ContainsFunc(c.Env, func(e v1.EnvVar) bool { return e.Name == completionIndexEnv }) {
				continue
			}
			c.Env = append(c.Env, v1.EnvVar{Name: completionIndexEnv, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{
				FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']",
			}}})
		}
	}
}
