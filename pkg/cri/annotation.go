package cri

import (
	"encoding/json"
	"maps"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Annotations of the kubelet's that nodectl sets and never reads (C-1.22.11).
const (
	annotationPorts         = "io.kubernetes.container.ports" // JSON of the container's ports
	annotationDeletionGrace = "io.kubernetes.pod.deletionGracePeriod"
)

// containerAnnotations hold facts about the container that a later agent needs and CRI does
// not report.
func containerAnnotations(q pod.CreateRequest, c *v1.Container) map[string]string {
	notes := make(map[string]string)
	for _, a := range q.Devices {
		maps.Copy(notes, a.Annotations)
	}
	maps.Copy(notes, map[string]string{ // a plugin cannot change them
		pod.AnnotationContainerHash:     q.Want.ContainerHash(c.Name),
		pod.AnnotationRestartCount:      strconv.Itoa(int(q.Attempt)),
		pod.AnnotationTerminationPath:   c.TerminationMessagePath,
		pod.AnnotationTerminationPolicy: string(c.TerminationMessagePolicy),
		pod.AnnotationCrashStreak:       strconv.Itoa(q.Streak),
		pod.AnnotationResources:         q.Want.Resources(c.Name),
	})
	if p := q.Placement(); !p.IsZero() {
		note(notes, pod.AnnotationPlacement, p)
	}
	if len(q.Devices) > 0 {
		note(notes, pod.AnnotationDevices, q.Devices)
	}
	if len(q.Claims) > 0 {
		note(notes, pod.AnnotationClaims, q.Claims)
	}
	if grace := q.Want.Pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		notes[pod.AnnotationGrace] = strconv.FormatInt(*grace, 10)
	}
	if grace := q.Want.Pod.DeletionGracePeriodSeconds; grace != nil {
		notes[annotationDeletionGrace] = strconv.FormatInt(*grace, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		note(notes, pod.AnnotationPreStop, withoutHeaders(c.Lifecycle.PreStop))
	}
	if len(c.Ports) > 0 {
		note(notes, annotationPorts, c.Ports)
	}
	return notes
}

// note writes a value as JSON.
func note(notes map[string]string, name string, value any) {
	if text, err := json.Marshal(value); err == nil { // such types always marshal
		notes[name] = string(text)
	}
}

// noted returns a value that note has written, else the zero value.
func noted[T any](notes map[string]string, name string) (value T) {
	if text := notes[name]; text != "" && json.Unmarshal([]byte(text), &value) != nil {
		return *new(T) // half of it may have been read
	}
	return value
}

// withoutHeaders returns h without the headers that carry credentials: every user who may
// list containers can read annotations.
func withoutHeaders(h *v1.LifecycleHandler) *v1.LifecycleHandler {
	if h.HTTPGet == nil {
		return h
	}
	h = h.DeepCopy()
	h.HTTPGet.HTTPHeaders = slices.DeleteFunc(h.HTTPGet.HTTPHeaders, func(h v1.HTTPHeader) bool {
		switch textproto.CanonicalMIMEHeaderKey(h.Name) {
		case "Authorization", "Proxy-Authorization", "Cookie":
			return true
		}
		return false
	})
	return h
}

// stopSignal is the signal that the container's lifecycle names, as CRI's enum. If it names
// none, the runtime uses the image's signal or SIGTERM (C-1.23.9).
func stopSignal(c *v1.Container) runtimeapi.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_RUNTIME_DEFAULT
	}
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(*c.Lifecycle.StopSignal))
	return runtimeapi.Signal(runtimeapi.Signal_value[name])
}

// signalName is a signal as the API names it; "" for one that the runtime does not name.
func signalName(s runtimeapi.Signal) string {
	if s == runtimeapi.Signal_RUNTIME_DEFAULT {
		return ""
	}
	return strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(s.String())
}
