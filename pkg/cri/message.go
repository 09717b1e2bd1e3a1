package cri

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// maxMessageBytes is how much of a termination message is read (C-1.26.11).
const maxMessageBytes = 4096

// messagePath is the file for the termination message of one attempt of a container, below
// RootDir; "" if a name could lead elsewhere.
func messagePath(uid, container string, attempt uint32) string {
	path := filepath.Join("pods", uid, "containers", container, strconv.Itoa(int(attempt)))
	if uid == "" || container == "" || strings.Count(path, "/") != 4 || !filepath.IsLocal(path) {
		return ""
	}
	return path
}

// messageMount makes the file for the termination message of an attempt and returns its
// mount, nil if the container has none. A failure does not stop the container: it runs
// without one, as in the kubelet.
func (r *Runtime) messageMount(q pod.CreateRequest, c *v1.Container) *runtimeapi.Mount {
	rel := messagePath(q.Want.UID(), c.Name, q.Attempt)
	if r.cfg.RootDir == "" || c.TerminationMessagePath == "" || rel == "" {
		return nil
	}
	path := filepath.Join(r.cfg.RootDir, rel)
	if err := newMessageFile(path); err != nil {
		r.cfg.Log.Warn("Failed to create termination message file", "pod", q.Want.Key.String(), "container", c.Name, "error", err)
		return nil
	}
	return &runtimeapi.Mount{
		HostPath: path, ContainerPath: c.TerminationMessagePath, SelinuxRelabel: r.node.selinux,
		UidMappings: mappings(q.Place.Users), GidMappings: mappings(q.Place.Users),
	}
}

// newMessageFile makes an empty file that every user may write; the directories above it
// keep the host's users out. It replaces a file from an earlier try.
func newMessageFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o666), f.Close()) // whatever the umask
}

// message is the status message of an exited container: the runtime's and the container's
// own (C-1.26.11).
func (r *Runtime) message(s *runtimeapi.ContainerStatus) string {
	said, own := plain(s.GetMessage()), r.ownMessage(s)
	if said != "" && own != "" {
		return said + ": " + own
	}
	return said + own
}

func (r *Runtime) ownMessage(s *runtimeapi.ContainerStatus) string {
	text, err := r.messageFile(s)
	if err != nil {
		return fmt.Sprintf("Error on reading termination log: %v", err)
	}
	notes := s.GetAnnotations()
	if text == "" && s.GetExitCode() != 0 && notes[pod.AnnotationTerminationPolicy] == string(v1.TerminationMessageFallbackToLogsOnError) {
		// If the log cannot be read, the runtime's message is still returned.
		text, _ = r.logTail(s.GetLogPath())
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// messageFile reads the end of the file that CreateContainer mounted for the message. It
// opens only that file: another mount at the same path holds no message.
func (r *Runtime) messageFile(s *runtimeapi.ContainerStatus) (string, error) {
	rel := messagePath(s.GetLabels()[pod.LabelPodUID], s.GetMetadata().GetName(), s.GetMetadata().GetAttempt())
	at := s.GetAnnotations()[pod.AnnotationTerminationPath]
	if r.cfg.RootDir == "" || at == "" || rel == "" {
		return "", nil
	}
	for _, m := range s.GetMounts() {
		if m.GetContainerPath() != at || m.GetHostPath() != filepath.Join(r.cfg.RootDir, rel) {
			continue
		}
		text, _, err := tail(r.cfg.RootDir, rel, maxMessageBytes)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return string(text), err
	}
	return "", nil
}

// tail reads at most the last n bytes of the regular file rel below dir; whole says that
// this is all of it. Below dir no link is followed.
func tail(dir, rel string, n int64) (text []byte, whole bool, err error) {
	f, err := openBelow(dir, rel)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s is not a regular file", f.Name())
	}
	from := max(info.Size()-n, 0)
	text, err = io.ReadAll(io.NewSectionReader(f, from, n))
	return text, from == 0, err
}

// openBelow opens rel, which is local, below dir for reading. It follows no link and does
// not block on a pipe.
func openBelow(dir, rel string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	at := dir
	names := strings.Split(filepath.Clean(rel), "/")
	for i, name := range names {
		if err != nil {
			break
		}
		flags := unix.O_PATH | unix.O_DIRECTORY
		if i == len(names)-1 {
			flags = unix.O_RDONLY | unix.O_NONBLOCK
		}
		parent := fd
		at = filepath.Join(at, name)
		fd, err = unix.Openat(parent, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(parent)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: at, Err: err}
	}
	return os.NewFile(uintptr(fd), at), nil
}
