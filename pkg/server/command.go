package server

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// runCommand answers /run: it runs a command to its end and sends the command's output (C-1.40.9).
func (s *Server) runCommand(w http.ResponseWriter, q *request) error {
	if s.cfg.Containers == nil {
		return notImplemented(q)
	}
	if err := q.ParseForm(); err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return statusError(http.StatusRequestEntityTooLarge, err)
		}
		return statusError(http.StatusBadRequest, err)
	}
	pod, err := s.pod(q)
	if err != nil {
		return err
	}
	out, err := s.cfg.Containers.Run(q.Context(), pod, q.values["container"], commandOfRun(q))
	if err != nil {
		return s.runtimeError(err)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write(out)
	return nil
}

// minCheckpointSpace is the free disk space that a checkpoint needs.
const minCheckpointSpace = 1 << 30

// checkpoint answers /checkpoint: it writes a running container to an archive
// (C-1.40.10). It limits the number of archives, because each may be as large as the
// container's memory (CVE-2025-0426).
func (s *Server) checkpoint(w http.ResponseWriter, q *request) error {
	if s.cfg.Containers == nil || s.cfg.CheckpointDir == "" {
		return notImplemented(q)
	}
	pod, err := s.pod(q)
	if err != nil {
		return err
	}
	name := q.values["container"]
	if !slices.Contains(containersOf(pod), name) {
		return &StatusError{Code: http.StatusNotFound, Message: fmt.Sprintf("container %v does not exist", name)}
	}
	var timeout time.Duration
	if all := q.params["timeout"]; len(all) > 0 {
		seconds, err := strconv.ParseInt(all[len(all)-1], 10, 32)
		if err != nil {
			return &StatusError{Code: http.StatusNotFound, Message: "cannot parse value of timeout parameter"}
		}
		timeout = time.Duration(max(seconds, 0)) * time.Second
	}
	if !s.checkpointing.TryLock() {
		return &StatusError{Code: http.StatusTooManyRequests, Message: "another checkpoint is being made"}
	}
	defer s.checkpointing.Unlock()
	if err := s.roomForCheckpoint(); err != nil {
		return err
	}
	path := filepath.Join(s.cfg.CheckpointDir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, name, time.Now().Format(time.RFC3339)))
	if err := s.cfg.Containers.Checkpoint(q.Context(), pod, name, path, timeout); err != nil {
		code := http.StatusInternalServerError
		if errors.Is(err, errors.ErrUnsupported) { // the kubelet's 404 would read as a missing pod
			code = http.StatusNotImplemented
		}
		return &StatusError{Code: code, Message: fmt.Sprintf("checkpointing of %v/%v/%v failed (%v)", pod.Namespace, pod.Name, name, err)}
	}
	return send(w, struct {
		Items []string `json:"items"`
	}{[]string{path}})
}

// roomForCheckpoint makes the directory of checkpoints and returns an error if there
// is no room for another.
func (s *Server) roomForCheckpoint() error {
	dir := s.cfg.CheckpointDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of checkpoints: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of checkpoints: %w", err)
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read directory of checkpoints: %w", err)
	}
	if len(there) >= s.cfg.MaxCheckpoints {
		return &StatusError{Code: http.StatusInsufficientStorage, Message: fmt.Sprintf("there are %d checkpoints in %s already; remove some", len(there), dir)}
	}
	if free, err := freeBytes(dir); err != nil {
		return fmt.Errorf("read free space of checkpoints: %w", err)
	} else if free < minCheckpointSpace {
		return &StatusError{Code: http.StatusInsufficientStorage, Message: fmt.Sprintf("the disk of %s has %d MiB left, too little for a checkpoint", dir, free>>20)}
	}
	return nil
}
