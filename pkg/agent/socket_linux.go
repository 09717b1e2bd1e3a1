package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/ui"
)

// openRun makes the run directory, the socket's directory below it, and the links to the socket.
func openRun(cfg config.Config) error {
	run, dir := cfg.Run(), filepath.Dir(cfg.ListenPath())
	if err := os.MkdirAll(run, 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	switch info, err := os.Lstat(dir); {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("make directory of the local socket: %s is not a directory", dir)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	if err := linkSocket(cfg.SocketPath(), filepath.Join("agent", "nodectl.sock")); err != nil {
		return err
	}
	if cfg.RootDir == run {
		return nil
	}
	return linkSocket(filepath.Join(cfg.RootDir, "nodectl.sock"), cfg.ListenPath())
}

// linkSocket makes path a link to an agent's socket. It replaces a link, and the socket of an agent
// that has ended. It returns an error for any other file.
func linkSocket(path, to string) error {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode().Type() == fs.ModeSymlink:
		if was, err := os.Readlink(path); err == nil && was == to {
			return nil
		}
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("link socket: %s is not a socket", path)
	default:
		if c, err := server.Dial(context.Background(), path); err == nil {
			_ = c.Close()
			return &server.InUseError{Path: path}
		}
	}
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(to, next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// feedConfig returns the part of the local server's configuration that shows the feed.
func feedConfig(cfg Config, live *feed.Live) server.Config {
	return server.Config{Socket: cfg.ListenPath(), Pods: podAnswers{live}, PodsRead: live.PodsObserved(), Log: cfg.Log}
}

// podAnswers implements server.Pods.
type podAnswers struct{ *feed.Live }

// Pod implements server.Pods.
func (s podAnswers) Pod(namespace, name string) *v1.Pod {
	found, _ := s.Live.Pod(pod.Key{Namespace: namespace, Name: name})
	return found
}

// Sources implements server.Pods.
func (s podAnswers) Sources() ([]byte, error) {
	text, err := ui.JSON(ui.NewSourceList(s.Live.Sources()))
	return []byte(text), err
}

// Updates implements server.Pods: the updates that a query selects, in the form of watch -o json.
func (s podAnswers) Updates(ctx context.Context, q url.Values) (iter.Seq2[[]byte, error], error) {
	selected, err := ui.ParseSelection(q)
	if err != nil {
		return nil, &server.StatusError{Code: http.StatusBadRequest, Message: err.Error()}
	}
	return func(yield func([]byte, error) bool) {
		for d := range selected.Documents(s.Watch(ctx, feed.WatchOptions{Mode: selected.Mode})) {
			line, err := ui.JSONLine(d)
			if !yield([]byte(line), err) || err != nil {
				return
			}
		}
	}, nil
}
