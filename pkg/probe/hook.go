package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
)

// unbounded stands for no timeout of a hook. The kubelet gives hooks none (C-1.24.1), but runtimes
// require one for a command. It is also the longest sleep of a hook.
const unbounded = 365 * 24 * time.Hour

// Hook runs one lifecycle hook and waits for its end. Only ctx limits how long it takes (C-1.24). An
// error says why the hook failed. It never contains the hook's output, response or headers.
func (p *Prober) Hook(ctx context.Context, r pod.HookRequest) error {
	var err error
	switch h := r.Handler; {
	case h == nil:
		return errors.New("no hook given")
	case h.Exec != nil:
		err = p.executeHook(ctx, r)
	case h.HTTPGet != nil:
		err = p.callHook(ctx, r)
	case h.Sleep != nil:
		err = sleep(ctx, time.Duration(min(h.Sleep.Seconds, int64(unbounded/time.Second)))*time.Second)
	case h.TCPSocket != nil:
		return errors.New("tcpSocket hooks are not supported") // C-1.24.4
	default:
		return errors.New("the hook has no exec, httpGet or sleep")
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("hook canceled: %w", context.Cause(ctx))
	}
	return err
}

// executeHook runs the hook's command in the container, unchanged: exit code 0 is success
// (C-1.24.1).
func (p *Prober) executeHook(ctx context.Context, r pod.HookRequest) error {
	if p.exec == nil {
		return errNoExec
	}
	limit := unbounded
	if end, ok := ctx.Deadline(); ok {
		limit = time.Until(end)
	}
	exit, _, err := p.exec.ExecSync(ctx, r.ContainerID, r.Handler.Exec.Command, limit)
	switch {
	case err != nil:
		return fmt.Errorf("run the hook's command: %w", err)
	case exit != 0:
		return fmt.Errorf("command exited with code %d", exit)
	}
	return nil
}

// callHook sends the hook's GET request. Any response is success, also one with an error status
// (C-1.24.2). If a server answers https with plain HTTP, callHook repeats the request over http,
// without its Authorization header.
func (p *Prober) callHook(ctx context.Context, r pod.HookRequest) error {
	get := r.Handler.HTTPGet
	addr, err := address(r.Container, r.PodIP, get.Host, get.Port)
	if err != nil {
		return err
	}
	req, err := request(ctx, get, addr, p.userAgent("lifecycle"))
	if err != nil {
		return err
	}
	resp, err := do(req, 0)
	if err != nil && plainAnswer(err) {
		req.URL.Scheme = "http"
		req.Header.Del("Authorization")
		if resp, err = do(req, 0); err == nil {
			r.Warn.Report("LifecycleHTTPFallback", fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", req.URL.Host))
		}
	}
	switch {
	case invalidHeader(err):
		return errHeader
	case err != nil:
		return errors.New(httpErrorText(err, "in time"))
	}
	defer resp.Body.Close()
	// A server may work until the client closes the connection. So read the answer up to the
	// limit, and ignore errors.
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	return nil
}

// sleep waits for d, or for the end of ctx (C-1.24.3).
func sleep(ctx context.Context, d time.Duration) error {
	if !backoff.Sleep(ctx, d) {
		return ctx.Err()
	}
	return nil
}
