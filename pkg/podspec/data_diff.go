package podspec

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nodectl/nodectl/pkg/pod"
)

// DataChanged returns the objects, in order, that two versions of a pod both name and
// that were changed, added or removed.
func DataChanged(old, new *pod.Spec) []pod.ObjectID {
	if old == nil || new == nil || old.Data.Same(new.Data) {
		return nil
	}
	named := map[pod.ObjectID]bool{}
	for _, r := range pod.Refs(old.Pod) {
		named[pod.ObjectID{Kind: r.Kind, Name: r.Name}] = true
	}
	var out []pod.ObjectID
	for _, r := range pod.Refs(new.Pod) {
		id := pod.ObjectID{Kind: r.Kind, Name: r.Name}
		was, had := old.Data.Sum(id)
		is, has := new.Data.Sum(id)
		if named[id] && (had != has || had && !was.Same(is)) {
			out = append(out, id)
			delete(named, id)
		}
	}
	slices.SortFunc(out, pod.ObjectID.Compare)
	return out
}

// DataDifferences returns the differences of the objects that two versions of a pod both name, as
// Differences does for the pods: "configmap/web.data[nginx.conf]". It shows only sizes for a
// Secret's values, for values of which one side has only the sum, and for binary values.
func DataDifferences(old, new *pod.Spec) []FieldChange {
	var d differ
	for _, id := range DataChanged(old, new) {
		was, had := old.Data.Sum(id)
		is, has := new.Data.Sum(id)
		before := len(d.changes)
		if x, y := old.Data.Claim(id.Name), new.Data.Claim(id.Name); id.Kind == pod.KindClaim && x != nil && y != nil {
			d.compare(id.String()+".spec", reflect.ValueOf(x.Spec), reflect.ValueOf(y.Spec))
		}
		keys := map[string]pod.KeySum{}
		maps.Copy(keys, was.Keys)
		maps.Copy(keys, is.Keys)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			x, inOld := was.Keys[key]
			y, inNew := is.Keys[key]
			if inOld && inNew && x.Same(y) {
				continue
			}
			c := FieldChange{Path: fmt.Sprintf("%s.data[%s]", id, key)}
			a, aIsText := dataText(old.Data, id, key, x, inOld)
			b, bIsText := dataText(new.Data, id, key, y, inNew)
			if !aIsText || !bIsText {
				a, b = size(id.Kind, x, inOld), size(id.Kind, y, inNew)
			}
			c.Old, c.New = a, b
			d.changes = append(d.changes, c)
		}
		if len(d.changes) == before { // an empty object was added or removed, or its type changed
			d.changes = append(d.changes, FieldChange{Path: id.String(), Old: presence(had), New: presence(has)})
		}
	}
	return d.changes
}

func presence(there bool) string {
	if there {
		return "(exists)"
	}
	return ""
}

// dataText returns the value of a ConfigMap's key, and whether it is known and text; a
// missing one counts as text.
func dataText(d *pod.Data, id pod.ObjectID, key string, sum pod.KeySum, there bool) (string, bool) {
	if id.Kind != pod.KindConfigMap || !there {
		return "", id.Kind == pod.KindConfigMap
	}
	values, known := d.Values(id.Kind, id.Name)
	return string(values[key]), known && utf8.Valid(values[key])
}

// size returns the text shown in place of a value.
func size(kind string, sum pod.KeySum, there bool) string {
	switch {
	case !there:
		return ""
	case kind == pod.KindSecret:
		return Redacted(sum.Bytes)
	}
	return fmt.Sprintf("(%d bytes)", sum.Bytes)
}

// Redacted returns the text shown in place of a secret value of n bytes.
func Redacted(n int) string { return fmt.Sprintf("(redacted, %d bytes)", n) }

// RestartByData is Restart, including restarts by a change of config objects
// (AnnotationRestartOnChange), which it names as the reason.
func RestartByData(old, new *pod.Spec) (podLevel bool, containers []string, reason string) {
	podLevel, containers, reason = Restart(old, new)
	changed := slices.DeleteFunc(DataChanged(old, new), func(id pod.ObjectID) bool { return id.Kind == pod.KindClaim })
	if len(changed) == 0 {
		return podLevel, containers, reason
	}
	var names []string
	for _, id := range changed {
		names = append(names, id.String())
	}
	why := strings.Join(names, ", ") + " changed"
	reason = strings.ReplaceAll(reason, hashChanged, why)
	if old.Pod.Annotations[pod.AnnotationRestartOnChange] != "true" || new.Pod.Annotations[pod.AnnotationRestartOnChange] != "true" || podLevel {
		return podLevel, containers, reason
	}
	// One of the two may carry no hashes.
	uses := usesOf(new)
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		c, init := new.Container(name)
		was, _ := old.Container(name)
		if c == nil || was == nil || slices.Contains(containers, name) || !slices.ContainsFunc(changed, func(id pod.ObjectID) bool { return uses[name][id] }) {
			continue
		}
		if init && !pod.Restartable(c) {
			return true, nil, why
		}
		containers = append(containers, name)
		reason = cmp.Or(reason, why)
	}
	slices.Sort(containers)
	return false, containers, reason
}

// hashChanged is the reason of Restart where only the hashes differ.
const hashChanged = "content hash changed"
