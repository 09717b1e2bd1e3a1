package podspec

import (
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// NewData returns the Data of these objects, of which no two have the same kind and
// name; nil for none.
func NewData(objects []*pod.Object) *pod.Data { return new(Summer).Data(objects, nil) }

// NewSavedData is NewData with sums for the objects whose contents were not saved.
func NewSavedData(objects []*pod.Object, sums []pod.ObjectSum) *pod.Data {
	return pod.DataWithSums(objects, append(new(Summer).sums(objects, nil), sums...))
}

// Summer makes Data and reads each object once, however many pods name it. The
// zero value is ready; it belongs to one goroutine.
type Summer struct{ known map[*pod.Object]pod.ObjectSum }

// Data is NewData for a pod whose Data was before, which may be nil.
func (m *Summer) Data(objects []*pod.Object, before *pod.Data) *pod.Data {
	return pod.DataWithSums(objects, m.sums(objects, before))
}

func (m *Summer) sums(objects []*pod.Object, before *pod.Data) []pod.ObjectSum {
	var sums []pod.ObjectSum
	for _, o := range objects {
		sums = append(sums, m.sum(o, before))
	}
	return sums
}

func (m *Summer) sum(o *pod.Object, before *pod.Data) pod.ObjectSum {
	sum, known := m.known[o]
	if !known && before.Object(o.Kind, o.Name) == o {
		sum, known = before.Sum(pod.ObjectID{Kind: o.Kind, Name: o.Name})
	}
	if !known {
		sum = SumOf(o)
	}
	if m.known == nil {
		m.known = map[*pod.Object]pod.ObjectSum{}
	}
	m.known[o] = sum
	return sum
}

// SumOf returns the checksum of o's content. It reads all of it.
func SumOf(o *pod.Object) pod.ObjectSum {
	sum := pod.ObjectSum{Kind: o.Kind, Name: o.Name}
	for key, value := range o.Values() {
		if sum.Keys == nil {
			sum.Keys = map[string]pod.KeySum{}
		}
		sum.Keys[key] = pod.KeySum{Bytes: len(value), Sum: pod.Digest(value)}
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

// Bind returns s bound to d alone. With AnnotationRestartOnChange the hashes of its
// parts cover the objects that each of them uses.
func Bind(s *pod.Spec, d *pod.Data) *pod.Spec {
	out := *s
	out.Data = d
	if s.Data != nil && s.Data.Unbound != nil {
		out.ContainerHashes = maps.Clone(s.Data.Unbound)
		out.SandboxHash = out.ContainerHashes[""]
		delete(out.ContainerHashes, "")
	}
	if d == nil {
		return &out
	}
	bound := *d // whose hashes are this pod's
	bound.Unbound, out.Data = nil, &bound
	if s.Pod.Annotations[pod.AnnotationRestartOnChange] != "true" {
		return &out
	}
	bound.Unbound = maps.Clone(out.ContainerHashes)
	if bound.Unbound == nil {
		bound.Unbound = map[string]string{}
	}
	bound.Unbound[""] = out.SandboxHash
	uses := usesOf(&out)
	out.ContainerHashes = maps.Clone(out.ContainerHashes)
	for name, hash := range out.ContainerHashes {
		if sum, n := d.Hash(func(id pod.ObjectID) bool { return uses[name][id] }); n > 0 && hash != "" {
			out.ContainerHashes[name] = versioned([]byte(hash + " " + sum))
		}
	}
	for i := range s.Pod.Spec.InitContainers {
		c := &s.Pod.Spec.InitContainers[i]
		if hash := out.ContainerHashes[c.Name]; !pod.Restartable(c) && hash != bound.Unbound[c.Name] && out.SandboxHash != "" {
			out.SandboxHash = versioned([]byte(out.SandboxHash + " " + hash))
		}
	}
	return &out
}

// usesOf returns the config objects that each container uses, by its environment or
// through a volume that it mounts.
func usesOf(s *pod.Spec) map[string]map[pod.ObjectID]bool {
	out := map[string]map[pod.ObjectID]bool{}
	note := func(container string, r pod.Ref) {
		if out[container] == nil {
			out[container] = map[pod.ObjectID]bool{}
		}
		out[container][pod.ObjectID{Kind: r.Kind, Name: r.Name}] = true
	}
	mounting := map[string][]string{}
	for name := range s.ContainerHashes {
		if c, _ := s.Container(name); c != nil {
			for _, m := range c.VolumeMounts {
				mounting[m.Name] = append(mounting[m.Name], name)
			}
		}
	}
	for _, r := range pod.Refs(s.Pod) {
		if r.Container != "" {
			note(r.Container, r)
		}
		if r.Volume != "" {
			for _, name := range mounting[r.Volume] {
				note(name, r)
			}
		}
	}
	return out
}
