package client

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// PodPrefixes are the prefixes of a pod's name, as in pod/web.
func PodPrefixes() []string { return []string{"pod", "pods", "po"} }

// Name is the name of a pod as a user writes it: web, web-n1, pod/web, default/web.
type Name struct{ Namespace, Name string }

// ParseName reads the name of a pod. namespace is that of -n.
func ParseName(text, namespace string) (Name, error) {
	before, name, slash := strings.Cut(text, "/")
	switch {
	case !slash:
		return Name{namespace, text}, nil
	case slices.Contains(PodPrefixes(), before):
		return Name{namespace, name}, nil
	case namespace != "" && namespace != before:
		return Name{}, errors.New(text + " is not in the namespace of -n " + namespace)
	}
	return Name{before, name}, nil
}

// Find returns the pods with exactly this name, else those whose name is this plus the
// node's suffix.
func (c Name) Find(all []v1.Pod) []*v1.Pod {
	var exact, suffixed []*v1.Pod
	for i := range all {
		it := &all[i]
		switch {
		case c.Namespace != "" && it.Namespace != c.Namespace:
		case it.Name == c.Name:
			exact = append(exact, it)
		case it.Spec.NodeName != "" && it.Name == c.Name+"-"+strings.ToLower(it.Spec.NodeName):
			suffixed = append(suffixed, it)
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return suffixed
}

// PodSelector selects pods.
type PodSelector struct {
	Given  []string // the names as the user wrote them
	names  []Name
	space  string
	labels labels.Selector
	fields fields.Selector
}

// NewPodSelector returns the PodSelector of a namespace ("" for all), selectors, and names.
func NewPodSelector(namespace, selector, fieldSelector string, names []string) (k PodSelector, err error) {
	k.space, k.Given = namespace, names
	if k.labels, err = labels.Parse(selector); err != nil {
		return k, errors.New("--selector: " + err.Error())
	}
	if k.fields, err = fields.ParseSelector(fieldSelector); err != nil {
		return k, errors.New("--field-selector: " + err.Error())
	}
	known := podFields(&v1.Pod{})
	for _, r := range k.fields.Requirements() {
		if _, ok := known[r.Field]; !ok {
			return k, errors.New("--field-selector: " + r.Field + ` is not one of metadata.name, metadata.namespace, spec.nodeName, spec.restartPolicy, spec.schedulerName, spec.serviceAccountName, status.phase, status.podIP`)
		}
	}
	if len(names) > 0 && (selector != "" || fieldSelector != "") {
		return k, errors.New("either names or a selector")
	}
	for _, n := range names {
		want, err := ParseName(n, namespace)
		if err != nil {
			return k, err
		}
		k.names = append(k.names, want)
	}
	return k, nil
}

// podFields returns the fields by which an API server selects pods.
func podFields(p *v1.Pod) fields.Set {
	return fields.Set{
		"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName, "spec.restartPolicy": string(p.Spec.RestartPolicy),
		"spec.schedulerName": p.Spec.SchedulerName, "spec.serviceAccountName": p.Spec.ServiceAccountName, "status.phase": string(p.Status.Phase), "status.podIP": p.Status.PodIP,
	}
}

// Matches reports whether k selects a pod, and by which of the names.
func (k PodSelector) Matches(p *v1.Pod) (ok bool, name int) {
	if k.space != "" && p.Namespace != k.space || !k.labels.Matches(labels.Set(p.Labels)) || !k.fields.Matches(podFields(p)) {
		return false, 0
	}
	for i, want := range k.names {
		if (want.Namespace == "" || want.Namespace == p.Namespace) && (p.Name == want.Name || p.Name == want.Name+"-"+strings.ToLower(p.Spec.NodeName)) {
			return true, i
		}
	}
	return len(k.names) == 0, 0
}

// Select returns the selected pods, and the names without a pod.
func (k PodSelector) Select(all []v1.Pod) (pods []v1.Pod, missing []string) {
	found := make([]bool, len(k.names))
	for i := range all {
		ok, name := k.Matches(&all[i])
		if !ok {
			continue
		}
		pods = append(pods, all[i])
		if len(found) > 0 {
			found[name] = true
		}
	}
	for i, name := range k.Given {
		if !found[i] {
			missing = append(missing, name)
		}
	}
	return pods, missing
}

// PodStates has the state of the pods that a reader has seen, by UID.
type PodStates map[string]string

func NewPodStates(pods []v1.Pod) PodStates {
	k := PodStates{}
	for i := range pods {
		k.IsNew(WatchEvent[*v1.Pod]{Type: "ADDED", Object: &pods[i]})
	}
	return k
}

// IsNew reports whether a change is new to the reader: a watch begins with the existing
// pods.
func (k PodStates) IsNew(c WatchEvent[*v1.Pod]) bool {
	uid := string(c.Object.UID)
	c.Object.TypeMeta = metav1.TypeMeta{}
	text, err := json.Marshal(c.Object)
	if c.Type == "DELETED" {
		delete(k, uid)
		return true
	}
	if err == nil && k[uid] == string(text) {
		return false
	}
	k[uid] = string(text)
	return true
}
