package workload

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/podstatic"
)

// revise sets the revisions. The newest one has the template; the current one is the revision that
// all pods had before the update began.
func (s *setRun) revise() {
	t := &s.set.Spec.Template
	list := s.in.State.Revisions
	adopted := ""
	if len(list) == 0 {
		adopted = s.adoptedHash()
	}
	s.revisions = revise(list, t, s.in.Now, func(collisions int32) string {
		if adopted != "" && collisions == 0 {
			return adopted
		}
		return setRevision(s.in.Object.Name, t, collisions)
	})
	s.newest = &s.revisions[len(s.revisions)-1]
	s.current = s.newest
	if state := s.in.State.StatefulSet; state != nil {
		if i := indexOf(s.revisions, state.Current); i >= 0 && s.revisions[i].Failed == "" {
			s.current = &s.revisions[i]
		}
	}
}

// adoptedHash returns the revision hash of the pods that were made from the template, or "". It
// compares the hashes of pod specs, which cover the manifest without defaults. So after a loss of the
// state, other defaults replace no pod.
func (s *setRun) adoptedHash() string {
	for p := range s.present() {
		ordinal, ok := s.ordinalOf(p)
		hash := revisionOf(p.Spec)
		if ok && hash != "" && s.newPod(ordinal, &Revision{Hash: hash, Template: s.set.Spec.Template}).Hash == p.Spec.Hash {
			return hash
		}
	}
	return ""
}

// revisionFor returns the revision of a new pod: below the partition the current one, else the
// newest one. Without rollingUpdate, the ordinals that the update has not reached count as below
// the partition.
func (s *setRun) revisionFor(ordinal int) *Revision {
	strategy := &s.set.Spec.UpdateStrategy
	partition := 0
	switch {
	case strategy.RollingUpdate != nil:
		partition = int(ptr.Deref(strategy.RollingUpdate.Partition, 0))
	case strategy.Type == appsv1.RollingUpdateStatefulSetStrategyType:
		for p := range s.present() {
			if revisionOf(p.Spec) == s.current.Hash {
				partition++
			}
		}
	}
	if ordinal < s.start+partition {
		return s.current
	}
	return s.newest
}

// name returns the name of a revision for reasons and events.
func (s *setRun) name(r *Revision) string { return fmt.Sprintf("revision %d", r.Number) }

// nameOf returns the name of a pod's revision.
func (s *setRun) nameOf(m *member) string {
	if i := indexOf(s.revisions, m.revision()); i >= 0 {
		return s.name(&s.revisions[i])
	}
	return "an older revision"
}

// setRevision returns the name of the ControllerRevision of a StatefulSet's template. As in
// Kubernetes, it has the hash of the patch that would restore the template.
func setRevision(set string, t *v1.PodTemplateSpec, collisions int32) string {
	sum := fnv.New32()
	fmt.Fprintf(sum, "%s%d", setPatch(t), collisions)
	return set[:min(len(set), 223)] + "-" + rand.SafeEncodeString(fmt.Sprint(sum.Sum32()))
}

// setPatch returns the JSON of that patch, with sorted keys.
func setPatch(t *v1.PodTemplateSpec) []byte {
	var template map[string]any
	text, err := json.Marshal(podstatic.DefaultTemplate(t))
	if err == nil {
		err = json.Unmarshal(text, &template)
	}
	if err != nil {
		return nil // a template that came from JSON can be written as JSON
	}
	template["$patch"] = "replace"
	out, _ := json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	return out
}

// newPod makes the pod of an ordinal. Its UID depends on the revision, because its name does not:
// an update makes another instance, and never edits the pod in place.
func (s *setRun) newPod(ordinal int, r *Revision) *pod.Spec {
	name := fmt.Sprintf("%s-%d", s.in.Object.Name, ordinal)
	parts := podParts{
		name: name, owner: s.in.owner(),
		uid: pod.RevisionUID(s.in.Node, s.in.Object.Namespace, name, r.Hash),
		labels: map[string]string{
			appsv1.StatefulSetPodNameLabel:  name,
			appsv1.PodIndexLabel:            strconv.Itoa(ordinal),
			appsv1.StatefulSetRevisionLabel: r.Hash,
		},
		edit: func(p *v1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain = name, s.set.Spec.ServiceName
			p.Spec.Volumes = s.withClaims(ordinal, p.Spec.Volumes)
		},
	}
	if s.newest != nil && r.Hash == s.newest.Hash {
		parts.positions = s.in.Object.Positions
	}
	return s.in.newPod(&r.Template, parts)
}

func (s *setRun) claimName(template string, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", template, s.in.Object.Name, ordinal)
}

// withClaims returns the volumes of a pod: one for each claim template, and those of the pod
// template with other names.
func (s *setRun) withClaims(ordinal int, volumes []v1.Volume) []v1.Volume {
	var out []v1.Volume
	for i := range s.set.Spec.VolumeClaimTemplates {
		name := s.set.Spec.VolumeClaimTemplates[i].Name
		out = append(out, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: s.claimName(name, ordinal)},
		}})
	}
	n := len(out)
	for i := range volumes {
		if !slices.ContainsFunc(out[:n], func(v v1.Volume) bool { return v.Name == volumes[i].Name }) {
			out = append(out, volumes[i])
		}
	}
	return out
}

// claims returns the claims that the templates make for a pod of the set.
func (s *setRun) claims(p *pod.Spec) []*pod.Object {
	ordinal, _ := s.ordinalOf(Pod{Spec: p})
	var out []*pod.Object
	for i := range p.Pod.Spec.Volumes {
		v := &p.Pod.Spec.Volumes[i]
		if claim := v.PersistentVolumeClaim; claim == nil || claim.ClaimName != s.claimName(v.Name, ordinal) {
			continue
		}
		if t := s.claimTemplate(v.Name); t != nil {
			out = append(out, s.claim(t, ordinal))
		}
	}
	return out
}

// claimTemplate returns a claim template of the set, or one that the set had when older pods were
// made. It keeps the template in the state.
func (s *setRun) claimTemplate(name string) *v1.PersistentVolumeClaim {
	lists := [][]v1.PersistentVolumeClaim{s.used, s.set.Spec.VolumeClaimTemplates}
	if state := s.in.State.StatefulSet; state != nil {
		lists = append(lists, state.Claims)
	}
	for i, list := range lists {
		at := slices.IndexFunc(list, func(c v1.PersistentVolumeClaim) bool { return c.Name == name })
		if at < 0 {
			continue
		}
		if i > 0 {
			s.used = append(s.used, list[at])
		}
		return &list[at]
	}
	return nil
}

// claim returns the claim that a template makes for an ordinal.
func (s *setRun) claim(t *v1.PersistentVolumeClaim, ordinal int) *pod.Object {
	c := t.DeepCopy()
	c.Kind, c.APIVersion = pod.KindClaim, "v1"
	c.Name, c.Namespace = s.claimName(t.Name, ordinal), s.in.Object.Namespace
	c.Status = v1.PersistentVolumeClaimStatus{}
	if selector := s.set.Spec.Selector; selector != nil {
		c.Labels = merged(c.Labels, selector.MatchLabels)
	}
	podstatic.DefaultClaim(c)
	return &pod.Object{
		Key: pod.Key{Namespace: c.Namespace, Name: c.Name}, Kind: pod.KindClaim, Origin: s.in.Object.Origin,
		Hash: podspec.HashObject(map[string]any{"labels": c.Labels, "spec": c.Spec}), Object: c,
	}
}
