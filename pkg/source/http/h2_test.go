package http

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

// h2 is a server with handwritten HTTP/2 frames. After the request it answers connection n,
// from 0, with the n-th of answers, else with the last one.
func h2(t testing.TB, answers ...[]byte) (url, caFile string) {
	t.Helper()
	ca := issue(t, nil, named("ca"))
	caFile = filepath.Join(t.TempDir(), "ca")
	put(t, caFile, ca.certPEM())
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{issue(t, ca, nil).tls()}, NextProtos: []string{"h2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, listener, func(n int, conn net.Conn) {
		if _, err := readFull(conn, 24); err != nil { // the preface
			return
		}
		_, _ = conn.Write(frame(4, 0, 0, nil)) // SETTINGS
		for {
			head, err := readFull(conn, 9)
			if err != nil {
				return
			}
			if _, err := readFull(conn, int(head[0])<<16|int(head[1])<<8|int(head[2])); err != nil {
				return
			}
			if head[3] == 1 { // HEADERS
				break
			}
		}
		_, _ = conn.Write(answers[min(n, len(answers)-1)])
		_, _ = readFull(conn, 1<<20) // until the client hangs up
	})
	return "https://" + listener.Addr().String() + "/", caFile
}

// serve calls answer for every connection until the test ends.
func serve(t testing.TB, listener net.Listener, answer func(n int, conn net.Conn)) {
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(wait.Limit))
			all.Go(func() {
				defer conn.Close()
				answer(n, conn)
			})
		}
	})
	t.Cleanup(func() { listener.Close(); all.Wait() })
}

func readFull(conn net.Conn, n int) ([]byte, error) {
	b := make([]byte, n)
	for at := 0; at < n; {
		m, err := conn.Read(b[at:])
		if at += m; err != nil {
			return nil, err
		}
	}
	return b, nil
}

// frame returns an HTTP/2 frame.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	head := []byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, byte(stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream)}
	return append(head, payload...)
}

func frames(all ...[]byte) (out []byte) {
	for _, f := range all {
		out = append(out, f...)
	}
	return out
}

// Shows: F62
func TestF62_HTTP2(t *testing.T) {
	var (
		ok     = frame(1, 4, 1, []byte{0x88}) // :status 200
		half   = frame(0, 0, 1, []byte("pod evil x"))
		goaway = func(last, code byte) []byte {
			return frame(7, 0, 0, []byte("\x00\x00\x00"+string(last)+"\x00\x00\x00"+string(code)+"hunter2"))
		}
		whole = frames(ok, frame(0, 1, 1, []byte("pod one x")))
		// Eight times "a: xxx…", a little over 8 KiB each, in one block of several frames.
		field     = "\x00\x01a\x7f\xe5\x3f" + strings.Repeat("x", 8292)
		oversized = frames(frame(1, 0, 1, []byte("\x88"+field)), frames(slices.Repeat([][]byte{frame(9, 0, 1, []byte(field))}, 7)...), frame(9, 4, 1, nil))
	)
	for name, c := range map[string]struct {
		first []byte
		want  string
	}{
		"whole":                            {whole, ""},
		"GOAWAY after the answer":          {frames(whole, goaway(1, 0)), ""},
		"GOAWAY before it, not looked at":  {goaway(0, 0), ""}, // asked again at once
		"GOAWAY with an error, unanswered": {goaway(1, 11), "timeout"},
		"reset before the answer":          {frame(3, 0, 1, []byte{0, 0, 0, 2}), "the server ended the answer before it was complete"},
		"reset mid-body":                   {frames(ok, half, frame(3, 0, 1, []byte{0, 0, 0, 2})), "the server ended the answer before it was complete"},
		"GOAWAY mid-body, and nothing":     {frames(ok, half, goaway(1, 2)), "timeout"},
		"silence mid-body":                 {frames(ok, half), "timeout"},
		"a frame too large":                {append([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1}, make([]byte, 100)...), "no valid HTTP answer"},
		"headers too large":                {oversized, "the headers are larger than 64 KiB"},
		"not HTTP/2":                       {[]byte("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhunter2"), "no valid HTTP answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, caFile := h2(t, c.first, whole)
			timeout := 5 * time.Second
			if c.want == "timeout" {
				timeout = 2 * time.Second // of the good answers too
			}
			s, err := New(Config{URL: url, CAFile: caFile, CheckFrequency: often, Timeout: timeout, Parse: parse})
			if err != nil {
				t.Fatal(err)
			}
			l := sourcetest.Listen(t, s)
			if c.want != "" {
				if err := l.Error(); err.Error() != c.want {
					t.Errorf("error %q, want %q", err, c.want)
				}
			}
			l.Set().Holds(t, "one") // a new connection, where the first is no good
		})
	}
}
