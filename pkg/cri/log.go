package cri

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	maxTailLines = 80   // of a log used as termination message (C-1.26.11)
	maxTailBytes = 2048 // of their text
	// readTailBytes is how much of the log is read for them: each line has a prefix.
	readTailBytes = 64 << 10
	// maxLinkName limits a link's name, with its suffix, to the limit of file systems, as in the
	// kubelet.
	maxLinkName = 251
)

// logTail returns the last lines of a container's log.
func (r *Runtime) logTail(path string) (string, error) {
	rel, ok := r.belowLogs(path)
	if !ok {
		return "", fmt.Errorf("%s is not below %s", path, r.cfg.PodLogsDir)
	}
	text, whole, err := tail(r.cfg.PodLogsDir, rel, readTailBytes)
	if err != nil {
		return "", err
	}
	if _, rest, ok := bytes.Cut(text, []byte("\n")); ok && !whole {
		text = rest // the first line is cut
	}
	return lastLines(text), nil
}

// lastLines returns the last text a container wrote, from the end of its log in CRI's
// format: "<time> <stream> P|F[:tag…] <text>" a line, where P says that the line continues.
func lastLines(log []byte) string {
	var out []byte
	ends := 0 // lines that end after the start of out
	for len(log) > 0 && len(out) < maxTailBytes {
		i := bytes.LastIndexByte(bytes.TrimSuffix(log, []byte("\n")), '\n') + 1
		piece := logPiece(log[i:])
		if bytes.HasSuffix(piece, []byte("\n")) {
			if ends++; ends > maxTailLines {
				break
			}
		}
		out = append(piece[:len(piece):len(piece)], out...)
		log = log[:i]
	}
	return string(out[max(len(out)-maxTailBytes, 0):])
}

// logPiece returns the text of one line of a log, with a line break if the container wrote
// one. A line in another format is used as it is.
func logPiece(line []byte) []byte {
	fields := bytes.SplitN(line, []byte(" "), 4)
	if len(fields) < 4 {
		return line
	}
	if tag, _, _ := bytes.Cut(fields[2], []byte(":")); string(tag) == "P" {
		return bytes.TrimSuffix(fields[3], []byte("\n"))
	}
	return fields[3]
}

// linkName is the name of a container's link in ContainerLogsDir.
func linkName(labels map[string]string, id string) string {
	name := labels[pod.LabelPodName] + "_" + labels[pod.LabelPodNamespace] + "_" + labels[pod.LabelContainerName] + "-" + id
	return name[:min(len(name), maxLinkName)] + ".log"
}

// link makes the link to a new container's log. A failure does not stop the container: only
// log collectors miss it.
func (r *Runtime) link(id string, box *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
	if r.cfg.ContainerLogsDir == "" || c.GetLogPath() == "" {
		return
	}
	err := os.MkdirAll(r.cfg.ContainerLogsDir, 0o755)
	if err == nil {
		err = os.Symlink(filepath.Join(box.GetLogDirectory(), c.GetLogPath()), filepath.Join(r.cfg.ContainerLogsDir, linkName(c.GetLabels(), id)))
	}
	if err != nil {
		r.cfg.Log.Warn("Failed to link container log", "container", c.GetLabels()[pod.LabelContainerName], "error", err)
	}
}

// clear removes the files of a container: its log with rotated parts, the link and the
// termination message. With keepLog its log stays, and those of earlier attempts are
// removed. Files that cannot be removed are removed with the pod.
func (r *Runtime) clear(was *runtimeapi.ContainerStatus, keepLog bool) {
	labels, m := was.GetLabels(), was.GetMetadata()
	var failed []error
	if rel, ok := r.belowLogs(was.GetLogPath()); ok {
		failed = append(failed, removeBelow(r.cfg.PodLogsDir, filepath.Dir(rel), func(name string) bool {
			if keepLog {
				return logNumber(name) < logNumber(filepath.Base(rel))
			}
			return name == filepath.Base(rel) || strings.HasPrefix(name, filepath.Base(rel)+".")
		}))
	}
	if r.cfg.ContainerLogsDir != "" {
		failed = append(failed, os.Remove(filepath.Join(r.cfg.ContainerLogsDir, linkName(labels, was.GetId()))))
	}
	if rel := messagePath(labels[pod.LabelPodUID], m.GetName(), m.GetAttempt()); rel != "" && r.cfg.RootDir != "" {
		failed = append(failed, os.Remove(filepath.Join(r.cfg.RootDir, rel)))
	}
	for _, err := range failed {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.cfg.Log.Warn("Failed to remove a file of a removed container", "container", m.GetName(), "error", err)
		}
	}
}

// logNumber is the attempt of a log file or of a rotated part; for any other file it is
// greater than every attempt.
func logNumber(name string) int {
	n, _, _ := strings.Cut(name, ".log")
	attempt, err := strconv.Atoi(n)
	if err != nil {
		return math.MaxInt
	}
	return attempt
}

// belowLogs returns path relative to PodLogsDir; ok is false if it is not below it.
func (r *Runtime) belowLogs(path string) (rel string, ok bool) {
	rel, ok = strings.CutPrefix(path, r.cfg.PodLogsDir+"/")
	return rel, ok && r.cfg.PodLogsDir != "" && filepath.IsLocal(rel)
}

// removeBelow removes the files whose names doomed accepts from a directory below base. It
// does not follow links out of base.
func removeBelow(base, dir string, doomed func(name string) bool) error {
	root, err := os.OpenRoot(base)
	if err != nil {
		return err
	}
	defer root.Close()
	d, err := root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	for _, name := range names {
		if doomed(name) {
			err = errors.Join(err, root.Remove(filepath.Join(dir, name)))
		}
	}
	return err
}
