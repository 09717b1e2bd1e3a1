package ui

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// List is a v1 List, as kubectl prints one.
type List struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []any  `json:"items"`
}

// secret is a Secret in output. Its values are base64 or redacted.
type secret struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Immutable         *bool             `json:"immutable,omitempty"`
	Type              v1.SecretType     `json:"type,omitempty"`
	Data              map[string]string `json:"data,omitempty"`
}

// claim is a claim in output, without status.
type claim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              v1.PersistentVolumeClaimSpec `json:"spec"`
}

// workload is a workload or a Service in output, without status.
type workload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              any `json:"spec"`
}

// podObject is a Pod in output, without status.
type podObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              v1.PodSpec `json:"spec"`
}

// NewList puts a merged set into a List: config objects and workloads, then pods, each sorted
// by key. Secret values are redacted unless showSecrets.
func NewList(m *podconfig.Merged, showSecrets bool) List {
	l := List{APIVersion: "v1", Kind: "List", Items: []any{}}
	for o := range m.Objects.All() {
		l.Items = append(l.Items, shownObject(o, showSecrets))
	}
	for s := range m.Pods.All() {
		p := ForOutput(s.Pod)
		l.Items = append(l.Items, podObject{p.TypeMeta, p.ObjectMeta, p.Spec})
	}
	return l
}

// PodList puts pods with their status into a List.
func PodList(pods []v1.Pod) List {
	l := List{APIVersion: "v1", Kind: "List", Items: []any{}}
	for i := range pods {
		p := pods[i].DeepCopy()
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		l.Items = append(l.Items, p)
	}
	return l
}

// ForOutput returns a copy of a desired pod for output: with its kind, and without the time
// when it was first seen, which differs from run to run.
func ForOutput(p *v1.Pod) *v1.Pod {
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	delete(p.Annotations, pod.AnnotationConfigSeen)
	return p
}

func shownObject(o *pod.Object, showSecrets bool) any {
	switch object := o.Object.(type) {
	case *v1.ConfigMap:
		c := object.DeepCopy()
		c.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
		return c
	case *v1.Secret:
		s := secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: *object.ObjectMeta.DeepCopy(), Immutable: object.Immutable, Type: object.Type, Data: map[string]string{}}
		// "kubectl apply" puts the whole manifest here, with the values.
		delete(s.Annotations, v1.LastAppliedConfigAnnotation)
		all := maps.Clone(object.Data)
		if all == nil {
			all = map[string][]byte{}
		}
		for k, v := range object.StringData {
			all[k] = []byte(v)
		}
		for k, v := range all {
			s.Data[k] = podspec.Redacted(len(v))
			if showSecrets {
				s.Data[k] = base64.StdEncoding.EncodeToString(v)
			}
		}
		return s
	case *v1.PersistentVolumeClaim:
		c := object.DeepCopy()
		return claim{metav1.TypeMeta{APIVersion: "v1", Kind: pod.KindClaim}, c.ObjectMeta, c.Spec}
	case *v1.Service:
		return workload{metav1.TypeMeta{APIVersion: "v1", Kind: pod.KindService}, object.ObjectMeta, object.Spec}
	case *appsv1.Deployment:
		return workload{object.TypeMeta, object.ObjectMeta, object.Spec}
	case *appsv1.ReplicaSet:
		return workload{object.TypeMeta, object.ObjectMeta, object.Spec}
	case *appsv1.StatefulSet:
		return workload{object.TypeMeta, object.ObjectMeta, object.Spec}
	case *appsv1.DaemonSet:
		return workload{object.TypeMeta, object.ObjectMeta, object.Spec}
	case *batchv1.Job:
		return workload{object.TypeMeta, object.ObjectMeta, object.Spec}
	case *batchv1.CronJob:
		return workload{object.TypeMeta, object.ObjectMeta, object.Spec}
	}
	return o.Object
}

// Names returns the set as kind/name, one a line.
func Names(m *podconfig.Merged) string {
	var all []string
	for o := range m.Objects.All() {
		all = append(all, strings.ToLower(o.Kind)+"/"+Clean(o.Name))
	}
	for s := range m.Pods.All() {
		all = append(all, "pod/"+Clean(s.Name))
	}
	return lines(all)
}

// Set returns the merged set as a table; wide adds images and UIDs.
func (v *View) Set(m *podconfig.Merged, wide bool) string {
	header := []string{"NAMESPACE", "NAME", "SOURCE", "FROM"}
	if wide {
		header = append(header, "UID", "IMAGES")
	}
	var rows [][]string
	for o := range m.Objects.All() {
		rows = append(rows, []string{o.Namespace, strings.ToLower(o.Kind) + "/" + o.Name, o.Origin.Source, o.Origin.String(), "", ""}[:len(header)])
	}
	for s := range m.Pods.All() {
		rows = append(rows, []string{s.Namespace, "pod/" + s.Name, s.Origin.Source, s.Origin.String(), s.UID(), images(s.Pod)}[:len(header)])
	}
	return v.Table(header, rows)
}

func images(p *v1.Pod) string {
	var all []string
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		all = append(all, c.Image)
	}
	return strings.Join(all, ",")
}

// Table returns rows under a header, three cells apart, as kubectl formats tables. Without
// rows it returns "".
func (v *View) Table(header []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	all := make([][]cell, 0, len(rows)+1)
	for _, r := range append([][]string{header}, rows...) {
		var row []cell
		for _, text := range r {
			if text == "" {
				text = "-"
			}
			row = append(row, cell{text: Clean(text)})
		}
		all = append(all, row)
	}
	return lines(v.columns("", []int{3}, all))
}

// ListOf puts objects into a List. Their TypeMeta is set.
func ListOf[T any](objects []T) List {
	l := List{APIVersion: "v1", Kind: "List", Items: []any{}}
	for _, o := range objects {
		l.Items = append(l.Items, o)
	}
	return l
}
