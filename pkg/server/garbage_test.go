package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/wait"
)

// TestUpgrade_AnyData_AgentStillAnswers: any data of an authorized caller in a stream leaves the
// agent alive and able to answer the next request. The agent still stops in time: a caller
// that left before all streams were open does not delay it for long.
//
// Shows: D1
func TestUpgrade_AnyData_AgentStillAnswers(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	const exec, forward = "/exec/ns/p/c?command=cat&input=1&output=1&error=1", "/portForward/ns/p"
	webSocket := "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: %s\r\n"
	spdy := "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: %s\r\n"
	frame := func(op byte, payload []byte) []byte { // masked with zeros
		head := []byte{0x80 | op, 0x80 | 126, byte(len(payload) >> 8), byte(len(payload))}
		return append(append(head, 0, 0, 0, 0), payload...)
	}
	control := func(kind byte, payload []byte) []byte {
		return append([]byte{0x80, 3, 0, kind, 0, 0, byte(len(payload) >> 8), byte(len(payload))}, payload...)
	}
	random := rand.New(rand.NewPCG(6, 40))
	noise := func() []byte {
		b := make([]byte, 1+random.IntN(64))
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		if random.IntN(3) == 0 { // small numbers
			for i := range b {
				b[i] &= 7
			}
		}
		return b
	}
	for _, c := range []struct{ path, header, protocol string }{
		{exec, webSocket, "v5.channel.k8s.io"}, {exec, webSocket, "v4.channel.k8s.io"}, {exec + "&tty=1", webSocket, "base64.channel.k8s.io"},
		{exec, spdy, "v4.channel.k8s.io"}, {exec, spdy, "channel.k8s.io"}, {forward, spdy, "portforward.k8s.io"},
		{forward + "?port=80", webSocket, "v4.channel.k8s.io"}, {forward, webSocket, "SPDY/3.1+portforward.k8s.io"},
	} {
		for range garbage {
			conn := l.secure(t, "admin")
			_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: n\r\n"+c.header+"\r\n", c.path, c.protocol)
			in := bufio.NewReader(conn)
			line, err := in.ReadString('\n')
			if err != nil || !strings.Contains(line, " 101 ") {
				t.Fatalf("%s %s: %q, %v", c.path, c.protocol, line, err)
			}
			var sent []byte
			for range random.IntN(6) {
				switch payload := noise(); random.IntN(4) {
				case 0:
					sent = append(sent, payload...)
				case 1:
					sent = append(sent, frame(byte(random.IntN(11)), payload)...)
				case 2:
					sent = append(sent, control(byte(random.IntN(10)), payload)...)
				case 3:
					sent = append(sent, frame(2, control(byte(random.IntN(10)), payload))...)
				}
			}
			_, _ = conn.Write(sent)
			_ = conn.CloseWrite()
			_ = conn.SetReadDeadline(time.Now().Add(wait.Limit))
			if _, err := io.Copy(io.Discard, in); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s %s: its connection is kept", c.path, c.protocol)
			}
			_ = conn.Close()
		}
	}
	if code, text, _ := l.fetch(t, l.web(t, "admin"), http.MethodGet, "/healthz", nil); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
}

// garbage is how much of it there is of each kind.
const garbage = 5
