package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// Pull is an image pull that has not ended.
type Pull struct {
	Image   string    `json:"image"`
	Since   time.Time `json:"since"`
	Waiting bool      `json:"waiting"`
	Bytes   int64     `json:"bytes"` // of Total; both are 0 if unknown
	Total   int64     `json:"total"`
}

// WaitsForImages reports whether a pod with this status may wait for an image pull.
func WaitsForImages(p v1.Pod) bool { return mayPull(status.Summary(p).Status) }

func mayPull(text string) bool {
	step, init := strings.CutPrefix(text, "Init:")
	return init && strings.Contains(step, "/") || slices.Contains([]string{string(v1.PodPending), "ContainerCreating", "PodInitializing"}, text)
}

// pullStatus returns the status of a pod that waits for an image: the progress or the duration of
// the pull. It is "" for any other pod. Like Init:0/1, it has no space.
func pullStatus(p *v1.Pod, text string, pulls []Pull, now time.Time) string {
	if len(pulls) == 0 || !mayPull(text) {
		return ""
	}
	images := pod.Images(p)
	for _, pull := range pulls { // the oldest first
		if !slices.ContainsFunc(images, func(name string) bool { return pull.Image == name || pull.Image == name+":latest" }) {
			continue
		}
		prefix := ""
		if strings.HasPrefix(text, "Init:") {
			prefix = "Init:"
		}
		switch {
		case pull.Waiting:
			return prefix + "Pulling:queued"
		case pull.Total > 0:
			return fmt.Sprintf("%sPulling:%d%%", prefix, min(pull.Bytes*100/pull.Total, 100))
		}
		return prefix + "Pulling:" + duration.HumanDuration(now.Sub(pull.Since))
	}
	return ""
}
