package engine

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// rows are the generator's: each changes the layers as its row of docs/merge-semantics.md
// says, and returns the effect that the row names.
func (s *scenery) rows() map[string]func() []expectation {
	edit := func(says string, edits ...func(*v1.Pod)) func() []expectation {
		return func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			s.put(p.layer, p.file, s.again(p.layer, p.file, p.spec, edits...))
			return []expectation{{key: p.spec.Key, says: says}}
		}
	}
	add := func(edits ...func(*v1.Pod)) (place, expectation) {
		layer, name := s.r.IntN(2), s.fresh()
		if s.layers[layer].err != nil {
			layer = 1 - layer
		}
		p := place{layer, s.path(layer, name), nil}
		p.spec = s.spec(layer, p.file, name, edits...)
		s.put(layer, p.file, p.spec)
		return p, expectation{key: p.spec.Key, says: "ADD"}
	}
	side := v1.Container{Name: "side", Image: "side:1"}
	hasSide := func(p place) bool { return lives0(p) && len(p.spec.Pod.Spec.Containers) > 1 }
	hasInit := func(p place) bool {
		return lives0(p) && slices.ContainsFunc(p.spec.Pod.Spec.InitContainers, func(c v1.Container) bool { return !pod.Restartable(&c) })
	}
	rows := map[string]func() []expectation{
		"M1": func() []expectation {
			edits := []func(*v1.Pod){}
			if s.r.IntN(3) == 0 {
				edits = append(edits, initContainer("exit-0-after-1s"))
			}
			if s.r.IntN(4) == 0 {
				edits = append(edits, job)
			} else if s.r.IntN(3) == 0 {
				edits = append(edits, func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, side) })
			} else if s.r.IntN(2) == 0 {
				edits = append(edits, resourced)
			}
			if s.r.IntN(3) == 0 {
				edits = append(edits, sidecar)
			}
			_, e := add(edits...)
			return []expectation{e}
		},
		"M2": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			delete(s.layers[p.layer].files, p.file)
			s.past = append(s.past, p.spec.Name)
			return []expectation{{key: p.spec.Key, says: "REMOVE"}}
		},
		"M3": edit(""),
		"M4": edit("UPDATE [app]", s.nextImage),
		"M5": edit("UPDATE pod", func(p *v1.Pod) { p.Spec.HostNetwork = !p.Spec.HostNetwork }),
		"M6": edit("UPDATE", func(p *v1.Pod) { s.news++; p.Labels = map[string]string{"n": fmt.Sprint(s.news)} }),
		"M7": func() []expectation {
			p, ok := s.plain(func(p place) bool { return lives0(p) && !hasSide(p) })
			if !ok {
				return nil
			}
			s.put(p.layer, p.file, s.again(p.layer, p.file, p.spec, func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, side) }))
			return []expectation{{key: p.spec.Key, says: "UPDATE"}}
		},
		"M8": func() []expectation {
			p, ok := s.plain(hasSide)
			if !ok {
				return nil
			}
			s.put(p.layer, p.file, s.again(p.layer, p.file, p.spec, func(p *v1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }))
			return []expectation{{key: p.spec.Key, says: "UPDATE"}}
		},
		"M9": func() []expectation {
			p, ok := s.plain(hasInit)
			if !ok {
				return nil
			}
			s.put(p.layer, p.file, s.again(p.layer, p.file, p.spec, func(p *v1.Pod) {
				s.news++
				i := slices.IndexFunc(p.Spec.InitContainers, func(c v1.Container) bool { return !pod.Restartable(&c) })
				p.Spec.InitContainers[i].Image = fmt.Sprintf("exit-0:%d", s.news)
			}))
			return []expectation{{key: p.spec.Key, says: "UPDATE pod"}}
		},
		"M10": edit("UPDATE pod", func(p *v1.Pod) { s.news++; p.UID = types.UID(fmt.Sprintf("uid-%d", s.news)) }),
		"M11": edit("DELETE", func(p *v1.Pod) {
			at, grace := metav1.NewTime(time.Now()), int64(7)
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
		}),
		"M12": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			same := *p.spec
			same.Pod = same.Pod.DeepCopy()
			same.Pod.Status.Message = s.fresh()
			s.put(p.layer, p.file, &same)
			return []expectation{{key: p.spec.Key, says: ""}}
		},
		"M13": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			delete(s.layers[p.layer].files, p.file)
			file := s.path(p.layer, s.fresh())
			s.put(p.layer, file, s.again(p.layer, file, p.spec))
			return []expectation{{key: p.spec.Key, says: ""}}
		},
		"M14": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok || s.layers[1-p.layer].err != nil {
				return nil
			}
			delete(s.layers[p.layer].files, p.file)
			file := s.path(1-p.layer, s.fresh())
			s.put(1-p.layer, file, s.again(1-p.layer, file, p.spec))
			return []expectation{{key: p.spec.Key, says: ""}}
		},
		"M15": func() []expectation {
			p, ok := s.plain(func(p place) bool { return lives0(p) && p.layer == 1 })
			if !ok || s.layers[0].err != nil {
				return nil
			}
			file := s.path(0, s.fresh())
			s.put(0, file, s.again(0, file, p.spec, s.nextImage))
			return []expectation{{key: p.spec.Key, says: "UPDATE [app] conflict"}}
		},
		"M16": func() []expectation { // both layers define it, and the first one stops doing so
			for _, file := range slices.Sorted(maps.Keys(s.layers[0].files)) {
				f := s.layers[0].files[file]
				if s.layers[0].err != nil || s.layers[1].err != nil || len(f.Pods) != 1 || len(f.Problems) > 0 || s.used[f.Pods[0].Key] || s.files[file] || !lives0(place{spec: f.Pods[0]}) {
					continue
				}
				for _, g := range s.layers[1].files {
					if len(g.Problems) > 0 || len(g.Pods) != 1 || g.Pods[0].Key != f.Pods[0].Key || g.Pods[0].Hash == f.Pods[0].Hash || s.copies(0, f.Pods[0].Key) > 1 {
						continue
					}
					delete(s.layers[0].files, file)
					s.used[f.Pods[0].Key], s.files[file], s.files[g.File] = true, true, true
					return []expectation{{key: f.Pods[0].Key, says: "UPDATE [app]"}}
				}
			}
			return nil
		},
		"M17": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			file := s.path(p.layer, "0-"+s.fresh()) // before the owner's in byte order
			s.put(p.layer, file, s.again(p.layer, file, p.spec, s.nextImage))
			return []expectation{{key: p.spec.Key, says: "conflict"}}
		},
		"M18": func() []expectation {
			p, e := add()
			file := s.path(p.layer, "0-"+s.fresh())
			s.put(p.layer, file, s.again(p.layer, file, p.spec, s.nextImage))
			e.says = "ADD conflict"
			return []expectation{e}
		},
		"M19": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			s.put(p.layer, p.file, p.spec, s.again(p.layer, p.file, p.spec, s.nextImage))
			return []expectation{{key: p.spec.Key, says: "conflict"}}
		},
		"M20": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			s.layers[p.layer].files[p.file] = source.File{File: p.file, Incomplete: true, Problems: problemIn(p.file)}
			return []expectation{{key: p.spec.Key, says: ""}}
		},
		"M21": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			other := s.spec(p.layer, p.file, s.fresh())
			s.layers[p.layer].files[p.file] = source.File{File: p.file, Pods: []*pod.Spec{other}, Broken: []pod.Key{p.spec.Key}, Problems: problemIn(p.file)}
			return []expectation{{key: p.spec.Key, says: ""}, {key: other.Key, says: "ADD"}}
		},
		"M22": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok {
				return nil
			}
			other := s.spec(p.layer, p.file, s.fresh())
			s.layers[p.layer].files[p.file] = source.File{File: p.file, Pods: []*pod.Spec{other}, Problems: problemIn(p.file)}
			return []expectation{{key: p.spec.Key, says: ""}, {key: other.Key, says: "ADD"}}
		},
		"M23": func() []expectation {
			p, ok := s.plain(lives0)
			if !ok || len(s.files) > 1 || s.layers[1-p.layer].err != nil { // a layer that fails hides the other drawn rows
				return nil
			}
			s.layers[p.layer].err = fmt.Errorf("no answer")
			delete(s.layers[p.layer].files, p.file)
			return []expectation{{key: p.spec.Key, says: ""}}
		},
		"M24": func() []expectation {
			for i, l := range s.layers {
				if l.err == nil {
					continue
				}
				l.err = nil
				name := s.fresh()
				spec := s.spec(i, s.path(i, name), name)
				s.put(i, spec.Origin.File, spec)
				return []expectation{{key: spec.Key, says: "ADD"}}
			}
			return nil
		},
		"M25": func() []expectation {
			for i, l := range s.layers {
				for _, name := range slices.Sorted(maps.Keys(l.files)) {
					f := l.files[name]
					if l.err != nil || s.files[name] || len(f.Pods) != 1 || len(f.Broken) != 1 || s.used[f.Broken[0]] || s.copies(0, f.Broken[0])+s.copies(1, f.Broken[0]) > 1 {
						continue
					}
					delete(l.files, name)
					moved := s.path(i, s.fresh())
					rest := s.again(i, moved, f.Pods[0])
					l.files[moved] = source.File{File: moved, Pods: []*pod.Spec{rest}, Broken: f.Broken, Problems: problemIn(moved)}
					s.used[f.Broken[0]], s.used[rest.Key], s.files[name], s.files[moved] = true, true, true, true
					return []expectation{{key: f.Broken[0], says: ""}, {key: rest.Key, says: ""}}
				}
			}
			return nil
		},
		"M26": func() []expectation {
			p, ok := s.plain(ended)
			if !ok {
				return nil
			}
			return []expectation{{key: p.spec.Key, says: ""}}
		},
		"M27": func() []expectation {
			p, ok := s.plain(ended)
			if !ok {
				return nil
			}
			s.put(p.layer, p.file, s.again(p.layer, p.file, p.spec, func(p *v1.Pod) { s.news++; p.Spec.Containers[0].Image = fmt.Sprintf("exit-0-after-1m:%d", s.news) }))
			return []expectation{{key: p.spec.Key, says: "UPDATE pod"}}
		},
		"M28": func() []expectation {
			p, ok := s.plain(ended)
			if !ok {
				return nil
			}
			delete(s.layers[p.layer].files, p.file)
			return []expectation{{key: p.spec.Key, says: "REMOVE"}}
		},
		"M29": func() []expectation {
			if len(s.past) == 0 || s.layers[0].err != nil {
				return nil
			}
			name := s.past[0]
			key := pod.Key{Namespace: "default", Name: name}
			if s.used[key] || s.copies(0, key)+s.copies(1, key) > 0 {
				return nil
			}
			s.past = s.past[1:]
			s.put(0, s.path(0, name), s.spec(0, s.path(0, name), name))
			return []expectation{{key: key, says: "ADD"}}
		},
	}
	maps.Copy(rows, s.lifecycleRows())
	maps.Copy(rows, s.dataRows())
	return rows
}
