package invariant

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// line is a line of the journal.
type line struct {
	Time time.Time `json:"time"`
	Gone bool      `json:"gone"`
	Pod  *v1.Pod   `json:"pod"`
}

func (l line) status(container string) v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{l.Pod.Status.ContainerStatuses, l.Pod.Status.InitContainerStatuses} {
		for _, c := range list {
			if c.Name == container {
				return c
			}
		}
	}
	return v1.ContainerStatus{}
}

// journal returns the complete lines, in order. The agent may be writing meanwhile.
func (s *Scope) journal() ([]line, error) {
	text, err := os.ReadFile(filepath.Join(s.Root, "journal.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []line
	for raw := range bytes.Lines(text) {
		var l line
		if json.Unmarshal(raw, &l) == nil && l.Pod != nil {
			all = append(all, l)
		}
	}
	return all, nil
}

// final returns where the journal takes something back (I4): a restart count that falls, or a
// terminated pod that runs again. It excepts another pod of the same name and a pod that
// became desired again in between.
func final(lines []line, h *History) (found []Violation) {
	last := make(map[types.UID]line)
	for _, l := range lines {
		uid, name := l.Pod.UID, l.Pod.Name
		before, ok := last[uid]
		last[uid] = l
		if !ok || before.Gone || h.changed(name, before.Time.Add(-slack), l.Time) {
			continue
		}
		was, is := before.Pod.Status, l.Pod.Status
		if (was.Phase == v1.PodSucceeded || was.Phase == v1.PodFailed) && is.Phase != was.Phase && !l.Gone {
			found = append(found, Violation{"I4", l.Time, name, fmt.Sprintf("was %s, is %s", was.Phase, is.Phase)})
		}
		for _, c := range append(was.ContainerStatuses, was.InitContainerStatuses...) {
			if now := l.status(c.Name); now.RestartCount < c.RestartCount && now.Name != "" {
				found = append(found, Violation{"I4", l.Time, name, fmt.Sprintf("container %s had %d restarts, has %d", c.Name, c.RestartCount, now.RestartCount)})
			}
		}
	}
	return found
}
