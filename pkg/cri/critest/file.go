package critest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// openLog makes the container's log file with text in it in CRI's format, at a start or a
// reopening. Without a log directory it does nothing. The caller holds the mutex.
func (c *container) openLog(text string) error {
	dir, file := c.sandbox.GetLogDirectory(), c.config.GetLogPath()
	if dir == "" || file == "" {
		return nil
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	path := filepath.Join(dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		if _, err = fmt.Fprintf(f, "%s stdout F %s\n", time.Now().Format(time.RFC3339Nano), strings.TrimSuffix(line, "\n")); err != nil {
			break
		}
	}
	return errors.Join(err, f.Close())
}

// leave writes the container's termination message to the file mounted for it. The caller
// holds the mutex.
func (c *container) leave(text string) {
	at := c.config.GetAnnotations()[pod.AnnotationTerminationPath]
	if text == "" || at == "" {
		return
	}
	for _, m := range c.config.GetMounts() {
		if m.GetContainerPath() != at {
			continue
		}
		// The file may have been removed with its pod's directory.
		if f, err := os.OpenFile(m.GetHostPath(), os.O_WRONLY|os.O_TRUNC, 0); err == nil {
			_, _ = f.WriteString(text)
			_ = f.Close()
		}
	}
}
