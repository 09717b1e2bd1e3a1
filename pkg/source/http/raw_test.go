package http

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

// request reads the head of a request.
func request(conn net.Conn) {
	var got []byte
	b := make([]byte, 4096)
	for !bytes.HasSuffix(got, []byte("\r\n\r\n")) {
		n, err := conn.Read(b)
		if got = append(got, b[:n]...); err != nil {
			return
		}
	}
}

// Servers whose very bytes are wrong, between good answers.
//
// Shows: F62
func TestF62_RawAnswers(t *testing.T) {
	const good = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\npod one x"
	// trickle writes text again and again until the other side has enough.
	trickle := func(head, text string) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = io.WriteString(conn, head)
			for {
				if _, err := io.WriteString(conn, text); err != nil {
					return
				}
				<-time.After(20 * time.Millisecond) // a trailer may not be longer than 4 KiB
			}
		}
	}
	says := func(text string) func(net.Conn) {
		return func(conn net.Conn) { _, _ = io.WriteString(conn, text) }
	}
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, c := range map[string]struct {
		answer func(net.Conn)
		want   string
	}{
		"hangs up":                {func(net.Conn) {}, "connection closed before the answer was complete"},
		"headers too large":       {says(ok + "X: " + strings.Repeat("hunter2", 20_000) + "\r\n\r\n"), "the headers are larger than 64 KiB"},
		"too many headers":        {says(ok + strings.Repeat("X: hunter2\r\n", 20_000) + "\r\n"), "the headers are larger than 64 KiB"},
		"headers without end":     {trickle(ok, "X: hunter2\r\n"), "timeout"},
		"informs without end":     {trickle("", "HTTP/1.1 103 Early Hints\r\nX: hunter2\r\n\r\n"), "timeout"},
		"a line without end":      {trickle(ok+"X: ", "x"), "timeout"},
		"a status of its own":     {says("HTTP/1.1 hunter2\r\n\r\n"), "no valid HTTP answer"},
		"two lengths":             {says(ok + "Content-Length: 9\r\nContent-Length: 10\r\n\r\npod one x"), "no valid HTTP answer"},
		"a negative length":       {says(ok + "Content-Length: -9\r\n\r\npod one x"), "no valid HTTP answer"},
		"a chunk of size hunter2": {says(ok + "Transfer-Encoding: chunked\r\n\r\nhunter2\r\n"), "no valid HTTP answer"},
		"chunks cut off":          {says(ok + "Transfer-Encoding: chunked\r\n\r\n9\r\npod evil \r\n"), "connection closed before the answer was complete"},
		"a chunk too long":        {says(ok + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"), "no valid HTTP answer"},
		"chunks trickle":          {trickle(ok+"Transfer-Encoding: chunked\r\n\r\n", "1\r\n#\r\n"), "timeout"},
		"trailers without end":    {trickle(ok+"Transfer-Encoding: chunked\r\n\r\n9\r\npod evil \r\n0\r\n", "X: hunter2\r\n"), "timeout"},
		"a length trickles":       {trickle(ok+"Content-Length: 1000000\r\n\r\n", "#"), "timeout"},
		"a lie about compression": {says(ok + "Content-Encoding: gzip\r\nContent-Length: 20\r\n\r\npod one x # hunter2\n"), "no valid HTTP answer"},
		"half a compression": {says(ok + "Content-Encoding: gzip\r\nConnection: close\r\n\r\n\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"),
			"connection closed before the answer was complete"},
		"a redirect to nowhere":  {says("HTTP/1.1 302 Found\r\nLocation: http://%zz/hunter2\r\nContent-Length: 0\r\n\r\n"), "no valid HTTP answer"},
		"a redirect elsewhere":   {says("HTTP/1.1 302 Found\r\nLocation: http://" + strings.Repeat("x", 300) + "/\r\nContent-Length: 0\r\n\r\n"), "redirect to another origin refused: (not shown)"},
		"a redirect to no place": {says("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"), "HTTP 302"},
		"another protocol":       {says("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"), "HTTP 101"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var faulty atomic.Bool
			serve(t, listener, func(_ int, conn net.Conn) {
				request(conn)
				if faulty.Load() {
					c.answer(conn)
					return
				}
				_, _ = io.WriteString(conn, good)
			})
			timeout := 5 * time.Second
			if c.want == "timeout" {
				timeout = 2 * time.Second // of the good answers too
			}
			s, err := New(Config{URL: "http://" + listener.Addr().String(), CheckFrequency: often, Timeout: timeout, Parse: parse})
			if err != nil {
				t.Fatal(err)
			}
			l := sourcetest.Listen(t, s)
			first := firstSet(t, l)
			first.Holds(t, "one")
			faulty.Store(true)
			if err := l.Error(); err.Error() != c.want {
				t.Errorf("error %q, want %q", err, c.want)
			}
			faulty.Store(false)
			w := l.Set()
			w.Names(t)
			if w.Pod("one") != first.Pod("one") {
				t.Error("the pod is another pointer")
			}
		})
	}
}

// An answer just within the limits is read.
func TestLimitsAreNotBelowWhatTheySay(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	body := "pod one x\n" + strings.Repeat("#\n", (BodyLimit-10)/2)
	serve(t, listener, func(_ int, conn net.Conn) {
		request(conn)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", HeaderLimit-1000)+"\r\nConnection: close\r\n\r\n"+body)
	})
	s, err := New(Config{URL: "http://" + listener.Addr().String(), Parse: parse})
	if err != nil {
		t.Fatal(err)
	}
	sourcetest.Listen(t, s).Set().Holds(t, "one")
}

// A body that ends with the connection may be truncated: the source accepts the loss of
// a pod when it reads the same body twice.
//
// Shows: F62
func TestF62_AnswerWithoutALengthIsAskedForTwice(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bodies := []string{"pod one x\npod two x\n", "pod one x\n", "pod one x\npod two x\n", "pod one x\n"}
	serve(t, listener, func(n int, conn net.Conn) {
		request(conn)
		_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\n"+bodies[min(n, len(bodies)-1)])
	})
	s, err := New(Config{URL: "http://" + listener.Addr().String(), CheckFrequency: often, Parse: parse})
	if err != nil {
		t.Fatal(err)
	}
	const doubt = "the answer states no length and lacks pods of the last one; requesting it again"
	l := sourcetest.Listen(t, s)
	l.Set().Holds(t, "one", "two")
	if err := l.Error(); err.Error() != doubt {
		t.Errorf("cut off: error %q", err)
	}
	w := l.Set() // it was whole the next time
	w.Holds(t, "one", "two")
	w.Names(t)
	if err := l.Error(); err.Error() != doubt {
		t.Errorf("shorter: error %q", err)
	}
	l.Set().Holds(t, "one") // and said it again
}
