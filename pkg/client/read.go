package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// mostLine bounds one line of a watch: an object of an API server is at most
// 1.5 MB.
const mostLine = 8 << 20

// Pods returns every pod of the node with its status.
func (c *Client) Pods(ctx context.Context) ([]v1.Pod, error) {
	path := "/v1/pods"
	if !c.Local() {
		path = "/pods"
	}
	var list v1.PodList
	err := c.Document(ctx, path, nil, &list)
	return list.Items, err
}

// Changed is one line of a watch.
type Changed[T any] struct {
	Type   string // ADDED, MODIFIED, DELETED
	Object T
}

// WatchPods yields the pods there are as ADDED, then what changes, until ctx
// ends or the agent leaves; an error is the last word. Of before, pods that the caller
// knows, those that have gone since are DELETED too. A kubelet has no watch: over
// Server it is asked once a second, and pods that are as before are not told.
func (c *Client) WatchPods(ctx context.Context, before []v1.Pod) iter.Seq2[Changed[*v1.Pod], error] {
	if !c.Local() {
		return c.pollPods(ctx, before, time.Second)
	}
	return func(yield func(Changed[*v1.Pod], error) bool) {
		here := map[types.UID]bool{}
		first, begins := []Changed[*v1.Pod]{}, true // what there is; told behind what has gone
		begin := func() bool {
			begins = false
			return !slices.ContainsFunc(first, func(c Changed[*v1.Pod]) bool { return !yield(c, nil) })
		}
		for change, err := range watch[*v1.Pod](ctx, c, "/v1/pods", url.Values{"allowWatchBookmarks": {"true"}}) {
			switch {
			case err != nil:
			case change.Type == "BOOKMARK": // those were all
				for i := range before {
					if gone := &before[i]; !here[gone.UID] && !yield(Changed[*v1.Pod]{"DELETED", gone}, nil) {
						return
					}
				}
				if !begin() {
					return
				}
				continue
			case begins:
				here[change.Object.UID] = true
				first = append(first, change)
				continue
			}
			if begins && !begin() || !yield(change, err) {
				return
			}
		}
		if begins {
			begin()
		}
	}
}

// Events returns the events the agent keeps, oldest first.
func (c *Client) Events(ctx context.Context) ([]v1.Event, error) {
	var list v1.EventList
	err := c.Document(ctx, "/v1/events", nil, &list)
	return list.Items, c.onlyAgents(err, "events")
}

// WatchEvents yields the events there are, then those that happen.
func (c *Client) WatchEvents(ctx context.Context) iter.Seq2[Changed[*v1.Event], error] {
	return watch[*v1.Event](ctx, c, "/v1/events", url.Values{})
}

// Node returns the node as its agent sees it.
func (c *Client) Node(ctx context.Context) (*v1.Node, error) {
	var n v1.Node
	if err := c.onlyAgents(c.Document(ctx, "/v1/node", nil, &n), "the node"); err != nil {
		return nil, err
	}
	return &n, nil
}

// Summary returns what the node and its pods use, as a kubelet tells it.
func (c *Client) Summary(ctx context.Context) (*stats.Summary, error) {
	var s stats.Summary
	if err := c.Document(ctx, "/stats/summary", url.Values{"only_cpu_and_memory": {"true"}}, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// onlyAgents puts into words that a kubelet's server does not know a path.
func (c *Client) onlyAgents(err error, what string) error {
	if !c.Local() && (IsRefused(err, http.StatusNotFound) || IsRefused(err, http.StatusForbidden)) {
		return fmt.Errorf("%s does not tell of %s over TLS: ask the agent on its own machine, or the API server", c.Place(), what)
	}
	return err
}

// LogOptions say which part of a log is wanted, as kubectl logs does.
type LogOptions struct {
	Follow, Previous, Timestamps bool
	Tail                         *int64 // lines; nil is all
	LimitBytes                   *int64
	SinceSeconds                 *int64
	SinceTime                    string // RFC 3339
	Stream                       string // Stdout or Stderr; "" is both
}

// Logs returns the log of a container: with Follow until it ends.
func (c *Client) Logs(ctx context.Context, namespace, name, container string, o LogOptions) (io.ReadCloser, error) {
	q := url.Values{}
	for key, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			q.Set(key, "true")
		}
	}
	for key, n := range map[string]*int64{"tailLines": o.Tail, "limitBytes": o.LimitBytes, "sinceSeconds": o.SinceSeconds} {
		if n != nil {
			q.Set(key, strconv.FormatInt(*n, 10))
		}
	}
	for key, text := range map[string]string{"sinceTime": o.SinceTime, "stream": o.Stream} {
		if text != "" {
			q.Set(key, text)
		}
	}
	return c.Get(ctx, "/containerLogs/"+namespace+"/"+name+"/"+container, q)
}

// Restart has the agent restart a pod's containers: all, or those that are named.
func (c *Client) Restart(ctx context.Context, namespace, name string, containers []string, grace *int64) error {
	q := url.Values{}
	if len(containers) > 0 {
		q["container"] = containers
	}
	if grace != nil {
		q.Set("gracePeriodSeconds", strconv.FormatInt(*grace, 10))
	}
	return c.onlyAgents(c.Post(ctx, "/v1/restart/"+namespace+"/"+name, q), "restarts")
}

// Delete has the agent end a pod. What a source still wants comes back.
func (c *Client) Delete(ctx context.Context, namespace, name, uid string, grace *int64) error {
	q := url.Values{}
	if uid != "" {
		q.Set("uid", uid)
	}
	if grace != nil {
		q.Set("gracePeriodSeconds", strconv.FormatInt(*grace, 10))
	}
	return c.onlyAgents(c.Post(ctx, "/v1/delete/"+namespace+"/"+name, q), "deletions")
}

// watch yields the lines of a stream of watch events.
func watch[T any](ctx context.Context, c *Client, path string, query url.Values) iter.Seq2[Changed[T], error] {
	return func(yield func(Changed[T], error) bool) {
		var none Changed[T]
		query.Set("watch", "true")
		for line, err := range c.Lines(ctx, path, query) {
			if err != nil {
				yield(none, err)
				return
			}
			var it Changed[T]
			if err := json.Unmarshal(line, &it); err != nil {
				yield(none, fmt.Errorf("the agent at %s sent a line that is no JSON: %w", c.Place(), err))
				return
			}
			if !yield(it, nil) {
				return
			}
		}
	}
}

// Lines yields the lines of a stream, until the agent ends it or ctx does; an
// error is the last word. A line may be used until the next.
func (c *Client) Lines(ctx context.Context, path string, query url.Values) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		body, err := c.Get(ctx, path, query)
		if err != nil {
			if ctx.Err() == nil {
				yield(nil, err)
			}
			return
		}
		defer body.Close()
		in := bufio.NewScanner(body)
		in.Buffer(nil, mostLine)
		for in.Scan() {
			if ctx.Err() != nil || !yield(in.Bytes(), nil) {
				return
			}
		}
		if err := in.Err(); err != nil && ctx.Err() == nil {
			yield(nil, &Lost{Place: c.Place(), err: bare(err)})
		}
	}
}

// Lost is the error of a stream that broke off.
type Lost struct {
	Place string
	err   error
}

func (l *Lost) Error() string { return "lost the agent at " + l.Place + ": " + l.err.Error() }

func (l *Lost) Unwrap() error { return l.err }

// pollPods asks for the pods every now and then, and yields what is other than
// before.
func (c *Client) pollPods(ctx context.Context, before []v1.Pod, every time.Duration) iter.Seq2[Changed[*v1.Pod], error] {
	return func(yield func(Changed[*v1.Pod], error) bool) {
		tick := time.NewTicker(every)
		defer tick.Stop()
		seen := map[string]string{}           // by UID: the object as it was
		for range differences(seen, before) { // the caller knows
		}
		for {
			pods, err := c.Pods(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				yield(Changed[*v1.Pod]{}, err)
				return
			}
			for change := range differences(seen, pods) {
				if !yield(change, nil) {
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// differences yields what changed since seen was written, and writes it anew. Of
// a pod that is gone there is its UID and its name.
func differences(seen map[string]string, pods []v1.Pod) iter.Seq[Changed[*v1.Pod]] {
	return func(yield func(Changed[*v1.Pod]) bool) {
		here := map[string]bool{}
		for i := range pods {
			p := &pods[i]
			uid := string(p.UID)
			here[uid] = true
			text, err := json.Marshal(p)
			if err != nil {
				continue // it was made of JSON
			}
			before, known := seen[uid]
			seen[uid] = string(text)
			what := "MODIFIED"
			if !known {
				what = "ADDED"
			}
			if before != string(text) && !yield(Changed[*v1.Pod]{what, p}) {
				return
			}
		}
		for uid, text := range seen {
			if here[uid] {
				continue
			}
			delete(seen, uid)
			var p v1.Pod
			if err := json.Unmarshal([]byte(text), &p); err == nil && !yield(Changed[*v1.Pod]{"DELETED", &p}) {
				return
			}
		}
	}
}

// IsAbsent reports whether err says that no agent is there.
func IsAbsent(err error) bool {
	_, ok := errors.AsType[*Absent](err)
	return ok
}
