package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"sync"
	"time"
)

const (
	// keptWorkers have a connection each, which stays open; freshWorkers open one for each request.
	keptWorkers, freshWorkers = 20, 20
	// answerLimit is how long a request may take.
	answerLimit = 5 * time.Second
	// mostErrors is how many different errors are kept.
	mostErrors = 20
)

// Load sends GET requests to an address at a steady rate, half of them over connections that stay
// open. A request has failed if the client gets an error, or another status than 200. As HTTP
// clients do, a client repeats a GET on a new connection if the server closed the open one before
// it answered.
type Load struct {
	url string

	mu     sync.Mutex // guards the fields below
	window Window
	errors map[string]int
}

// Window is the load since the last call of Take.
type Window struct {
	Kept, Fresh             int // requests
	KeptFailed, FreshFailed int
	Late                    int // requests that were left out, because earlier ones took so long
	Took                    []time.Duration
}

// Failed returns how many requests failed.
func (w Window) Failed() int { return w.KeptFailed + w.FreshFailed }

func newLoad(url string) *Load { return &Load{url: url, errors: map[string]int{}} }

// Run sends rate requests a second until the context ends.
func (l *Load) Run(ctx context.Context, rate int) {
	var wg sync.WaitGroup
	work := func(workers int, kept bool) {
		every := time.Duration(float64(workers) * float64(time.Second) / (float64(rate) / 2))
		for i := range workers {
			first := time.Now().Add(every * time.Duration(i) / time.Duration(workers))
			wg.Go(func() { l.worker(ctx, client(kept), kept, first, every) })
		}
	}
	work(keptWorkers, true)
	work(freshWorkers, false)
	wg.Wait()
}

// client returns a client with connections of its own. One that opens a connection for each
// request resets them when it has the whole answer: none waits in the kernel for a minute.
func client(kept bool) *http.Client {
	dialer := &net.Dialer{Timeout: answerLimit}
	t := &http.Transport{DisableKeepAlives: !kept, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if tcp, ok := c.(*net.TCPConn); ok && !kept {
			err = errors.Join(err, tcp.SetLinger(0))
		}
		return c, err
	}
	return &http.Client{Transport: t, Timeout: answerLimit}
}

// worker sends requests at fixed times. It leaves out those that are more than a second late.
func (l *Load) worker(ctx context.Context, c *http.Client, kept bool, next time.Time, every time.Duration) {
	defer c.CloseIdleConnections()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
		begin := time.Now()
		err := ask(ctx, c, l.url)
		if ctx.Err() != nil {
			return
		}
		late := 0
		for next = next.Add(every); time.Since(next) > time.Second; next = next.Add(every) {
			late++
		}
		l.note(kept, time.Since(begin), late, err)
	}
}

// ask sends one request, and reads the whole answer.
func ask(ctx context.Context, c *http.Client, url string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r, err := c.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}

func (l *Load) note(kept bool, took time.Duration, late int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent, failed := &l.window.Fresh, &l.window.FreshFailed
	if kept {
		sent, failed = &l.window.Kept, &l.window.KeptFailed
	}
	*sent++
	l.window.Late += late
	l.window.Took = append(l.window.Took, took)
	if err == nil {
		return
	}
	*failed++
	if text := errorText(kept, err); l.errors[text] > 0 || len(l.errors) < mostErrors {
		l.errors[text]++
	}
}

// addresses matches the text that differs between two errors of one kind.
var addresses = regexp.MustCompile(`(\d+\.){3}\d+(:\d+)?`)

func errorText(kept bool, err error) string {
	kind := "new connection"
	if kept {
		kind = "kept connection"
	}
	return kind + ": " + addresses.ReplaceAllString(err.Error(), "ADDRESS")
}

// Take returns the load since the last call, and begins again.
func (l *Load) Take() Window {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.window
	l.window = Window{}
	return w
}

// Errors returns the errors so far, with their counts, and begins again.
func (l *Load) Errors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for text, n := range l.errors {
		out = append(out, fmt.Sprintf("%d × %s", n, text))
	}
	l.errors = map[string]int{}
	return out
}
