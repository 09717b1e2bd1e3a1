package manifest

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

func typeOf(pointer any) reflect.Type { return reflect.TypeOf(pointer).Elem() }

// configMap reads a ConfigMap.
func (r *reader) configMap(o object) {
	var m v1.ConfigMap
	problems, ok := r.decode(o, &m, false)
	if ok {
		tidy(&m.ObjectMeta)
		m.Kind, m.APIVersion = "ConfigMap", "v1"
		corev1.SetObjectDefaults_ConfigMap(&m)
		var in core.ConfigMap
		if err := corev1.Convert_v1_ConfigMap_To_core_ConfigMap(&m, &in, nil); err != nil {
			problems = append(problems, o.problem("", "not a ConfigMap", ""))
		} else {
			for _, p := range fieldProblems(validation.ValidateConfigMap(&in), false) {
				problems = append(problems, o.problem(p.Path, p.Msg, p.Hint))
			}
		}
	}
	content := map[string]any{"labels": m.Labels, "data": m.Data, "binaryData": m.BinaryData}
	r.config(o, &m, m.ObjectMeta, problems, withImmutable(content, m.Immutable))
}

// secret reads a Secret. It moves stringData to data, as an API server does. Problems contain no value
// of the Secret.
func (r *reader) secret(o object) {
	var s v1.Secret
	problems, ok := r.decode(o, &s, true)
	if ok {
		tidy(&s.ObjectMeta)
		s.Kind, s.APIVersion = "Secret", "v1"
		if s.Data == nil && len(s.StringData) > 0 {
			s.Data = map[string][]byte{}
		}
		for k, v := range s.StringData {
			s.Data[k] = []byte(v)
		}
		s.StringData = nil
		corev1.SetObjectDefaults_Secret(&s)
		var in core.Secret
		if err := corev1.Convert_v1_Secret_To_core_Secret(&s, &in, nil); err != nil {
			problems = append(problems, o.problem("", "not a Secret", ""))
		} else {
			for _, p := range fieldProblems(validation.ValidateSecret(&in), true) {
				if key, is := strings.CutPrefix(p.Path, "data"); is && !o.at.written(p.Path) && o.at.written("stringData") {
					p.Path = "stringData" + key // the field that the author wrote
				}
				problems = append(problems, o.problem(p.Path, p.Msg, p.Hint))
			}
		}
	}
	content := map[string]any{"labels": s.Labels, "type": s.Type, "data": s.Data}
	r.config(o, &s, s.ObjectMeta, problems, withImmutable(content, s.Immutable))
}

// withImmutable returns content, with a mark if the object is immutable.
func withImmutable(content map[string]any, immutable *bool) map[string]any {
	if immutable != nil && *immutable {
		content["immutable"] = true
	}
	return content
}

// claim reads a PersistentVolumeClaim. On this node a claim is a directory. claim rejects fields that a
// directory cannot satisfy, and ignores the storage class and the status.
func (r *reader) claim(o object) {
	var c v1.PersistentVolumeClaim
	problems, ok := r.decode(o, &c, false)
	if ok {
		tidy(&c.ObjectMeta)
		c.Kind, c.APIVersion = "PersistentVolumeClaim", "v1"
		problems = append(problems, notADirectory(o, &c.Spec)...)
		found := paths{}
		for _, p := range problems {
			found[p.Path] = true
		}
		c.Status = v1.PersistentVolumeClaimStatus{}
		for _, p := range claimProblems(&c) {
			if !found.covers(o.path + p.Path) {
				problems = append(problems, o.problem(p.Path, p.Msg, p.Hint))
			}
		}
	}
	r.config(o, &c, c.ObjectMeta, problems, map[string]any{"labels": c.Labels, "spec": c.Spec})
}

// claimProblems defaults a claim and returns the problems that the API's validation of new claims finds,
// without their places.
func claimProblems(c *v1.PersistentVolumeClaim) []pod.Problem {
	corev1.SetObjectDefaults_PersistentVolumeClaim(c)
	var in core.PersistentVolumeClaim
	if err := corev1.Convert_v1_PersistentVolumeClaim_To_core_PersistentVolumeClaim(c, &in, nil); err != nil {
		return []pod.Problem{{Msg: "not a PersistentVolumeClaim"}}
	}
	out := fieldProblems(validation.ValidatePersistentVolumeClaim(&in, validation.ValidationOptionsForPersistentVolumeClaimCreate()), false)
	for i := range out {
		out[i].Path = strings.Replace(out[i].Path, "spec.resources[", "spec.resources.requests[", 1)
	}
	return out
}

// notADirectory returns a problem for each field of a claim that no directory can
// satisfy.
func notADirectory(o object, spec *v1.PersistentVolumeClaimSpec) []pod.Problem {
	asks := map[string]bool{
		"spec.dataSource":                spec.DataSource != nil,
		"spec.dataSourceRef":             spec.DataSourceRef != nil,
		"spec.selector":                  spec.Selector != nil,
		"spec.volumeAttributesClassName": spec.VolumeAttributesClassName != nil && *spec.VolumeAttributesClassName != "",
		"spec.volumeMode":                spec.VolumeMode != nil && *spec.VolumeMode == v1.PersistentVolumeBlock,
		"spec.volumeName":                spec.VolumeName != "",
	}
	var out []pod.Problem
	for _, path := range slices.Sorted(maps.Keys(asks)) {
		if asks[path] {
			out = append(out, o.problem(path, "a claim is a directory on this node; this field asks for another kind of volume", "remove the field"))
		}
	}
	return out
}

// config adds a config object to the result or, if there are any, its problems.
func (r *reader) config(o object, obj any, meta metav1.ObjectMeta, problems []pod.Problem, content any) {
	if len(problems) > 0 {
		for _, p := range o.atMost(problems) {
			r.problem(p)
		}
		return
	}
	key := pod.Key{Namespace: meta.Namespace, Name: meta.Name}
	if r.isDuplicate(o, key) {
		return
	}
	r.out.Objects = append(r.out.Objects, &pod.Object{Key: key, Kind: o.kind, Origin: r.origin(o), Hash: podspec.HashObject(content), Object: obj})
}

// tidy defaults the namespace, and removes the fields that only an API server sets.
func tidy(m *metav1.ObjectMeta) {
	if m.Namespace == "" {
		m.Namespace = "default"
	}
	m.SelfLink = "" //nolint:staticcheck // an old object may still have it
	m.ResourceVersion, m.Generation, m.ManagedFields = "", 0, nil
	m.CreationTimestamp = metav1.Time{}
}
