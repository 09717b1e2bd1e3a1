package apiserver

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// object is one thing that a server keeps.
type object interface {
	metav1.Object
	runtime.Object
	Unmarshal(data []byte) error
}

// list is several of a kind, one page of them.
type list interface {
	metav1.ListInterface
	Unmarshal(data []byte) error
}

// kind says how objects of one kind are read.
type kind struct {
	name  string
	empty func() object
	list  func() (into list, objects func() []object)
}

func podKind() kind {
	return kind{"Pod", func() object { return &v1.Pod{} }, func() (list, func() []object) {
		l := &v1.PodList{}
		return l, func() []object { return pointers(l.Items) }
	}}
}

func configMapKind() kind {
	return kind{"ConfigMap", func() object { return &v1.ConfigMap{} }, func() (list, func() []object) {
		l := &v1.ConfigMapList{}
		return l, func() []object { return pointers(l.Items) }
	}}
}

func secretKind() kind {
	return kind{"Secret", func() object { return &v1.Secret{} }, func() (list, func() []object) {
		l := &v1.SecretList{}
		return l, func() []object { return pointers(l.Items) }
	}}
}

func serviceKind() kind {
	return kind{"Service", func() object { return &v1.Service{} }, func() (list, func() []object) {
		l := &v1.ServiceList{}
		return l, func() []object { return pointers(l.Items) }
	}}
}

// pointers returns the items of a list one by one.
func pointers[T any, P interface {
	*T
	object
}](items []T) []object {
	out := make([]object, len(items))
	for i := range items {
		out[i] = P(&items[i])
	}
	return out
}
