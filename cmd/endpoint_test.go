package cmd

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/test/wait"
)

// onlySources shows no pods, and a list of no sources.
type onlySources struct{ otherPods }

type otherPods interface{ server.Pods }

func (onlySources) Sources() ([]byte, error) { return []byte("{}\n"), nil }

func TestClientError_AgentRefuses_HasItsMessage(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("", "endpoint") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	p := newProgram(os.Stdin, os.Stdout, os.Stderr, func(string) string { return "" })
	p.cfg.RootDir = root
	if err := errors.Join(os.Mkdir(filepath.Dir(p.cfg.ListenPath()), 0o700), os.Symlink(p.cfg.ListenPath(), p.cfg.SocketPath())); err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, server.New(server.Config{Socket: p.cfg.ListenPath(), Pods: onlySources{}}).Serve)
	wait.NoError(t, func() error {
		var d any
		return p.agent().Document(t.Context(), "/v1/sources", nil, &d)
	})
	for path, says := range map[string]string{"/v1/nothing": "the agent refused the request: there is no /v1/nothing", "/v1/sources?": "the agent refused"} {
		body, err := p.agent().Get(t.Context(), path, nil)
		err = clientError(err)
		if err == nil {
			_, _ = io.Copy(io.Discard, body)
			_ = body.Close()
		}
		var e *exit
		if !errors.As(err, &e) || e.code != exitFailure || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// runUntilEnd runs f beside the test, until that ends.
func runUntilEnd(t testing.TB, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	})
}
