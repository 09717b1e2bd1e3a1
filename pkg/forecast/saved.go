package forecast

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// SavedSet is a merged set that an earlier merge wrote: pods by their names on the node, those of
// workloads included, and the comparable part of the config objects.
type SavedSet struct {
	Pods    []*pod.Spec
	objects map[objectKey]savedObject
}

type objectKey struct{ kind, namespace, name string }

// savedObject is a config object. One that was saved with redacted values has its sum only.
type savedObject struct {
	object *pod.Object
	sum    pod.ObjectSum
}

// ReadSavedSet decodes a List as merge writes it, YAML or JSON. file is named in
// errors and is the origin of the pods.
func ReadSavedSet(data []byte, file string) (*SavedSet, error) {
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
	saved := &SavedSet{objects: map[objectKey]savedObject{}}
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
		case pod.KindConfigMap, pod.KindSecret, pod.KindClaim:
			key := objectKey{meta.Kind, meta.Metadata.Namespace, meta.Metadata.Name}
			saved.objects[key], err = savedContents(item, key)
		default:
			if !pod.IsWorkload(meta.Kind) && meta.Kind != pod.KindService { // no step of a forecast is about these; the pods of a workload are in the set
				err = fmt.Errorf("kind %q is not allowed in a saved set", meta.Kind)
			}
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
		Origin: pod.Origin{Source: pod.SourceOf(p), File: file},
		Pod:    p,
		Hash:   p.Annotations[pod.AnnotationConfigHash],
	}
}

// savedContents decodes a config object. A redacted value is no base64, so the
// API's own type cannot decode it.
func savedContents(item json.RawMessage, key objectKey) (savedObject, error) {
	o := &pod.Object{Key: pod.Key{Namespace: key.namespace, Name: key.name}, Kind: key.kind}
	switch key.kind {
	case pod.KindConfigMap:
		o.Object = &v1.ConfigMap{}
	case pod.KindClaim:
		o.Object = &v1.PersistentVolumeClaim{}
	default:
		return savedSecret(item, o)
	}
	if err := json.Unmarshal(item, o.Object); err != nil {
		return savedObject{}, err
	}
	return savedObject{object: o, sum: podspec.SumOf(o)}, nil
}

func savedSecret(item json.RawMessage, o *pod.Object) (savedObject, error) {
	var in struct {
		Type       v1.SecretType     `json:"type"`
		Data       map[string]string `json:"data"`
		StringData map[string]string `json:"stringData"`
	}
	if err := json.Unmarshal(item, &in); err != nil {
		return savedObject{}, errors.New("not a Secret") // the error may quote a value
	}
	s := &v1.Secret{Type: in.Type, Data: map[string][]byte{}}
	redacted := map[string]int{}
	for k, text := range in.Data {
		var n int
		if found, err := fmt.Sscanf(text, "(redacted, %d bytes)", &n); found == 1 && err == nil && text == podspec.Redacted(n) {
			redacted[k] = n
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return savedObject{}, fmt.Errorf("data[%s]: not base64", k)
		}
		s.Data[k] = raw
	}
	for k, text := range in.StringData { // stringData wins over data, as in the API
		s.Data[k] = []byte(text)
		delete(redacted, k)
	}
	o.Object = s
	sum := podspec.SumOf(o)
	if len(redacted) == 0 {
		return savedObject{object: o, sum: sum}, nil
	}
	sum.Hash = ""
	if sum.Keys == nil {
		sum.Keys = map[string]pod.KeySum{}
	}
	for k, n := range redacted {
		sum.Keys[k] = pod.KeySum{Bytes: n}
	}
	return savedObject{sum: sum}, nil
}

// bound returns a saved pod bound to the saved objects it names. A set holds one object of a
// name, of any source. If now is bound to another source's object, the set does not have its
// old content, and it counts as unchanged.
func (s *SavedSet) bound(was, now *pod.Spec, state *podconfig.Merged) *pod.Spec {
	var objects []*pod.Object
	var sums []pod.ObjectSum
	done := map[objectKey]bool{}
	for _, r := range pod.Refs(was.Pod) {
		key := objectKey{r.Kind, was.Namespace, r.Name}
		if done[key] {
			continue
		}
		done[key] = true
		o, saved := s.objects[key]
		if is := now.Data.Object(r.Kind, r.Name); is != nil && is != state.Object(r.Kind, is.Key) {
			o, saved = savedObject{object: is}, true
		}
		switch {
		case !saved:
		case o.object != nil:
			objects = append(objects, o.object)
		default:
			sums = append(sums, o.sum)
		}
	}
	out := *was
	out.Data = podspec.NewSavedData(objects, sums)
	return &out
}
