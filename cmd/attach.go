package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/ui"
)

// answerTime is how long an agent has to begin its answer.
const answerTime = 10 * time.Second

// agent is a running serve, as its local socket shows it.
type agent struct {
	root string
	web  *http.Client
}

// agent returns the agent of --root-dir, whether there is one or not.
func (p *program) agent() *agent {
	socket := p.socketPath()
	return &agent{root: p.cfg.RootDir, web: &http.Client{
		Transport: &http.Transport{
			DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return server.Dial(ctx, socket) },
			ResponseHeaderTimeout: answerTime,
			DisableCompression:    true,
			DisableKeepAlives:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// get asks for a path and returns the body of the answer. An error is the end of
// a command.
func (a *agent) get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	at := url.URL{Scheme: "http", Host: "nodectl", Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := a.web.Do(r)
	if err != nil {
		return nil, a.unreachable(err)
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	var s metav1.Status
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<16)).Decode(&s); err != nil || s.Message == "" {
		s.Message = answer.Status
	}
	return nil, failed(exitFailure, errors.New("the agent refuses: "+s.Message))
}

// unreachable says why there is no answer, and what to do about it.
func (a *agent) unreachable(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return failed(exitFailure, errors.New("no agent serves "+a.root), "start it with 'nodectl serve'; --root-dir names another one")
	case errors.Is(err, fs.ErrPermission):
		return failed(exitFailure, errors.New("the agent of "+a.root+" answers only its own user"), "run this as root")
	}
	return failed(exitFailure, fmt.Errorf("the agent of %s does not answer: %w", a.root, cause(err)))
}

// cause returns an error without the names that the way to the agent has inside
// this program: they say nothing to a person.
func cause(err error) error {
	if failure, ok := errors.AsType[*url.Error](err); ok {
		err = failure.Err
	}
	if failure, ok := errors.AsType[*net.OpError](err); ok {
		err = failure.Err
	}
	return err
}

// document asks for a document.
func (a *agent) document(ctx context.Context, path string, into any) error {
	body, err := a.get(ctx, path, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return a.unreachable(err)
	}
	return nil
}

// updates follows the agent. The sequence ends when the agent leaves, or has
// sent as many as were asked for, or with ctx; an error is the last word.
func (a *agent) updates(ctx context.Context, s selection) iter.Seq2[ui.PodUpdate, error] {
	return func(yield func(ui.PodUpdate, error) bool) {
		body, err := a.get(ctx, "/v1/updates", s.query())
		if err != nil {
			if ctx.Err() == nil {
				yield(ui.PodUpdate{}, err)
			}
			return
		}
		defer body.Close()
		for in := json.NewDecoder(body); ; {
			var d ui.PodUpdate
			err := in.Decode(&d)
			switch {
			case ctx.Err() != nil, errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(d, failed(exitFailure, fmt.Errorf("lost the agent of %s: %w", a.root, cause(err)),
					"it was killed, or this reader took more than 30 s over a line"))
				return
			}
			if !yield(d, nil) {
				return
			}
		}
	}
}
