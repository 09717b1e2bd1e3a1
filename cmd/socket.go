package cmd

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/ui"
)

// socketPath is where an agent answers.
func (p *program) socketPath() string { return filepath.Join(p.cfg.Run(), "nodectl.sock") }

// documents answers on the local socket with what an engine shows.
func (p *program) documents(live *engine.Live, log *slog.Logger) server.Config {
	return server.Config{
		Socket: p.socketPath(),
		Updates: func(ctx context.Context, q url.Values) (iter.Seq2[[]byte, error], error) {
			return updateLines(ctx, live, q)
		},
		Sources: func() ([]byte, error) { return jsonBytes(ui.NewSourceList(live.Sources())) },
		Pods:    live.Pods,
		Pod: func(namespace, name string) *v1.Pod {
			found, _ := live.Pod(pod.Key{Namespace: namespace, Name: name})
			return found
		},
		WatchPods: live.WatchPods, Known: live.Looked(),
		Log: log,
	}
}

// updateLines returns the updates that a query asks for, as watch -o json prints
// them.
func updateLines(ctx context.Context, live *engine.Live, q url.Values) (iter.Seq2[[]byte, error], error) {
	s, err := selectionOf(q)
	if err != nil {
		return nil, &server.Refusal{Code: http.StatusBadRequest, Message: err.Error()}
	}
	return func(yield func([]byte, error) bool) {
		for d := range s.documents(live.Watch(ctx, engine.WatchOptions{Mode: s.mode})) {
			line, err := ui.JSONLine(d)
			if !yield([]byte(line), err) || err != nil {
				return
			}
		}
	}, nil
}

func jsonBytes(v any) ([]byte, error) {
	text, err := ui.JSON(v)
	return []byte(text), err
}
