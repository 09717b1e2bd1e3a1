package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// FuzzHTTP serves arbitrary bytes as an answer, after a good one, to the real
// client and the real parser.
func FuzzHTTP(f *testing.F) {
	answer := func(header, body string) []byte {
		return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s", header, len(body), body)
	}
	f.Add(answer("", one("a", "i")))
	f.Add(answer("ETag: \"x\"\r\n", list(one("a", "i"), one("b", "i"))))
	f.Add(answer("", "apiVersion: v1\nkind: List\nitems: []\n"))
	f.Add(answer("", `{"apiVersion":"v1","kind":"PodList","items":[]}`))
	f.Add(answer("Content-Encoding: gzip\r\n", "\x1f\x8b\x08"))
	f.Add(answer("", ""))
	f.Add(answer("", "--- \n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nitems\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 302 Found\r\nLocation: //elsewhere/\r\nContent-Length: 0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 304 Not Modified\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 200\r\n\r\n# nothing"))
	f.Add([]byte("HTTP/2.0 999 \r\nA:\r\n\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		synctest.Test(t, func(t *testing.T) { // no good answer is late
			replies := [][]byte{answer("Connection: close\r\n", one("first", "i")), raw}
			var parsed []byte
			transport := ownTransport(nil)
			transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				reply := replies[0]
				replies = append(replies[1:], replies[0])
				client, server := net.Pipe()
				go func() { // ends with the connection, which both sides close
					defer server.Close()
					_ = server.SetDeadline(time.Now().Add(time.Second))
					request(server)
					_, _ = server.Write(reply)
				}()
				return client, nil
			}
			defer transport.CloseIdleConnections()
			s, err := New(Config{URL: "http://cfg/", Insecure: true, Timeout: 250 * time.Millisecond, Client: &nethttp.Client{Transport: transport}, Parse: func(data []byte, file string) (source.File, []pod.Problem) {
				parsed = slices.Clone(data)
				return realParse(data, file)
			}})
			if err != nil {
				t.Fatal(err)
			}
			p := &poller{Source: s, pace: pacer{poll: time.Second}}
			if err := p.poll(t.Context()); err != nil {
				t.Fatalf("the good answer: %v", err)
			}
			before := p.set.Snapshot().Files.At(0)
			parsed = nil
			if err := p.poll(t.Context()); err != nil {
				if text := err.Error(); strings.Contains(text, "\n") || len(text) > 300 {
					t.Errorf("the error is no short sentence: %q", text)
				}
				if errors.Is(err, io.EOF) && parsed != nil {
					t.Error("half an answer was parsed")
				}
			}
			after := p.set.Snapshot().Files.At(0)
			if parsed == nil && (len(after.Pods) != 1 || after.Pods[0] != before.Pods[0]) {
				t.Error("no answer, and another set")
			}
			empty := !after.Incomplete && len(after.Pods)+len(after.Objects)+len(after.Problems)+len(after.Broken) == 0
			if empty && !bytes.Contains(parsed, []byte("List")) && !bytes.Contains(parsed, []byte(`\`)) {
				t.Errorf("an empty set from %q", parsed)
			}
		})
	})
}
