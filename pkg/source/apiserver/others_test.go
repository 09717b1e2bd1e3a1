package apiserver

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
)

// objectList is a page of objects.
type objectList interface {
	metav1.ListInterface
	GetObjectKind() schema.ObjectKind
	Marshal() ([]byte, error)
}

// kind is a kind of objects that the server holds beside pods.
type kind struct {
	name string
	list func() objectList
}

// kinds are those of the server beside pods, by plural.
func kinds() map[string]kind {
	return map[string]kind{
		"configmaps": {"ConfigMap", func() objectList { return &v1.ConfigMapList{} }},
		"secrets":    {"Secret", func() objectList { return &v1.SecretList{} }},
		"services":   {"Service", func() objectList { return &v1.ServiceList{} }},
	}
}

// keeps makes or changes an object beside pods; held under change.
func (s *server) keeps(what string, o apiclient.Object) {
	s.rv++
	key := pod.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
	kind := watch.Modified
	if s.others[what][key] == nil {
		kind = watch.Added
	}
	if s.others[what] == nil {
		s.others[what] = map[pod.Key]apiclient.Object{}
	}
	o = o.DeepCopyObject().(apiclient.Object)
	o.SetResourceVersion(strconv.Itoa(s.rv))
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
	s.others[what][key] = o
	s.log = append(s.log, logged{rv: s.rv, kind: kind, what: what, other: o})
}

// loses deletes an object beside pods; held under change.
func (s *server) loses(what, name string) {
	s.rv++
	key := pod.Key{Namespace: "default", Name: name}
	o := s.others[what][key].DeepCopyObject().(apiclient.Object)
	o.SetResourceVersion(strconv.Itoa(s.rv))
	delete(s.others[what], key)
	s.log = append(s.log, logged{rv: s.rv, kind: watch.Deleted, what: what, other: o})
}

func (s *server) keep(what string, objects ...apiclient.Object) {
	s.change(func() {
		for _, o := range objects {
			s.keeps(what, o)
		}
	})
}

func (s *server) lose(what, name string) { s.change(func() { s.loses(what, name) }) }

func (s *server) knows(r *http.Request) bool {
	_, other := kinds()[plural(r)]
	return r.URL.Path == "/api/v1/pods" || r.URL.Path == "/api/v1/services" || other && strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/")
}

// selected reports whether r asks for o, as a node may: one object by name, or all
// services.
func selected(o apiclient.Object, r *http.Request) bool {
	return plural(r) == "services" || r.URL.Query().Get("fieldSelector") == "metadata.name="+o.GetName() &&
		strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/"+o.GetNamespace()+"/")
}

// fits reports whether a watch receives l.
func (s *server) fits(l logged, r *http.Request) bool {
	switch {
	case l.what != "":
		return l.what == plural(r) && selected(l.other, r)
	case plural(r) != "pods":
		return false
	}
	return l.pod == nil || s.mine(l.pod, r) || l.kind == watch.Bookmark
}

func (s *server) listOthers(w http.ResponseWriter, r *http.Request) {
	what := plural(r)
	k := kinds()[what]
	l := k.list()
	s.mu.Lock()
	l.SetResourceVersion(strconv.Itoa(s.rv))
	items := reflect.ValueOf(l).Elem().FieldByName("Items")
	for _, o := range s.others[what] {
		if selected(o, r) {
			items.Set(reflect.Append(items, reflect.ValueOf(o).Elem()))
		}
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", s.mediaType(""))
	if s.json {
		l.GetObjectKind().SetGroupVersionKind(v1.SchemeGroupVersion.WithKind(k.name + "List"))
		_, _ = w.Write(must(json.Marshal(l)))
		return
	}
	_, _ = w.Write(wrap(k.name+"List", must(l.Marshal())))
}

type marshaler interface{ Marshal() ([]byte, error) }

func (s *server) encodeOther(what string, o apiclient.Object) []byte {
	k := kinds()[what]
	if s.json {
		o = o.DeepCopyObject().(apiclient.Object)
		o.GetObjectKind().SetGroupVersionKind(v1.SchemeGroupVersion.WithKind(k.name))
		return must(json.Marshal(o))
	}
	return wrap(k.name, must(o.(marshaler).Marshal()))
}
