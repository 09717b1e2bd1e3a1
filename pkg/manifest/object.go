package manifest

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/nodectl/nodectl/pkg/pod"
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
	r.config(o, &m, m.ObjectMeta, problems, map[string]any{"labels": m.Labels, "data": m.Data, "binaryData": m.BinaryData})
}

// secret reads a Secret. Its stringData goes into data, as an API server does
// it. No value of it appears in a problem.
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
				problems = append(problems, o.problem(p.Path, p.Msg, p.Hint))
			}
		}
	}
	r.config(o, &s, s.ObjectMeta, problems, map[string]any{"labels": s.Labels, "type": s.Type, "data": s.Data})
}

// config records a ConfigMap or Secret, or its problems.
func (r *reader) config(o object, obj any, meta metav1.ObjectMeta, problems []pod.Problem, content any) {
	if len(problems) > 0 {
		for _, p := range atMost(problems) {
			r.problem(p)
		}
		return
	}
	key := pod.Key{Namespace: meta.Namespace, Name: meta.Name}
	if r.again(o, key) {
		return
	}
	r.out.Objects = append(r.out.Objects, &pod.Object{Key: key, Kind: o.kind, Origin: r.origin(o), Hash: pod.HashObject(content), Object: obj})
}

// tidy defaults the namespace and takes away an API server's own notes.
func tidy(m *metav1.ObjectMeta) {
	if m.Namespace == "" {
		m.Namespace = "default"
	}
	m.SelfLink = "" //nolint:staticcheck // an old object may still carry it
	m.ResourceVersion, m.Generation, m.ManagedFields = "", 0, nil
	m.CreationTimestamp = metav1.Time{}
}
