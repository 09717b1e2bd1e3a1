package engine

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Saved is a merged set that an earlier merge wrote: pods by the names they
// have on the node, and what can be compared of the config objects.
type Saved struct {
	Pods    []*pod.Spec
	objects map[objectKey]contents
}

type objectKey struct{ kind, namespace, name string }

// contents is what a config object holds, by the path of each value.
type contents map[string]value

// value is one value of a config object. Of a redacted one only its size is
// known; of a secret one nothing else is ever shown.
type value struct {
	data     string
	size     int
	secret   bool
	redacted bool
}

// Redacted returns what stands for a secret value of n bytes wherever one would
// be shown.
func Redacted(n int) string { return fmt.Sprintf("(redacted, %d bytes)", n) }

// ReadSaved decodes a List as merge writes it, YAML or JSON. file is named in
// errors and is the origin of the pods.
func ReadSaved(data []byte, file string) (*Saved, error) {
	var list struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := yaml.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: not a saved set: %w", file, err)
	}
	if list.Kind != "List" && list.Kind != "PodList" {
		return nil, fmt.Errorf("%s: not a saved set: kind is %q, want List (as merge -o yaml writes it)", file, list.Kind)
	}
	saved := &Saved{objects: map[objectKey]contents{}}
	for i, item := range list.Items {
		var meta struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Namespace string `json:"namespace"`
				Name      string `json:"name"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(item, &meta); err != nil {
			return nil, fmt.Errorf("%s: item %d: %w", file, i+1, err)
		}
		if meta.Kind == "" && list.Kind == "PodList" {
			meta.Kind = "Pod"
		}
		var err error
		switch meta.Kind {
		case "Pod":
			p := &v1.Pod{}
			if err = json.Unmarshal(item, p); err == nil {
				saved.Pods = append(saved.Pods, savedPod(p, file))
			}
		case "ConfigMap", "Secret":
			key := objectKey{meta.Kind, meta.Metadata.Namespace, meta.Metadata.Name}
			saved.objects[key], err = savedContents(item, meta.Kind == "Secret")
		default:
			err = fmt.Errorf("kind %q does not belong in a saved set", meta.Kind)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: item %d: %w", file, i+1, err)
		}
	}
	slices.SortFunc(saved.Pods, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
	return saved, nil
}

func savedPod(p *v1.Pod, file string) *pod.Spec {
	return &pod.Spec{
		Key:    pod.KeyOf(p),
		Origin: pod.Origin{Source: p.Annotations[pod.AnnotationConfigSource], File: file},
		Pod:    p,
		Hash:   p.Annotations[pod.AnnotationConfigHash],
	}
}

// savedContents decodes the values of a ConfigMap or Secret. A redacted value
// is no base64, so the API's own type cannot decode it.
func savedContents(item json.RawMessage, secret bool) (contents, error) {
	var o struct {
		Data       map[string]string `json:"data"`
		BinaryData map[string]string `json:"binaryData"`
		StringData map[string]string `json:"stringData"`
	}
	if err := json.Unmarshal(item, &o); err != nil {
		return nil, err
	}
	c := contents{}
	put := func(path, text string, encoded bool) error {
		v := value{secret: secret}
		if n, err := fmt.Sscanf(text, "(redacted, %d bytes)", &v.size); n == 1 && err == nil && text == Redacted(v.size) {
			v.redacted = true
			c[path] = v
			return nil
		}
		if encoded {
			raw, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return fmt.Errorf("%s: not base64", path)
			}
			text = string(raw)
		}
		v.data, v.size = text, len(text)
		c[path] = v
		return nil
	}
	for _, part := range []struct {
		name    string
		values  map[string]string
		encoded bool
	}{{"data", o.Data, secret}, {"binaryData", o.BinaryData, true}, {"data", o.StringData, false}} {
		for _, k := range slices.Sorted(maps.Keys(part.values)) {
			if err := put(part.name+"["+k+"]", part.values[k], part.encoded); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// contentsOf returns the values of an object as a source wrote it.
func contentsOf(o *pod.Object) contents {
	c := contents{}
	switch o := o.Object.(type) {
	case *v1.ConfigMap:
		for k, v := range o.Data {
			c["data["+k+"]"] = value{data: v, size: len(v)}
		}
		for k, v := range o.BinaryData {
			c["binaryData["+k+"]"] = value{data: string(v), size: len(v)}
		}
	case *v1.Secret:
		for k, v := range o.Data {
			c["data["+k+"]"] = value{data: string(v), size: len(v), secret: true}
		}
		for k, v := range o.StringData { // stringData wins over data, as the API has it
			c["data["+k+"]"] = value{data: v, size: len(v), secret: true}
		}
	}
	return c
}

// objectChange is one config object that differs, and how.
type objectChange struct {
	objectKey
	fields []pod.FieldChange
}

// objectChanges compares config objects with the saved ones, in the order of
// kind, namespace and name. Secret values show by their sizes only.
func objectChanges(old map[objectKey]contents, objects []*pod.Object) []objectChange {
	now := map[objectKey]contents{}
	for _, o := range objects {
		now[objectKey{o.Kind, o.Namespace, o.Name}] = contentsOf(o)
	}
	all := maps.Clone(now)
	maps.Copy(all, old)
	var changes []objectChange
	for key := range all {
		c := objectChange{objectKey: key}
		paths := maps.Clone(now[key])
		if paths == nil {
			paths = contents{}
		}
		maps.Copy(paths, old[key])
		for _, path := range slices.Sorted(maps.Keys(paths)) {
			was, had := old[key][path]
			is, has := now[key][path]
			if had && has && same(was, is) {
				continue
			}
			f := pod.FieldChange{Path: fmt.Sprintf("%s/%s.%s", strings.ToLower(key.kind), key.name, path)}
			f.Old, f.New = shown(was, had, is, has)
			c.fields = append(c.fields, f)
		}
		if len(c.fields) > 0 {
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(a, b objectChange) int {
		if a.kind != b.kind {
			return strings.Compare(a.kind, b.kind)
		}
		return pod.Key{Namespace: a.namespace, Name: a.name}.Compare(pod.Key{Namespace: b.namespace, Name: b.name})
	})
	return changes
}

func same(a, b value) bool {
	if a.redacted || b.redacted {
		return a.size == b.size
	}
	return a.data == b.data
}

func shown(was value, had bool, is value, has bool) (old, new string) {
	text := func(v value, known bool) string {
		switch {
		case !known:
			return ""
		case v.secret:
			return Redacted(v.size)
		}
		return v.data
	}
	return text(was, had), text(is, has)
}

// usedBy reports whether a pod reads the object: in its environment, through a
// volume, or to pull images.
func (o objectChange) usedBy(p *v1.Pod) bool {
	if p.Namespace != o.namespace {
		return false
	}
	return slices.Contains(references(p, o.kind), o.name)
}

// references returns the names of every ConfigMap or Secret a pod reads.
func references(p *v1.Pod, kind string) []string {
	r := refs{secret: kind == "Secret"}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		r.container(c)
	}
	for _, v := range p.Spec.Volumes {
		r.volume(v)
	}
	for _, s := range p.Spec.ImagePullSecrets {
		r.add(true, s.Name)
	}
	return r.names
}

// refs collects names of Secrets, or else of ConfigMaps.
type refs struct {
	secret bool
	names  []string
}

func (r *refs) add(secret bool, name string) {
	if secret == r.secret {
		r.names = append(r.names, name)
	}
}

func (r *refs) container(c v1.Container) {
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if ref := e.ValueFrom.SecretKeyRef; ref != nil {
			r.add(true, ref.Name)
		}
		if ref := e.ValueFrom.ConfigMapKeyRef; ref != nil {
			r.add(false, ref.Name)
		}
	}
	for _, e := range c.EnvFrom {
		if e.SecretRef != nil {
			r.add(true, e.SecretRef.Name)
		}
		if e.ConfigMapRef != nil {
			r.add(false, e.ConfigMapRef.Name)
		}
	}
}

func (r *refs) volume(v v1.Volume) {
	if v.Secret != nil {
		r.add(true, v.Secret.SecretName)
	}
	if v.ConfigMap != nil {
		r.add(false, v.ConfigMap.Name)
	}
	if v.Projected == nil {
		return
	}
	for _, s := range v.Projected.Sources {
		if s.Secret != nil {
			r.add(true, s.Secret.Name)
		}
		if s.ConfigMap != nil {
			r.add(false, s.ConfigMap.Name)
		}
	}
}
