package workload

import (
	"errors"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Override has the fields of a workload that a command or a rollback has changed. The override of a
// field ends when the field changes in the source, or when a user clears it.
type Override struct {
	Replicas *ReplicasOverride `json:"replicas,omitempty"`
	Paused   *PausedOverride   `json:"paused,omitempty"`
	Template *TemplateOverride `json:"template,omitempty"`
}

// ReplicasOverride replaces spec.replicas.
type ReplicasOverride struct {
	Replicas int32       `json:"replicas"`
	Source   int32       `json:"source"` // the value in the source at that time
	Since    metav1.Time `json:"since"`
}

// PausedOverride replaces spec.paused.
type PausedOverride struct {
	Paused bool        `json:"paused"`
	Source bool        `json:"source"`
	Since  metav1.Time `json:"since"`
}

// TemplateOverride replaces spec.template.
type TemplateOverride struct {
	Template v1.PodTemplateSpec `json:"template"`
	Source   v1.PodTemplateSpec `json:"source"`
	Since    metav1.Time        `json:"since"`
	// Why is the reason, as one clause: "rollout undo to revision 1".
	Why string `json:"why"`
	// Rollback means that a rollback chose the template, because the version of the source failed.
	Rollback bool `json:"rollback,omitempty"`
}

// OverriddenField is one overridden field, as commands show it.
type OverriddenField struct {
	Field  string    `json:"field"`
	Value  string    `json:"value"`
	Source string    `json:"source"` // the value in the source
	Why    string    `json:"why"`
	Since  time.Time `json:"since"`
	// Rollback means that a rollback, not a command, chose the value.
	Rollback bool `json:"rollback,omitempty"`
}

// Fields returns the overridden fields.
func (o *Override) Fields() []OverriddenField {
	var all []OverriddenField
	if o == nil {
		return nil
	}
	if r := o.Replicas; r != nil {
		all = append(all, OverriddenField{"spec.replicas", fmt.Sprint(r.Replicas), fmt.Sprint(r.Source), "scale", r.Since.Time, false})
	}
	if p := o.Paused; p != nil {
		why := "rollout resume"
		if p.Paused {
			why = "rollout pause"
		}
		all = append(all, OverriddenField{"spec.paused", fmt.Sprint(p.Paused), fmt.Sprint(p.Source), why, p.Since.Time, false})
	}
	if t := o.Template; t != nil {
		all = append(all, OverriddenField{"spec.template", "another version", "not in use", t.Why, t.Since.Time, t.Rollback})
	}
	return all
}

// orNil returns the override, or nil if it overrides no field.
func (o *Override) orNil() *Override {
	if o == nil || o.Replicas == nil && o.Paused == nil && o.Template == nil {
		return nil
	}
	return o
}

// copied returns a shallow copy.
func (o *Override) copied() *Override {
	if o == nil {
		return &Override{}
	}
	c := *o
	return &c
}

// Check returns an error if the override has a value that this package never writes.
func (o *Override) Check() error {
	switch {
	case o == nil:
		return nil
	case o.Replicas != nil && (o.Replicas.Replicas < 0 || o.Replicas.Replicas > pod.MaxReplicas):
		return fmt.Errorf("override of spec.replicas: %d is not between 0 and %d", o.Replicas.Replicas, pod.MaxReplicas)
	case o.Template != nil && (len(o.Template.Template.Spec.Containers) == 0 || len(o.Template.Source.Spec.Containers) == 0):
		return errors.New("override of spec.template: it has no containers")
	}
	return nil
}

// fieldsOf has pointers to the fields of a workload that overrides replace. A pointer is nil if the
// kind does not have the field.
type fieldsOf struct {
	replicas **int32
	paused   *bool
	template *v1.PodTemplateSpec
	history  *int32 // spec.revisionHistoryLimit
}

func fieldsIn(object any) fieldsOf {
	switch w := object.(type) {
	case *appsv1.Deployment:
		return fieldsOf{&w.Spec.Replicas, &w.Spec.Paused, &w.Spec.Template, w.Spec.RevisionHistoryLimit}
	case *appsv1.StatefulSet:
		return fieldsOf{&w.Spec.Replicas, nil, &w.Spec.Template, w.Spec.RevisionHistoryLimit}
	case *appsv1.ReplicaSet:
		return fieldsOf{replicas: &w.Spec.Replicas}
	case *appsv1.DaemonSet:
		return fieldsOf{template: &w.Spec.Template, history: w.Spec.RevisionHistoryLimit}
	}
	return fieldsOf{}
}

// Apply returns the workload with its overrides, and the overrides that are in effect. ended names
// the fields whose override has ended, because the field has changed in the source. Apply changes
// neither the receiver nor the argument.
func (o *Override) Apply(source *pod.Object) (effective *pod.Object, inEffect *Override, ended []string) {
	if o == nil {
		return source, nil, nil
	}
	f, rest := fieldsIn(source.Object), Override{}
	if r := o.Replicas; r != nil {
		if f.replicas != nil && ptr.Deref(*f.replicas, 1) == r.Source {
			rest.Replicas = r
		} else {
			ended = append(ended, "spec.replicas")
		}
	}
	if p := o.Paused; p != nil {
		if f.paused != nil && *f.paused == p.Source {
			rest.Paused = p
		} else {
			ended = append(ended, "spec.paused")
		}
	}
	if t := o.Template; t != nil {
		if f.template != nil && sameTemplate(f.template, &t.Source) {
			rest.Template = t
		} else {
			ended = append(ended, "spec.template")
		}
	}
	if inEffect = (&rest).orNil(); inEffect == nil {
		return source, nil, ended
	}
	copied := *source
	copied.Object = source.Object.(runtime.Object).DeepCopyObject()
	f = fieldsIn(copied.Object)
	if rest.Replicas != nil {
		n := rest.Replicas.Replicas
		*f.replicas = &n
	}
	if rest.Paused != nil {
		*f.paused = rest.Paused.Paused
	}
	if rest.Template != nil {
		*f.template = *rest.Template.Template.DeepCopy()
		copied.Positions = nil // they belong to the template in the file
	}
	return &copied, inEffect, ended
}

// sameTemplate reports whether two templates are equal with all defaults.
func sameTemplate(a, b *v1.PodTemplateSpec) bool {
	return indexOfTemplate([]Revision{{Template: *a}}, b) >= 0
}

// setTemplate overrides the template, or ends the override if the source has an equal template.
func (o *Override) setTemplate(source *pod.Object, t *v1.PodTemplateSpec, now time.Time, why string) {
	from := fieldsIn(source.Object).template
	if o.Template = nil; !sameTemplate(from, t) {
		o.Template = &TemplateOverride{Template: *t.DeepCopy(), Source: *from.DeepCopy(), Since: seconds(now), Why: why}
	}
}

// restartedAt is the annotation by which kubectl restarts a workload.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// restarted returns the template with the annotation of a restart.
func restarted(t *v1.PodTemplateSpec, now time.Time) *v1.PodTemplateSpec {
	next := t.DeepCopy()
	next.Annotations = maps.Clone(next.Annotations)
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, restartedAt, now.Format(time.RFC3339))
	return next
}
