package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"
)

const (
	// keptWorkers have a connection each, which stays open; freshWorkers open one for each request.
	keptWorkers, freshWorkers = 20, 20
	// answerLimit is how long a request may take.
	answerLimit = 5 * time.Second
	// mostErrors is how many different errors are kept.
	mostErrors = 20
	// slowDial and lastLook are when a connection that does not open is observed in the kernel: after
	// two SYNs at least, and before its dial gives up. mostObserved is how many are kept.
	slowDial, lastLook = 2500 * time.Millisecond, answerLimit - 200*time.Millisecond
	mostObserved       = 10
	// mostBusy is how many sources in a row may belong to other sockets of the machine.
	mostBusy = 100
)

// Load sends GET requests to an address at a steady rate, half of them over connections that stay
// open. A request has failed if the client gets an error, or another status than 200. As HTTP
// clients do, a client repeats a GET on a new connection if the server closed the open one before
// it answered.
type Load struct {
	url  string
	from *sources // of connections
	// watched makes the load observe connections that do not open in the kernel.
	watched bool

	mu       sync.Mutex // guards the fields below
	window   Window
	errors   map[string]int
	observed []string // connections that did not open, or opened late
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

func newLoad(url string, from netip.Prefix) *Load {
	return &Load{url: url, from: &sources{addrs: from}, errors: map[string]int{}}
}

// Run sends rate requests a second until the context ends.
func (l *Load) Run(ctx context.Context, rate int) {
	var wg sync.WaitGroup
	work := func(workers int, kept bool) {
		every := time.Duration(float64(workers) * float64(time.Second) / (float64(rate) / 2))
		for i := range workers {
			first := time.Now().Add(every * time.Duration(i) / time.Duration(workers))
			wg.Go(func() { l.worker(ctx, l.client(kept), kept, first, every) })
		}
	}
	work(keptWorkers, true)
	work(freshWorkers, false)
	wg.Wait()
}

// client returns a client with connections of its own. One that opens a connection for each
// request resets them when it has the whole answer: none waits in the kernel for a minute.
func (l *Load) client(kept bool) *http.Client {
	t := &http.Transport{DisableKeepAlives: !kept, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := l.dial(ctx, network, address)
		if tcp, ok := c.(*net.TCPConn); ok && !kept {
			err = errors.Join(err, tcp.SetLinger(0))
		}
		return c, err
	}
	return &http.Client{Transport: t, Timeout: answerLimit}
}

// dial opens a connection from the next source that no other socket of the machine has.
func (l *Load) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	for range mostBusy {
		from := l.from.next()
		dialer := &net.Dialer{Timeout: answerLimit, LocalAddr: net.TCPAddrFromAddrPort(from)}
		begin, ended := time.Now(), make(chan error, 1)
		slow := time.AfterFunc(slowDial, func() {
			if l.watched {
				l.watch(from, begin, ended)
			}
		})
		c, err = dialer.DialContext(ctx, network, address)
		slow.Stop()
		ended <- err
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break
		}
	}
	return c, err
}

// watch observes a connection that does not open: now, and when its dial ends, or shortly before it
// gives up. In between it collects the packets of the connection on the node and at the endpoint.
func (l *Load) watch(from netip.AddrPort, begin time.Time, ended <-chan error) {
	onNode := capture("/proc/self/ns/net", begin, from)
	early := observe(from, begin)
	atEndpoint := func() []string { return nil }
	if early.process != "" {
		atEndpoint = capture(filepath.Join(early.process, "ns/net"), begin, early.entry.client)
	}
	last := time.NewTimer(time.Until(begin.Add(lastLook)))
	defer last.Stop()
	outcome := "not open"
	select {
	case <-last.C:
	case err := <-ended:
		outcome = "opened late"
		if err != nil {
			outcome = err.Error()
		}
	}
	text := describe(from, outcome, early, observe(from, begin)) +
		fmt.Sprintf("; packets on the node: %q; at the endpoint: %q", onNode(), atEndpoint())
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.observed) < mostObserved {
		l.observed = append(l.observed, text)
	}
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

// Errors returns the errors so far, with their counts, and the observed connections, and begins
// again.
func (l *Load) Errors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for text, n := range l.errors {
		out = append(out, fmt.Sprintf("%d × %s", n, text))
	}
	out = append(out, l.observed...)
	l.errors, l.observed = map[string]int{}, nil
	return out
}
