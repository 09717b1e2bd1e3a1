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

	"github.com/nodectl/nodectl/pkg/activity"
)

// mostLine is the maximal size of one line of a watch. An object of an API server has at
// most 1.5 MB.
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

// WatchEvent is one line of a watch.
type WatchEvent[T any] struct {
	Type   string // ADDED, MODIFIED, DELETED
	Object T
}

// WatchPods yields the existing pods as ADDED, then each change, until ctx ends or the
// agent leaves; an error comes last. before are pods that the caller knows: it yields
// DELETED first for those that no longer exist. A kubelet has no watch: over Server it
// polls once a second, and yields no unchanged pods.
func (c *Client) WatchPods(ctx context.Context, before []v1.Pod) iter.Seq2[WatchEvent[*v1.Pod], error] {
	if !c.Local() {
		return c.pollPods(ctx, before, time.Second)
	}
	return func(yield func(WatchEvent[*v1.Pod], error) bool) {
		here := map[types.UID]bool{}
		first, begins := []WatchEvent[*v1.Pod]{}, true // existing pods, yielded after the deleted ones
		begin := func() bool {
			begins = false
			return !slices.ContainsFunc(first, func(c WatchEvent[*v1.Pod]) bool { return !yield(c, nil) })
		}
		for change, err := range watch[*v1.Pod](ctx, c, "/v1/pods", url.Values{"allowWatchBookmarks": {"true"}}) {
			switch {
			case err != nil:
			case change.Type == "BOOKMARK": // the list of existing pods is complete
				for i := range before {
					if gone := &before[i]; !here[gone.UID] && !yield(WatchEvent[*v1.Pod]{"DELETED", gone}, nil) {
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

// WatchEvents yields the existing events, then new ones.
func (c *Client) WatchEvents(ctx context.Context) iter.Seq2[WatchEvent[*v1.Event], error] {
	return watch[*v1.Event](ctx, c, "/v1/events", url.Values{})
}

// Why returns the agent's report about the reasons why a pod waits.
func (c *Client) Why(ctx context.Context, namespace, name string) (activity.Report, error) {
	var r activity.Report
	err := c.Document(ctx, "/v1/why/"+namespace+"/"+name, nil, &r)
	return r, c.onlyAgents(err, "why pods wait")
}

// Node returns the agent's Node object.
func (c *Client) Node(ctx context.Context) (*v1.Node, error) {
	var n v1.Node
	if err := c.onlyAgents(c.Document(ctx, "/v1/node", nil, &n), "the node"); err != nil {
		return nil, err
	}
	return &n, nil
}

// Summary returns the usage of the node and its pods, from the kubelet's /stats/summary.
func (c *Client) Summary(ctx context.Context) (*stats.Summary, error) {
	var s stats.Summary
	if err := c.Document(ctx, "/stats/summary", url.Values{"only_cpu_and_memory": {"true"}}, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// onlyAgents explains the error for a route that a kubelet's server does not have.
func (c *Client) onlyAgents(err error, what string) error {
	if !c.Local() && (IsRefused(err, http.StatusNotFound) || IsRefused(err, http.StatusForbidden)) {
		return fmt.Errorf("%s does not serve %s over TLS: ask the agent on its own machine, or the API server", c.Place(), what)
	}
	return err
}

// LogOptions select a part of a log, as for kubectl logs.
type LogOptions struct {
	Follow, Previous, Timestamps bool
	Tail                         *int64 // lines; nil is all
	LimitBytes                   *int64
	SinceSeconds                 *int64
	SinceTime                    string // RFC 3339
	Stream                       string // Stdout or Stderr; "" is both
}

// Logs returns the log of a container, with Follow until the container ends.
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

// Restart restarts a pod's containers: the named ones, or all.
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

// Delete deletes a pod. A pod that is still in a source is created again.
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

// Drain stops all pods of the node, and keeps them stopped; grace is the most seconds that each
// gets.
func (c *Client) Drain(ctx context.Context, grace *int64) error {
	q := url.Values{}
	if grace != nil {
		q.Set("gracePeriodSeconds", strconv.FormatInt(*grace, 10))
	}
	return c.onlyAgents(c.Post(ctx, "/v1/drain", q), "drains")
}

// Undrain lets the pods of a drained node start again.
func (c *Client) Undrain(ctx context.Context) error {
	return c.onlyAgents(c.Post(ctx, "/v1/drain", url.Values{"undo": {"true"}}), "drains")
}

// watch yields the lines of a stream of watch events.
func watch[T any](ctx context.Context, c *Client, path string, query url.Values) iter.Seq2[WatchEvent[T], error] {
	return func(yield func(WatchEvent[T], error) bool) {
		var none WatchEvent[T]
		query.Set("watch", "true")
		for line, err := range c.Lines(ctx, path, query) {
			if err != nil {
				yield(none, err)
				return
			}
			var it WatchEvent[T]
			if err := json.Unmarshal(line, &it); err != nil {
				yield(none, fmt.Errorf("the agent at %s sent a line that is not JSON: %w", c.Place(), err))
				return
			}
			if !yield(it, nil) {
				return
			}
		}
	}
}

// Lines yields the lines of a stream, until the agent or ctx ends it; an error comes
// last. A line is valid until the next one.
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
			yield(nil, &LostError{Place: c.Place(), err: bare(err)})
		}
	}
}

// LostError is the error of a stream that failed.
type LostError struct {
	Place string
	err   error
}

func (l *LostError) Error() string { return "lost the agent at " + l.Place + ": " + l.err.Error() }

func (l *LostError) Unwrap() error { return l.err }

// pollPods reads the pods at an interval, and yields the changes.
func (c *Client) pollPods(ctx context.Context, before []v1.Pod, every time.Duration) iter.Seq2[WatchEvent[*v1.Pod], error] {
	return func(yield func(WatchEvent[*v1.Pod], error) bool) {
		tick := time.NewTicker(every)
		defer tick.Stop()
		seen := map[string]string{}           // by UID: the last JSON of the pod
		for range differences(seen, before) { // fills seen; the caller knows these
		}
		for {
			pods, err := c.Pods(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				yield(WatchEvent[*v1.Pod]{}, err)
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

// differences yields the changes of pods since seen, and updates seen. For a pod that is
// gone it yields the last object.
func differences(seen map[string]string, pods []v1.Pod) iter.Seq[WatchEvent[*v1.Pod]] {
	return func(yield func(WatchEvent[*v1.Pod]) bool) {
		here := map[string]bool{}
		for i := range pods {
			p := &pods[i]
			uid := string(p.UID)
			here[uid] = true
			text, err := json.Marshal(p)
			if err != nil {
				continue // cannot happen: the pod came from JSON
			}
			before, known := seen[uid]
			seen[uid] = string(text)
			what := "MODIFIED"
			if !known {
				what = "ADDED"
			}
			if before != string(text) && !yield(WatchEvent[*v1.Pod]{what, p}) {
				return
			}
		}
		for uid, text := range seen {
			if here[uid] {
				continue
			}
			delete(seen, uid)
			var p v1.Pod
			if err := json.Unmarshal([]byte(text), &p); err == nil && !yield(WatchEvent[*v1.Pod]{"DELETED", &p}) {
				return
			}
		}
	}
}

// IsAbsent reports whether err means that no agent answers.
func IsAbsent(err error) bool {
	_, ok := errors.AsType[*AbsentError](err)
	return ok
}
