package engine

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// lacking is a pod whose ConfigMap is missing, with the steps once it exists.
type lacking struct {
	place
	says string
}

// conf is the name of a pod's own ConfigMap.
func conf(name string) string { return "conf-" + name }

// names has a pod's first container, or its init container, read its own ConfigMap.
func names(init, optional bool) func(*v1.Pod) {
	return func(p *v1.Pod) {
		c := &p.Spec.Containers[0]
		if init {
			initContainer("exit-0-after-1s")(p)
			c = &p.Spec.InitContainers[len(p.Spec.InitContainers)-1]
		}
		c.EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: conf(p.Name)}, Optional: &optional}}}
	}
}

func restartOnChange(p *v1.Pod) {
	p.Annotations = map[string]string{pod.AnnotationRestartOnChange: "true"}
}

// namesConf returns how a pod names its ConfigMap: by the name of the container, ""
// when it does not.
func namesConf(p place) (container string, optional bool) {
	for _, r := range pod.Refs(p.spec.Pod) {
		if r.Name == conf(p.spec.Name) {
			return r.Container, r.Optional
		}
	}
	return "", false
}

// restartsByData returns the containers that a changed ConfigMap restarts.
func restartsByData(p place) string {
	container, _ := namesConf(p)
	switch {
	case p.spec.Pod.Annotations[pod.AnnotationRestartOnChange] != "true":
		return "UPDATE"
	case container == p.spec.Pod.Spec.Containers[0].Name:
		return "UPDATE [app]"
	}
	return "UPDATE pod"
}

// confFile is the file of a ConfigMap: always in the second layer, in a file of its own.
func (s *scenery) confFile(name string) string { return s.path(1, "z-"+conf(name)) }

func (s *scenery) putConf(name string, immutable bool) {
	s.news++
	content := fmt.Sprint("content ", s.news)
	file := s.confFile(name)
	o := &pod.Object{
		Key: pod.Key{Namespace: "default", Name: conf(name)}, Kind: pod.KindConfigMap, Hash: fmt.Sprint("v2-", content, immutable),
		Origin: pod.Origin{Source: "file", Location: strings.TrimPrefix(shelfNames[1], "file:"), File: file, Line: 1},
		Object: &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: conf(name)}, Data: map[string]string{"K": content}, Immutable: &immutable},
	}
	s.layers[1].files[file], s.files[file] = source.File{File: file, Objects: []*pod.Object{o}}, true
}

func (s *scenery) dropConf(name string) {
	delete(s.layers[1].files, s.confFile(name))
	s.files[s.confFile(name)] = true
}

// confOf returns a pod's ConfigMap, nil for none.
func (s *scenery) confOf(name string) *pod.Object {
	if f, there := s.layers[1].files[s.confFile(name)]; there && len(f.Objects) == 1 {
		return f.Objects[0]
	}
	return nil
}

// lacks reports whether a pod names an object that does not exist.
func (s *scenery) lacks(spec *pod.Spec) bool {
	return slices.ContainsFunc(pod.Refs(spec.Pod), func(r pod.Ref) bool {
		return !r.Optional && (r.Name != conf(spec.Name) || s.confOf(spec.Name) == nil)
	})
}

// dataRows are the generator's rows of config objects.
func (s *scenery) dataRows() map[string]func() []expectation {
	readable := func() bool { return s.layers[1].err == nil }
	bound := func(which func(p place, container string, optional bool) bool) func(place) bool {
		return func(p place) bool {
			container, optional := namesConf(p)
			return lives0(p) && container != "" && s.copies(0, p.spec.Key)+s.copies(1, p.spec.Key) == 1 && which(p, container, optional)
		}
	}
	has := func(p place, immutable bool) bool {
		o := s.confOf(p.spec.Name)
		return o != nil && o.Immutable() == immutable
	}
	// fresh writes a new pod that names its ConfigMap.
	fresh := func(edits ...func(*v1.Pod)) place {
		layer, name := s.r.IntN(2), s.fresh()
		if s.layers[layer].err != nil {
			layer = 1 - layer
		}
		p := place{layer, s.path(layer, name), nil}
		p.spec = s.spec(layer, p.file, name, edits...)
		s.put(layer, p.file, p.spec)
		return p
	}
	edit := func(which func(place) bool, says func(place) string, change func(place)) func() []expectation {
		return func() []expectation {
			if !readable() {
				return nil
			}
			p, ok := s.plain(which)
			if !ok {
				return nil
			}
			change(p)
			return []expectation{{key: p.spec.Key, says: says(p)}}
		}
	}
	say := func(text string) func(place) string { return func(place) string { return text } }
	again := func(p place) { s.putConf(p.spec.Name, false) }
	asks := func(want string) func(place) bool {
		return bound(func(p place, _ string, _ bool) bool { return has(p, false) && restartsByData(p) == want })
	}
	return map[string]func() []expectation{
		"M41": func() []expectation {
			if !readable() {
				return nil
			}
			var edits []func(*v1.Pod)
			if s.r.IntN(2) == 0 {
				edits = append(edits, restartOnChange)
			}
			optional := s.r.IntN(4) == 0
			p := fresh(append(edits, names(s.r.IntN(3) == 0, optional))...)
			if !optional || s.r.IntN(2) == 0 {
				s.putConf(p.spec.Name, !optional && s.r.IntN(3) == 0)
			}
			return []expectation{{key: p.spec.Key, says: "ADD"}}
		},
		"M42": edit(asks("UPDATE"), say("UPDATE"), again),
		"M43": edit(asks("UPDATE [app]"), say("UPDATE [app]"), again),
		"M44": edit(asks("UPDATE pod"), say("UPDATE pod"), again),
		"M45": func() []expectation {
			p, ok := s.plain(func(p place) bool { container, _ := namesConf(p); return lives0(p) && container == "" })
			if !ok || !readable() {
				return nil
			}
			if s.putConf(p.spec.Name, false); s.r.IntN(2) == 0 {
				s.dropConf(p.spec.Name)
			}
			return []expectation{{key: p.spec.Key, says: ""}}
		},
		"M46": func() []expectation {
			p := fresh(names(s.r.IntN(3) == 0, false))
			s.lack = append(s.lack, lacking{p, "ADD"})
			return []expectation{{key: p.spec.Key, says: "reject"}}
		},
		"M47": func() []expectation {
			p, ok := s.plain(func(p place) bool {
				container, _ := namesConf(p)
				return lives0(p) && container == "" && s.confOf(p.spec.Name) == nil
			})
			if !ok {
				return nil
			}
			p.spec = s.again(p.layer, p.file, p.spec, names(false, false))
			s.put(p.layer, p.file, p.spec)
			s.lack = append(s.lack, lacking{p, "UPDATE [app]"})
			return []expectation{{key: p.spec.Key, says: "reject"}}
		},
		"M48": edit(bound(func(p place, _ string, optional bool) bool { return !optional && has(p, false) }), say("reject"), func(p place) {
			s.dropConf(p.spec.Name)
			s.lack = append(s.lack, lacking{p, restartsByData(p)})
		}),
		"M49": func() []expectation {
			if len(s.lack) == 0 || !readable() {
				return nil
			}
			p := s.lack[0]
			if s.used[p.spec.Key] || s.layers[p.layer].err != nil {
				return nil
			}
			s.lack = s.lack[1:]
			f := s.layers[p.layer].files[p.file]
			if len(f.Pods) != 1 || f.Pods[0] != p.spec || s.confOf(p.spec.Name) != nil {
				return nil
			}
			s.used[p.spec.Key] = true
			s.putConf(p.spec.Name, false)
			return []expectation{{key: p.spec.Key, says: p.says}}
		},
		"M50": edit(bound(func(p place, _ string, optional bool) bool { return optional }), restartsByData, func(p place) {
			if s.confOf(p.spec.Name) != nil {
				s.dropConf(p.spec.Name)
			} else {
				s.putConf(p.spec.Name, false)
			}
		}),
		"M51": edit(bound(func(p place, _ string, _ bool) bool { return has(p, true) }), say("held"), func(p place) {
			was := s.layers[1].files[s.confFile(p.spec.Name)]
			s.undo = append(s.undo, func() { s.layers[1].files[was.File] = was })
			s.putConf(p.spec.Name, true)
		}),
	}
}
