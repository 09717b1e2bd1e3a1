package pod

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
)

// ObjectSum is a checksum of the content of a config object.
type ObjectSum struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Hash covers the parts of the object that a pod sees; not its labels.
	Hash string            `json:"hash"`
	Keys map[string]KeySum `json:"keys,omitempty"`
}

// KeySum is the size of one value and its checksum, "" where only the size is known.
type KeySum struct {
	Bytes int    `json:"bytes"`
	Sum   string `json:"sum"`
}

func (k KeySum) same(o KeySum) bool {
	return k.Bytes == o.Bytes && (k.Sum == o.Sum || k.Sum == "" || o.Sum == "")
}

func (s ObjectSum) id() ObjectID { return ObjectID{s.Kind, s.Name} }

// same reports whether two sums are of one content, as far as they know.
func (s ObjectSum) same(o ObjectSum) bool {
	if s.id() != o.id() || s.Hash != "" && o.Hash != "" {
		return s.id() == o.id() && s.Hash == o.Hash
	}
	return maps.EqualFunc(s.Keys, o.Keys, KeySum.same)
}

// SumOf returns the checksum of o's content. It reads all of it.
func SumOf(o *Object) ObjectSum {
	sum := ObjectSum{Kind: o.Kind, Name: o.Name}
	for key, value := range o.Values() {
		if sum.Keys == nil {
			sum.Keys = map[string]KeySum{}
		}
		sum.Keys[key] = KeySum{Bytes: len(value), Sum: digest(value)}
	}
	content := map[string]any{"keys": sum.Keys}
	switch obj := o.Object.(type) {
	case *v1.Secret:
		content["type"] = obj.Type
	case *v1.PersistentVolumeClaim:
		content["spec"] = obj.Spec
	}
	sum.Hash = hashOf(content)
	return sum
}

// Same reports whether two pods are bound to the same content.
func (d *Data) Same(o *Data) bool {
	return d == o || slices.EqualFunc(d.sums(), o.sums(), ObjectSum.same)
}

func (d *Data) sums() []ObjectSum {
	if d == nil {
		return nil
	}
	return d.Sums
}

func (d *Data) sum(id ObjectID) (ObjectSum, bool) {
	sums := d.sums()
	i, found := slices.BinarySearchFunc(sums, id, func(s ObjectSum, id ObjectID) int { return s.id().compare(id) })
	if !found {
		return ObjectSum{}, false
	}
	return sums[i], true
}

// DataChanged returns the objects, in order, that two versions of a pod both name and
// that were changed, added or removed.
func DataChanged(old, new *Spec) []ObjectID {
	if old == nil || new == nil || old.Data.Same(new.Data) {
		return nil
	}
	named := map[ObjectID]bool{}
	for _, r := range Refs(old.Pod) {
		named[ObjectID{r.Kind, r.Name}] = true
	}
	var out []ObjectID
	for _, r := range Refs(new.Pod) {
		id := ObjectID{r.Kind, r.Name}
		was, had := old.Data.sum(id)
		is, has := new.Data.sum(id)
		if named[id] && (had != has || had && !was.same(is)) {
			out = append(out, id)
			delete(named, id)
		}
	}
	slices.SortFunc(out, ObjectID.compare)
	return out
}

// DataDifferences returns what differs in the objects that two versions of a pod both
// name, as Differences does for the pods: "configmap/web.data[nginx.conf]". It shows
// only sizes for a Secret's values, for values of which one side has only the sum, and
// for binary values.
func DataDifferences(old, new *Spec) []FieldChange {
	var d differ
	for _, id := range DataChanged(old, new) {
		was, had := old.Data.sum(id)
		is, has := new.Data.sum(id)
		before := len(d.changes)
		if x, y := old.Data.Claim(id.Name), new.Data.Claim(id.Name); id.Kind == KindClaim && x != nil && y != nil {
			d.compare(id.String()+".spec", reflect.ValueOf(x.Spec), reflect.ValueOf(y.Spec))
		}
		keys := map[string]KeySum{}
		maps.Copy(keys, was.Keys)
		maps.Copy(keys, is.Keys)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			x, inOld := was.Keys[key]
			y, inNew := is.Keys[key]
			if inOld && inNew && x.same(y) {
				continue
			}
			c := FieldChange{Path: fmt.Sprintf("%s.data[%s]", id, key)}
			a, aIsText := old.Data.text(id, key, x, inOld)
			b, bIsText := new.Data.text(id, key, y, inNew)
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

// text returns the value of a ConfigMap's key, and whether it is known and text; a
// missing one counts as text.
func (d *Data) text(id ObjectID, key string, sum KeySum, there bool) (string, bool) {
	if id.Kind != KindConfigMap || !there {
		return "", id.Kind == KindConfigMap
	}
	values, known := d.Values(id.Kind, id.Name)
	return string(values[key]), known && utf8.Valid(values[key])
}

// size returns the text shown in place of a value.
func size(kind string, sum KeySum, there bool) string {
	switch {
	case !there:
		return ""
	case kind == KindSecret:
		return Redacted(sum.Bytes)
	}
	return fmt.Sprintf("(%d bytes)", sum.Bytes)
}

// Redacted returns the text shown in place of a secret value of n bytes.
func Redacted(n int) string { return fmt.Sprintf("(redacted, %d bytes)", n) }

// RestartByData is Restart, including restarts by a change of config objects
// (AnnotationRestartOnChange), which it names as the reason.
func RestartByData(old, new *Spec) (podLevel bool, containers []string, reason string) {
	podLevel, containers, reason = Restart(old, new)
	changed := slices.DeleteFunc(DataChanged(old, new), func(id ObjectID) bool { return id.Kind == KindClaim })
	if len(changed) == 0 {
		return podLevel, containers, reason
	}
	var names []string
	for _, id := range changed {
		names = append(names, id.String())
	}
	why := strings.Join(names, ", ") + " changed"
	reason = strings.ReplaceAll(reason, hashChanged, why)
	if old.Pod.Annotations[AnnotationRestartOnChange] != "true" || new.Pod.Annotations[AnnotationRestartOnChange] != "true" || podLevel {
		return podLevel, containers, reason
	}
	// One of the two may carry no hashes.
	uses := new.uses()
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		c, init := new.Container(name)
		was, _ := old.Container(name)
		if c == nil || was == nil || slices.Contains(containers, name) || !slices.ContainsFunc(changed, func(id ObjectID) bool { return uses[name][id] }) {
			continue
		}
		if init && !Restartable(c) {
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
