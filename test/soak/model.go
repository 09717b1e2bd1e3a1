package main

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sink/journal"
)

const (
	namespace = "soak"
	// version is the annotation that tells one text of a manifest from the next.
	version = "soak.nodectl.dev/version"
	// dependsOn orders pods.
	dependsOn = "nodectl.dev/depends-on"
)

// A wish is one manifest file, as the soak wrote it last: the agent is judged by it.
type wish struct {
	name  string
	house *house
	pod   *v1.Pod // the last one that was a manifest; nil for none
	end   end
	after *wish // its dependencies; nil for none
	edits int
	gone  bool // from the directory
	heir  bool // there was one of its name right before, which an absent agent takes for the same
	vague bool // its result depends on when it was read
}

// full is the pod's name on its node.
func (w *wish) full() string { return w.name + "-" + w.house.name }

func (w *wish) version() string { return fmt.Sprint(w.edits) }

// text is the manifest.
func (w *wish) text() (string, error) {
	if w.pod.Annotations == nil {
		w.pod.Annotations = map[string]string{}
	}
	w.pod.Annotations[version] = w.version()
	text, err := yaml.Marshal(w.pod)
	return strings.Replace(string(text), "\nstatus: {}\n", "\n", 1), err
}

// settled is the pod's final state; ok is false if that depends on the fate of another pod in
// between.
func (w *wish) settled() (_ end, ok bool) {
	if w.vague || w.after == nil {
		return w.end, !w.vague
	}
	if w.after.gone {
		return "", false
	}
	on, ok := w.after.settled()
	until := w.pod.Annotations[dependsOn]
	switch {
	case !ok:
		return "", false
	case on == runs && !strings.HasSuffix(until, ":done"):
		return w.end, true
	case on == succeeds && strings.HasSuffix(until, ":done"):
		return w.end, true
	}
	return "", false
}

// selfish reports whether the agent may end containers of the pod without an edit: a probe or
// a hook fails, the pod is done and its sidecar stops, or its deadline passes.
func (w *wish) selfish() bool {
	ends := w.end != runs
	for _, c := range slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers) {
		ends = ends || c.LivenessProbe != nil || c.StartupProbe != nil || c.Lifecycle != nil && c.Lifecycle.PostStart != nil
	}
	return ends
}

// mortal returns the containers of the pod that may be killed without changing its end.
func (w *wish) mortal() []string {
	if w.pod == nil || w.pod.Spec.RestartPolicy == v1.RestartPolicyNever {
		return nil
	}
	var names []string
	for _, c := range slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers) {
		names = append(names, c.Name)
	}
	return names
}

// read reports whether the agent has reported the newest version.
func (w *wish) read() bool {
	all, err := journal.Read(w.house.journal())
	e, ok := all[pod.Key{Namespace: namespace, Name: w.full()}]
	return err == nil && ok && e.Pod.Annotations[version] == w.version()
}
