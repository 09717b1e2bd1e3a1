package pod

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// The kinds of config objects that a pod may name.
const (
	KindConfigMap = "ConfigMap"
	KindSecret    = "Secret"
	KindClaim     = "PersistentVolumeClaim"
)

// AnnotationRestartOnChange, "true" on a pod, has a change of the ConfigMaps and
// Secrets that a container uses, by its environment or its mounts, restart that
// container as an edit of its definition does; of an init container's, the pod.
// To write the annotation restarts, once, what uses any.
const AnnotationRestartOnChange = "nodectl.dev/restart-on-change"

// Ref is one place in a pod that names a config object of its namespace.
type Ref struct {
	Kind, Name string
	// Key is the one key that is asked for, "" for the object as a whole.
	Key string
	// Optional says that the pod runs without it.
	Optional bool
	// Container names the container whose environment asks, Volume the volume; both
	// are empty for a pull secret.
	Container, Volume string
	// Path is the field, as "spec.containers[0].env[1].valueFrom.secretKeyRef".
	Path string
}

// Refs returns every place in p that names a ConfigMap, a Secret or a claim, in
// the order of the API's fields. Pull secrets are optional (C-1.39.5).
func Refs(p *v1.Pod) []Ref {
	var out []Ref
	add := func(r Ref) { out = append(out, r) }
	yes := func(b *bool) bool { return b != nil && *b }
	items := func(r Ref, list []v1.KeyToPath) {
		add(r)
		for i, item := range list {
			key := r
			key.Key, key.Path = item.Key, fmt.Sprintf("%s.items[%d].key", r.Path, i)
			add(key)
		}
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		at := fmt.Sprintf("spec.volumes[%d].", i)
		switch {
		case v.ConfigMap != nil:
			items(Ref{Kind: KindConfigMap, Name: v.ConfigMap.Name, Optional: yes(v.ConfigMap.Optional), Volume: v.Name, Path: at + "configMap"}, v.ConfigMap.Items)
		case v.Secret != nil:
			items(Ref{Kind: KindSecret, Name: v.Secret.SecretName, Optional: yes(v.Secret.Optional), Volume: v.Name, Path: at + "secret"}, v.Secret.Items)
		case v.PersistentVolumeClaim != nil:
			add(Ref{Kind: KindClaim, Name: v.PersistentVolumeClaim.ClaimName, Volume: v.Name, Path: at + "persistentVolumeClaim"})
		case v.Projected != nil:
			for j := range v.Projected.Sources {
				s := &v.Projected.Sources[j]
				at := fmt.Sprintf("%sprojected.sources[%d].", at, j)
				if s.ConfigMap != nil {
					items(Ref{Kind: KindConfigMap, Name: s.ConfigMap.Name, Optional: yes(s.ConfigMap.Optional), Volume: v.Name, Path: at + "configMap"}, s.ConfigMap.Items)
				}
				if s.Secret != nil {
					items(Ref{Kind: KindSecret, Name: s.Secret.Name, Optional: yes(s.Secret.Optional), Volume: v.Name, Path: at + "secret"}, s.Secret.Items)
				}
			}
		}
	}
	environment := func(at string, c *v1.Container) {
		for i := range c.EnvFrom {
			at := fmt.Sprintf("%senvFrom[%d].", at, i)
			if m := c.EnvFrom[i].ConfigMapRef; m != nil {
				add(Ref{Kind: KindConfigMap, Name: m.Name, Optional: yes(m.Optional), Container: c.Name, Path: at + "configMapRef"})
			}
			if s := c.EnvFrom[i].SecretRef; s != nil {
				add(Ref{Kind: KindSecret, Name: s.Name, Optional: yes(s.Optional), Container: c.Name, Path: at + "secretRef"})
			}
		}
		for i := range c.Env {
			from := c.Env[i].ValueFrom
			if from == nil {
				continue
			}
			at := fmt.Sprintf("%senv[%d].valueFrom.", at, i)
			if m := from.ConfigMapKeyRef; m != nil {
				add(Ref{Kind: KindConfigMap, Name: m.Name, Key: m.Key, Optional: yes(m.Optional), Container: c.Name, Path: at + "configMapKeyRef"})
			}
			if s := from.SecretKeyRef; s != nil {
				add(Ref{Kind: KindSecret, Name: s.Name, Key: s.Key, Optional: yes(s.Optional), Container: c.Name, Path: at + "secretKeyRef"})
			}
		}
	}
	for i := range p.Spec.InitContainers {
		environment(fmt.Sprintf("spec.initContainers[%d].", i), &p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		environment(fmt.Sprintf("spec.containers[%d].", i), &p.Spec.Containers[i])
	}
	for i := range p.Spec.EphemeralContainers {
		c := v1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		environment(fmt.Sprintf("spec.ephemeralContainers[%d].", i), &c)
	}
	for i, s := range p.Spec.ImagePullSecrets {
		if s.Name != "" {
			add(Ref{Kind: KindSecret, Name: s.Name, Optional: true, Path: fmt.Sprintf("spec.imagePullSecrets[%d]", i)})
		}
	}
	return out
}

// ObjectID names a config object of a pod's namespace.
type ObjectID struct{ Kind, Name string }

func (o ObjectID) compare(p ObjectID) int {
	return cmp.Or(strings.Compare(o.Kind, p.Kind), strings.Compare(o.Name, p.Name))
}

// Data is what a pod is bound to: the config objects it names, as they stood when
// it was merged. It is immutable. A nil Data has nothing.
type Data struct {
	objects map[ObjectID]*Object // nil where only sums were kept
	// Sums tells what the objects held without telling it, in order. It is what a
	// record keeps of Data.
	Sums []ObjectSum
}

// ObjectSum tells the content of a config object apart from another.
type ObjectSum struct {
	Kind string            `json:"kind"`
	Name string            `json:"name"`
	Hash string            `json:"hash"` // Object.Hash
	Keys map[string]KeySum `json:"keys,omitempty"`
}

// KeySum is the size of one value and a sum that tells it apart.
type KeySum struct {
	Bytes int    `json:"bytes"`
	Sum   string `json:"sum"`
}

// NewData returns what a pod is bound to by these objects, of which no two have
// one kind and name; nil for none.
func NewData(objects []*Object) *Data {
	if len(objects) == 0 {
		return nil
	}
	d := &Data{objects: make(map[ObjectID]*Object, len(objects))}
	for _, o := range objects {
		d.objects[ObjectID{o.Kind, o.Name}] = o
		sum := ObjectSum{Kind: o.Kind, Name: o.Name, Hash: o.Hash}
		for key, value := range o.Values() {
			if sum.Keys == nil {
				sum.Keys = map[string]KeySum{}
			}
			sum.Keys[key] = KeySum{Bytes: len(value), Sum: digest(value)}
		}
		d.Sums = append(d.Sums, sum)
	}
	slices.SortFunc(d.Sums, func(a, b ObjectSum) int {
		return ObjectID{a.Kind, a.Name}.compare(ObjectID{b.Kind, b.Name})
	})
	return d
}

// Values returns what a ConfigMap or Secret holds by key; of a key that stands
// under data and binaryData, which no valid object has, binaryData's. It is nil for
// a claim.
func (o *Object) Values() map[string][]byte {
	switch obj := o.Object.(type) {
	case *v1.ConfigMap:
		out := make(map[string][]byte, len(obj.Data)+len(obj.BinaryData))
		for k, v := range obj.Data {
			out[k] = []byte(v)
		}
		maps.Copy(out, obj.BinaryData)
		return out
	case *v1.Secret:
		return obj.Data
	}
	return nil
}

// Values returns what the ConfigMap or Secret of that kind and name holds; ok is
// false when the pod is not bound to one.
func (d *Data) Values(kind, name string) (values map[string][]byte, ok bool) {
	if d == nil || d.objects[ObjectID{kind, name}] == nil {
		return nil, false
	}
	return d.objects[ObjectID{kind, name}].Values(), true
}

// Secret returns the Secret called name, nil when the pod is not bound to one.
func (d *Data) Secret(name string) *v1.Secret {
	if d == nil || d.objects[ObjectID{KindSecret, name}] == nil {
		return nil
	}
	s, _ := d.objects[ObjectID{KindSecret, name}].Object.(*v1.Secret)
	return s
}

// Claim returns the claim called name, nil when the pod is not bound to one.
func (d *Data) Claim(name string) *v1.PersistentVolumeClaim {
	if d == nil || d.objects[ObjectID{KindClaim, name}] == nil {
		return nil
	}
	c, _ := d.objects[ObjectID{KindClaim, name}].Object.(*v1.PersistentVolumeClaim)
	return c
}

// Same reports whether two pods are bound to the same content.
func (d *Data) Same(o *Data) bool {
	if d == o {
		return true
	}
	return slices.EqualFunc(d.sums(), o.sums(), func(a, b ObjectSum) bool {
		return a.Kind == b.Kind && a.Name == b.Name && a.Hash == b.Hash
	})
}

func (d *Data) sums() []ObjectSum {
	if d == nil {
		return nil
	}
	return d.Sums
}

// Hash tells the content of the objects named apart from another content.
func (d *Data) Hash(which func(kind, name string) bool) string {
	sum := sha256.New()
	for _, s := range d.sums() {
		if s.Kind != KindClaim && which(s.Kind, s.Name) {
			fmt.Fprintf(sum, "%s %s %s\n", s.Kind, s.Name, s.Hash)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// Bind returns s bound to d. Where the pod asks for it (AnnotationRestartOnChange)
// the hashes of its parts cover what each of them uses.
func (s *Spec) Bind(d *Data) *Spec {
	out := *s
	out.Data = d
	if d == nil || s.Pod.Annotations[AnnotationRestartOnChange] != "true" {
		return &out
	}
	uses := s.uses()
	out.ContainerHashes = maps.Clone(s.ContainerHashes)
	for name, hash := range s.ContainerHashes {
		if used := uses[name]; len(used) > 0 && hash != "" {
			sum := d.Hash(func(kind, object string) bool { return used[ObjectID{kind, object}] })
			out.ContainerHashes[name] = hashVersion + "-" + digest([]byte(hash+" "+sum))
		}
	}
	for i := range s.Pod.Spec.InitContainers {
		c := &s.Pod.Spec.InitContainers[i]
		if !Restartable(c) && out.ContainerHashes[c.Name] != s.ContainerHashes[c.Name] {
			out.SandboxHash = hashVersion + "-" + digest([]byte(out.SandboxHash+" "+out.ContainerHashes[c.Name]))
		}
	}
	return &out
}

// uses returns the config objects that each container uses, by its environment or
// through a volume that it mounts.
func (s *Spec) uses() map[string]map[ObjectID]bool {
	out := map[string]map[ObjectID]bool{}
	note := func(container string, r Ref) {
		if out[container] == nil {
			out[container] = map[ObjectID]bool{}
		}
		out[container][ObjectID{r.Kind, r.Name}] = true
	}
	mounting := map[string][]string{}
	for name := range s.ContainerHashes {
		if c, _ := s.Container(name); c != nil {
			for _, m := range c.VolumeMounts {
				mounting[m.Name] = append(mounting[m.Name], name)
			}
		}
	}
	for _, r := range Refs(s.Pod) {
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
