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

// KindService is the kind of Services. No pod names one.
const KindService = "Service"

// AnnotationRestartOnChange, "true" on a pod: a change of a ConfigMap or Secret that a
// container uses, by its environment or its mounts, restarts that container as an edit
// of its definition does; for an init container, the pod. Adding the annotation
// restarts, once, all containers that use any.
const AnnotationRestartOnChange = "nodectl.dev/restart-on-change"

// Ref is one place in a pod that names a config object of its namespace.
type Ref struct {
	Kind, Name string
	// Key is the key that the place names, "" for the whole object.
	Key string
	// Optional says that the pod runs without it.
	Optional bool
	// Container is the container of an environment, Volume the volume; both are empty
	// for a pull secret.
	Container, Volume string
	// Path is the field, as "spec.containers[0].env[1].valueFrom.secretKeyRef".
	Path string
}

// MaxObjects is how many config objects a pod of an API server may name. Each needs its
// own list and watch; ordinary pods name far fewer.
const MaxObjects = 1000

// Refs returns every place in p that names a ConfigMap, a Secret or a claim, in
// the order of the API's fields. Pull secrets are optional (C-1.39.5).
func Refs(p *v1.Pod) []Ref {
	var out []Ref
	for i := range p.Spec.Volumes {
		out = appendVolumeRefs(out, fmt.Sprintf("spec.volumes[%d].", i), &p.Spec.Volumes[i])
	}
	for i := range p.Spec.InitContainers {
		out = appendEnvironmentRefs(out, fmt.Sprintf("spec.initContainers[%d].", i), &p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		out = appendEnvironmentRefs(out, fmt.Sprintf("spec.containers[%d].", i), &p.Spec.Containers[i])
	}
	for i := range p.Spec.EphemeralContainers {
		c := v1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		out = appendEnvironmentRefs(out, fmt.Sprintf("spec.ephemeralContainers[%d].", i), &c)
	}
	for i, s := range p.Spec.ImagePullSecrets {
		if s.Name != "" {
			out = append(out, Ref{Kind: KindSecret, Name: s.Name, Optional: true, Path: fmt.Sprintf("spec.imagePullSecrets[%d]", i)})
		}
	}
	return out
}

// appendVolumeRefs appends the places in a volume, whose field is at.
func appendVolumeRefs(out []Ref, at string, v *v1.Volume) []Ref {
	items := func(r Ref, optional *bool, list []v1.KeyToPath) {
		r.Volume, r.Optional = v.Name, isTrue(optional)
		out = append(out, r)
		for i, item := range list {
			key := r
			key.Key, key.Path = item.Key, fmt.Sprintf("%s.items[%d].key", r.Path, i)
			out = append(out, key)
		}
	}
	switch {
	case v.ConfigMap != nil:
		items(Ref{Kind: KindConfigMap, Name: v.ConfigMap.Name, Path: at + "configMap"}, v.ConfigMap.Optional, v.ConfigMap.Items)
	case v.Secret != nil:
		items(Ref{Kind: KindSecret, Name: v.Secret.SecretName, Path: at + "secret"}, v.Secret.Optional, v.Secret.Items)
	case v.PersistentVolumeClaim != nil:
		items(Ref{Kind: KindClaim, Name: v.PersistentVolumeClaim.ClaimName, Path: at + "persistentVolumeClaim"}, nil, nil)
	case v.Projected != nil:
		for j := range v.Projected.Sources {
			s := &v.Projected.Sources[j]
			at := fmt.Sprintf("%sprojected.sources[%d].", at, j)
			if s.ConfigMap != nil {
				items(Ref{Kind: KindConfigMap, Name: s.ConfigMap.Name, Path: at + "configMap"}, s.ConfigMap.Optional, s.ConfigMap.Items)
			}
			if s.Secret != nil {
				items(Ref{Kind: KindSecret, Name: s.Secret.Name, Path: at + "secret"}, s.Secret.Optional, s.Secret.Items)
			}
		}
	}
	return out
}

// appendEnvironmentRefs appends the places in a container's environment; at is its field.
func appendEnvironmentRefs(out []Ref, at string, c *v1.Container) []Ref {
	add := func(r Ref, optional *bool) {
		r.Container, r.Optional = c.Name, isTrue(optional)
		out = append(out, r)
	}
	for i := range c.EnvFrom {
		at := fmt.Sprintf("%senvFrom[%d].", at, i)
		if m := c.EnvFrom[i].ConfigMapRef; m != nil {
			add(Ref{Kind: KindConfigMap, Name: m.Name, Path: at + "configMapRef"}, m.Optional)
		}
		if s := c.EnvFrom[i].SecretRef; s != nil {
			add(Ref{Kind: KindSecret, Name: s.Name, Path: at + "secretRef"}, s.Optional)
		}
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		at := fmt.Sprintf("%senv[%d].valueFrom.", at, i)
		if m := from.ConfigMapKeyRef; m != nil {
			add(Ref{Kind: KindConfigMap, Name: m.Name, Key: m.Key, Path: at + "configMapKeyRef"}, m.Optional)
		}
		if s := from.SecretKeyRef; s != nil {
			add(Ref{Kind: KindSecret, Name: s.Name, Key: s.Key, Path: at + "secretKeyRef"}, s.Optional)
		}
	}
	return out
}

func isTrue(b *bool) bool { return b != nil && *b }

// ObjectID names a config object of a pod's namespace.
type ObjectID struct{ Kind, Name string }

// Compare orders names by kind, then name, in byte order.
func (o ObjectID) Compare(p ObjectID) int {
	return cmp.Or(strings.Compare(o.Kind, p.Kind), strings.Compare(o.Name, p.Name))
}

// CheckRead returns an error if the source could not read whether the object is there.
func (s *Spec) CheckRead(kind, name string) error {
	if slices.Contains(s.Unread, ObjectID{kind, name}) {
		return fmt.Errorf("%s %q could not be read yet", strings.ToLower(kind), name)
	}
	return nil
}

// String returns "configmap/web".
func (o ObjectID) String() string { return strings.ToLower(o.Kind) + "/" + o.Name }

// Data is the config objects that a pod is bound to: those it names, as they were when
// it was merged. It is immutable. A nil Data has none.
type Data struct {
	objects map[ObjectID]*Object // nil where only sums were kept
	// Sums are checksums of the objects' contents, in order. A record keeps only these
	// of Data.
	Sums []ObjectSum
	// Unbound holds the hashes that the spec had before it was bound, by container
	// name, "" for the sandbox; nil where binding changed none.
	Unbound map[string]string
}

// DataWithSums returns the Data of these objects and sums: one sum for each object, and
// those of objects whose contents are not known. It is nil for no sums.
func DataWithSums(objects []*Object, sums []ObjectSum) *Data {
	if len(sums) == 0 {
		return nil
	}
	d := &Data{objects: make(map[ObjectID]*Object, len(objects)), Sums: sums}
	for _, o := range objects {
		d.objects[ObjectID{o.Kind, o.Name}] = o
	}
	slices.SortFunc(d.Sums, func(a, b ObjectSum) int { return a.ID().Compare(b.ID()) })
	return d
}

// Values returns the values of a ConfigMap or Secret by key; binaryData wins over data,
// though no valid object has a key in both. It is nil for a claim.
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

// Has reports whether a ConfigMap or Secret holds key.
func (o *Object) Has(key string) bool {
	has := false
	switch obj := o.Object.(type) {
	case *v1.ConfigMap:
		if _, has = obj.Data[key]; !has {
			_, has = obj.BinaryData[key]
		}
	case *v1.Secret:
		_, has = obj.Data[key]
	}
	return has
}

// Immutable reports whether a ConfigMap or Secret says that its data never change.
func (o *Object) Immutable() bool {
	switch obj := o.Object.(type) {
	case *v1.ConfigMap:
		return obj.Immutable != nil && *obj.Immutable
	case *v1.Secret:
		return obj.Immutable != nil && *obj.Immutable
	}
	return false
}

// Object returns the object of that kind and name, nil when the pod is not bound to
// one, or its contents were not kept.
func (d *Data) Object(kind, name string) *Object {
	if d == nil {
		return nil
	}
	return d.objects[ObjectID{kind, name}]
}

// Has reports whether the pod is bound to the object of that kind and name, even if only its
// sum is known.
func (d *Data) Has(kind, name string) bool {
	_, has := d.Sum(ObjectID{kind, name})
	return has
}

// HasContents reports whether the contents are known, and not their sums alone.
func (d *Data) HasContents() bool { return d == nil || len(d.objects) == len(d.Sums) }

// Values returns the content of the ConfigMap or Secret of that kind and name; ok is false if the
// pod is not bound to one.
func (d *Data) Values(kind, name string) (values map[string][]byte, ok bool) {
	o := d.Object(kind, name)
	if o == nil {
		return nil, false
	}
	return o.Values(), true
}

// Secret returns the Secret called name, nil when the pod is not bound to one.
func (d *Data) Secret(name string) *v1.Secret {
	if o := d.Object(KindSecret, name); o != nil {
		s, _ := o.Object.(*v1.Secret)
		return s
	}
	return nil
}

// Claim returns the claim called name, nil when the pod is not bound to one.
func (d *Data) Claim(name string) *v1.PersistentVolumeClaim {
	if o := d.Object(KindClaim, name); o != nil {
		c, _ := o.Object.(*v1.PersistentVolumeClaim)
		return c
	}
	return nil
}

// Hash returns a hash of the content of the ConfigMaps and Secrets for which which is
// true, and how many there are.
func (d *Data) Hash(which func(ObjectID) bool) (hash string, count int) {
	sum := sha256.New()
	for _, s := range d.sums() {
		if s.Kind != KindClaim && which(s.ID()) {
			fmt.Fprintf(sum, "%s %s %s\n", s.Kind, s.Name, s.Hash)
			count++
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]), count
}
