package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// containerLogs answers /containerLogs: it sends the log of a container unchanged, while it reads
// the log (C-1.40.8).
func (s *Server) containerLogs(w http.ResponseWriter, q *request) error {
	if s.cfg.Containers == nil {
		return notImplemented(q)
	}
	for _, part := range [][2]string{{"pod", "podID"}, {"container", "container name"}, {"namespace", "podNamespace"}} {
		if q.values[part[0]] == "" {
			return &StatusError{Code: http.StatusBadRequest, Message: `{"message": "Missing ` + part[1] + `."}`}
		}
	}
	l, err := parseLogRequest(q.params, time.Now())
	if err != nil {
		return err
	}
	name, container := q.values["pod"], q.values["container"]
	if s.cfg.Pods == nil {
		return notImplemented(q)
	}
	l.Pod, l.Container = s.cfg.Pods.Pod(q.values["namespace"], name), container
	if l.Pod == nil && !s.waitForPods(q.Context(), 0) {
		return errPodsNotRead
	}
	if l.Pod == nil {
		return &StatusError{Code: http.StatusNotFound, Message: fmt.Sprintf("pod %q does not exist", name)}
	}
	if !slices.Contains(containersOf(l.Pod), container) {
		return &StatusError{Code: http.StatusNotFound, Message: fmt.Sprintf("container %q not found in pod %q", container, name)}
	}
	if err := setContainer(&l); err != nil {
		return statusError(http.StatusBadRequest, err)
	}
	l.Ended = func() bool { return !s.runs(l) }
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := s.streamWriter(w)
	err = s.cfg.Containers.Logs(q.Context(), out, l)
	switch {
	case err == nil:
		out.end()
		return nil
	case !out.began:
		var refusal *StatusError
		if errors.As(err, &refusal) {
			return refusal
		}
		return statusError(http.StatusBadRequest, err)
	}
	s.log.Debug("Aborted log stream", "pod", name, "container", container, "error", err)
	panic(http.ErrAbortHandler)
}

// runs reports whether the container of l still runs, by the pod's status.
func (s *Server) runs(l LogRequest) bool {
	p := s.cfg.Pods.Pod(l.Pod.Namespace, l.Pod.Name)
	if p == nil || p.UID != l.Pod.UID {
		return false
	}
	st := statusOf(p, l.Container)
	return st != nil && bareID(st.ContainerID) == l.ContainerID && st.State.Terminated == nil && st.State.Waiting == nil
}

// parseLogRequest reads the query of /containerLogs. The error for a value that cannot be parsed has
// code 400, and the one for an invalid combination or range has 422.
func parseLogRequest(q url.Values, now time.Time) (l LogRequest, err error) {
	l = LogRequest{Tail: -1, Limit: -1, Stdout: true, Stderr: true}
	var refusal *StatusError
	undecodable := &StatusError{Code: http.StatusBadRequest, Message: `{"message": "Unable to decode query."}`}
	invalid := &StatusError{Code: http.StatusUnprocessableEntity, Message: `{"message": "Invalid request."}`}
	number := func(name string, least int64) (n int64, there bool) {
		text := q.Get(name)
		if name == "tailLines" && q.Get("tail") != "" {
			if text = q.Get("tail"); text == "all" {
				return 0, false
			}
		}
		if text == "" {
			return 0, false
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			refusal = undecodable
		} else if n < least && refusal == nil {
			refusal = invalid
		}
		return n, true
	}
	flag := func(name string) bool {
		v, there := q[name]
		return there && v[0] != "false" && v[0] != "0"
	}
	l.Follow, l.Previous, l.Timestamps = flag("follow"), flag("previous"), flag("timestamps")
	tail, tailed := number("tailLines", 0)
	if tailed {
		l.Tail = tail
	}
	if n, there := number("limitBytes", 1); there {
		l.Limit = n
	}
	seconds, since := number("sinceSeconds", 1)
	if since {
		l.Since = now.Add(-time.Duration(min(seconds, 1<<32)) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			refusal = undecodable
		} else if since && refusal == nil {
			refusal = invalid
		}
		l.Since = at
	}
	switch stream := q.Get("stream"); stream {
	case "", v1.LogStreamAll:
	case v1.LogStreamStdout, v1.LogStreamStderr:
		l.Stdout, l.Stderr = stream == v1.LogStreamStdout, stream == v1.LogStreamStderr
		if tailed && refusal == nil {
			refusal = invalid // tailLines counts the lines of both streams
		}
	default:
		if refusal == nil {
			refusal = invalid
		}
	}
	if refusal != nil {
		return l, refusal
	}
	return l, nil
}

// setContainer sets the container ID and attempt of l. It selects the container that runs or ran
// last, and with l.Previous the one before it. If there is none, it returns the kubelet's error.
func setContainer(l *LogRequest) error {
	pod, name := l.Pod.Name, l.Container
	st := statusOf(l.Pod, name)
	if st == nil {
		return fmt.Errorf("container %q in pod %q is not available", name, pod)
	}
	last := ""
	if t := st.LastTerminationState.Terminated; t != nil {
		last = bareID(t.ContainerID)
	}
	take := func(id string, attempt int32) error {
		l.ContainerID, l.Attempt = id, int(max(attempt, 0))
		return nil
	}
	now := st.State
	switch {
	case l.Previous:
		if last == "" {
			return fmt.Errorf("previous terminated container %q in pod %q not found", name, pod)
		}
		before := st.RestartCount
		if now.Waiting == nil { // the restart count is the current container's
			before--
		}
		return take(last, before)
	case now.Running != nil:
		return take(bareID(st.ContainerID), st.RestartCount)
	case now.Terminated != nil && now.Terminated.ContainerID != "":
		return take(bareID(now.Terminated.ContainerID), st.RestartCount)
	case last != "":
		return take(last, st.RestartCount)
	case now.Terminated != nil || st.LastTerminationState.Terminated != nil:
		return fmt.Errorf("container %q in pod %q is terminated", name, pod)
	case now.Waiting == nil:
		return fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, pod)
	}
	why := now.Waiting.Reason
	switch why {
	case "ErrImagePull":
		why = "image can't be pulled"
	case "ImagePullBackOff":
		why = "trying and failing to pull image"
	}
	return fmt.Errorf("container %q in pod %q is waiting to start: %s", name, pod, why)
}

// containersOf returns the names of all of a pod's containers.
func containersOf(p *v1.Pod) []string {
	var names []string
	for _, c := range p.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	return names
}

// statusOf returns the status of a container of a pod; nil if there is none.
func statusOf(p *v1.Pod, container string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == container {
				return &list[i]
			}
		}
	}
	return nil
}

// bareID returns a container ID without its scheme (containerd://).
func bareID(id string) string {
	if _, bare, ok := strings.Cut(id, "://"); ok {
		return bare
	}
	return id
}
