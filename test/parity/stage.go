package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/arm"
)

// A stage is one running case.
type stage struct {
	*run
	c         *Case
	record    *CaseRecord
	dir       string            // the case's own, $DIR in its manifests
	manifests map[string]string // by pod
	objects   []string          // the objects that they name
	round     int               // how often the case was run before
	held      map[string]bool   // pods whose manifest appears later, or never again
}

func newStage(r *run, c *Case) (*stage, error) {
	r.mu.Lock()
	r.rounds[c.Name]++
	round := r.rounds[c.Name]
	r.mu.Unlock()
	s := &stage{
		run: r, c: c, round: round, record: &CaseRecord{Pods: map[string]*PodRecord{}},
		dir: filepath.Join(r.Dir, "cases", c.Name), manifests: map[string]string{}, held: map[string]bool{},
	}
	if err := errors.Join(arm.Unmount(s.dir), os.RemoveAll(s.dir), os.MkdirAll(s.dir, 0o755)); err != nil {
		return nil, err
	}
	if err := c.prepare(s.dir); err != nil {
		return nil, err
	}
	digest := ""
	for _, rest := range named([]*Case{c}) {
		digest = r.digests[rest]
	}
	words := strings.NewReplacer("$DIR", s.dir, "$REGISTRY", r.registry, "$DIGEST", digest)
	for _, m := range c.manifests {
		_, name, err := identify(m)
		if err != nil {
			return nil, err
		}
		s.manifests[name] = words.Replace(m)
	}
	for _, o := range c.objects {
		s.objects = append(s.objects, words.Replace(o))
	}
	was := map[string]bool{}
	for _, a := range c.Script {
		was[a.Remove] = true
		s.held[a.Drop] = s.held[a.Drop] || !was[a.Drop]
	}
	return s, nil
}

// play carries out the case's script, at times since it began, and removes its manifests.
func (s *stage) play(ctx context.Context, began time.Time) error {
	type step struct {
		at time.Duration
		do func() error
	}
	steps := []step{{s.c.Look.Duration, func() error { return s.look(ctx) }}}
	for _, a := range s.c.Script {
		steps = append(steps, step{a.At.Duration, func() error { return s.act(ctx, a) }})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	steps = append(steps, step{s.c.Watch.Duration, s.removeAll}, step{s.c.Watch.Duration + s.c.After.Duration, func() error { return s.keep(ctx) }})
	for _, st := range steps {
		if err := pauseUntil(ctx, began.Add(st.at)); err != nil {
			return err
		}
		if err := st.do(); err != nil {
			return fmt.Errorf("%s: %w", s.c.Name, err)
		}
	}
	s.progress(s.c.Name)
	return nil
}

// keep adds the record to the recording, unless the recording has a less disturbed one.
func (s *stage) keep(ctx context.Context) error {
	s.record.End = time.Now()
	slices.SortStableFunc(s.record.Moments, func(a, b Moment) int { return a.At.Compare(b.At) })
	for pod := range s.manifests {
		s.record.Pods[pod] = s.recorder.take(ctx, pod)
		s.record.Slowest = max(s.record.Slowest, s.record.Pods[pod].Slowest)
	}
	s.record.Said = append(s.record.Said, s.said(s.c)...)
	for _, o := range s.objects {
		if err := s.remove(o, s.objectFile(o)); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.run.record.Cases[s.c.Name]; old == nil || old.Slowest > s.record.Slowest {
		s.run.record.Cases[s.c.Name] = s.record
	}
	return nil
}

// file is a pod's manifest file. Each round uses another one, so that the pod is new to a
// kubelet.
func (s *stage) file(pod string) string {
	return filepath.Join(s.Manifests, fmt.Sprintf("%s.%d.yaml", pod, s.round))
}

// copied is a second file with a pod's manifest; it comes after the first one.
func (s *stage) copied(pod string) string { return strings.TrimSuffix(s.file(pod), "yaml") + "z.yaml" }

func (s *stage) drop(pod string) error { return s.put(s.manifests[pod], s.file(pod)) }

// put writes a manifest as an editor or a deployment tool does, or sends it to the API
// server, whose rejection is a result.
func (s *stage) put(manifest, file string) error {
	if s.server != nil {
		said, err := s.server.put(manifest)
		s.record.Said = append(s.record.Said, said...)
		return err
	}
	name := strings.TrimSuffix(filepath.Base(file), ".yaml")
	if err := s.Stage(name, manifest); err != nil {
		return err
	}
	_, err := s.Drop(name)
	return err
}

// remove takes a manifest away.
func (s *stage) remove(manifest, file string) error {
	if s.server != nil {
		return s.server.remove(manifest)
	}
	if err := os.Remove(file); !os.IsNotExist(err) {
		return err
	}
	return nil
}

// objectFile is where an object's manifest is; it comes before the pods'.
func (s *stage) objectFile(manifest string) string {
	kind, name, _ := identify(manifest)
	return s.file("0-" + strings.ToLower(kind) + "-" + name)
}

func (s *stage) dropAll() error {
	var errs []error
	names, err := s.c.pods()
	if err != nil {
		return err
	}
	for _, o := range s.objects {
		errs = append(errs, s.put(o, s.objectFile(o)))
	}
	for _, pod := range names {
		if !s.held[pod] {
			errs = append(errs, s.drop(pod))
		}
	}
	return errors.Join(errs...)
}

func (s *stage) removeAll() error {
	s.record.Gone = time.Now()
	var errs []error
	for pod, m := range s.manifests {
		for _, file := range []string{s.copied(pod), s.file(pod)} {
			errs = append(errs, s.remove(m, file))
		}
	}
	return errors.Join(errs...)
}

// act carries out one action of the script.
func (s *stage) act(ctx context.Context, a Action) error {
	s.record.Moments = append(s.record.Moments, Moment{time.Now(), a.describe()})
	switch {
	case a.Replace != nil:
		for pod, m := range s.manifests {
			was := m
			for _, r := range a.Replace {
				m = strings.ReplaceAll(m, r.Old, r.New)
			}
			if m == was {
				continue
			}
			s.manifests[pod] = m
			if !s.held[pod] {
				if err := s.drop(pod); err != nil {
					return err
				}
			}
		}
		for i, o := range s.objects {
			was := o
			for _, r := range a.Replace {
				o = strings.ReplaceAll(o, r.Old, r.New)
			}
			if o == was {
				continue
			}
			s.objects[i] = o
			if err := s.put(o, s.objectFile(o)); err != nil {
				return err
			}
		}
		return nil
	case a.Remove != "":
		s.held[a.Remove] = true
		return s.remove(s.manifests[a.Remove], s.file(a.Remove))
	case a.Drop != "":
		s.held[a.Drop] = false
		return s.drop(a.Drop)
	case a.Copy != "":
		return s.put(s.manifests[a.Copy], s.copied(a.Copy))
	case a.Create != "":
		return os.WriteFile(filepath.Join(s.dir, a.Create), []byte("here\n"), 0o644)
	case a.Delete != "":
		if err := os.Remove(filepath.Join(s.dir, a.Delete)); !os.IsNotExist(err) {
			return err
		}
		return nil // the comparison shows that it is missing
	case a.Kill != "":
		pod, container, _ := strings.Cut(a.Kill, "/")
		for _, r := range s.recorder.running(pod) {
			if r.Container == container {
				return s.kill(ctx, r.ID)
			}
		}
		return nil // the comparison shows that it does not run
	}
	return fmt.Errorf("nothing to do at %s", a.At.Duration)
}

// kill kills the first process of a container from outside.
func (s *stage) kill(ctx context.Context, id string) error {
	pid, err := arm.PidOf(ctx, s.recorder.runtime, id)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// look looks into all running containers of the case.
func (s *stage) look(ctx context.Context) error {
	if s.c.Alone {
		s.record.Tiers = tierFacts(s.Cgroup)
	}
	for pod := range s.manifests {
		looks := map[string]Look{}
		for _, r := range s.recorder.running(pod) {
			l, err := lookInside(ctx, s.recorder.runtime, r.ID)
			if err != nil {
				continue // it ended meanwhile
			}
			looks[r.Container] = l
		}
		nameNamespaces(looks)
		s.recorder.inside(pod, looks, logFiles(s.Logs, pod))
	}
	return nil
}
