package client_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/client"
)

// TestC_1_40_ExecOverTheSocket: streams, exit codes and refusals, by WebSocket, and by
// SPDY if the server refuses that.
//
// Shows: C-1.40
func TestC_1_40_ExecOverTheSocket(t *testing.T) {
	t.Parallel()
	for _, c := range []*client.Client{agent(t, &node{}), local(t, &node{})} {
		var out, errOut bytes.Buffer
		err := c.Exec(t.Context(), "default", "web-n1", "c", []string{"sh", "-c", "cat; echo oops >&2; exit 7"}, client.Streams{Stdin: strings.NewReader(strings.Repeat("x", 1<<20)), Stdout: &out, Stderr: &errOut})
		var ended *client.ExitError
		if !errors.As(err, &ended) || ended.Code != 7 {
			t.Errorf("ended with %v, want code 7", err)
		}
		if out.Len() != 1<<20 || errOut.String() != "oops\n" {
			t.Errorf("wrote %d bytes, and %q", out.Len(), errOut.String())
		}
		if err := c.Exec(t.Context(), "default", "web-n1", "c", []string{"true"}, client.Streams{Stdout: io.Discard}); err != nil {
			t.Error(err)
		}
		err = c.Exec(t.Context(), "default", "missing", "c", []string{"true"}, client.Streams{Stdout: io.Discard})
		var no *client.RefusedError
		if !errors.As(err, &no) || !strings.HasPrefix(no.Message, "pod ") || !strings.HasSuffix(no.Message, " does not exist") {
			t.Errorf("of a pod that is not there: %v", err)
		}
	}
}

// TestC_1_40_ATerminalHasItsSize: the client sends the size before the first byte.
//
// Shows: C-1.40
func TestC_1_40_ATerminalHasItsSize(t *testing.T) {
	t.Parallel()
	n := &node{sizes: make(chan remotecommand.TerminalSize, 1)}
	sizes := make(chan client.Size, 1)
	sizes <- client.Size{Width: 80, Height: 24}
	close(sizes)
	err := agent(t, n).Exec(t.Context(), "default", "web-n1", "c", []string{"cat"}, client.Streams{Stdin: strings.NewReader("x"), Stdout: io.Discard, Stderr: io.Discard, TTY: true, Resize: sizes})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-n.sizes; got.Width != 80 || got.Height != 24 {
		t.Errorf("a terminal of %dx%d", got.Width, got.Height)
	}
}

func TestAttachPassesBothWays(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := agent(t, &node{}).Attach(t.Context(), "default", "web-n1", "c", client.Streams{Stdin: strings.NewReader("hello"), Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if out.String() != "hello" {
		t.Errorf("got %q", out.String())
	}
}

// TestForwardTakesConnectionsToThePod: Forward finds a free local port, forwards several
// connections, and ends with its context.
func TestForwardTakesConnectionsToThePod(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "from the pod") }))
	defer web.Close()
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- agent(t, &node{}).Forward(ctx, "default", "web-n1", []string{"127.0.0.1"}, []string{"0:" + port}, w, io.Discard)
		_ = w.Close()
	}()
	line := make([]byte, 200)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	_, rest, _ := strings.Cut(string(line[:n]), "Forwarding from ")
	address, _, _ := strings.Cut(rest, " ")
	for range 3 {
		answer, err := http.Get("http://" + address)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if string(text) != "from the pod" {
			t.Errorf("got %q", text)
		}
	}
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestAnAgentThatIsNotThere: the error has the address, and that no agent answers.
func TestAnAgentThatIsNotThere(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "none")
	c := at(t, socket)
	_, asked := c.Pods(t.Context())
	run := c.Exec(t.Context(), "default", "web", "c", []string{"true"}, client.Streams{Stdout: io.Discard})
	ported := c.Forward(t.Context(), "default", "web", []string{"127.0.0.1"}, []string{"0:80"}, io.Discard, io.Discard)
	for what, err := range map[string]error{"pods": asked, "exec": run} {
		var absent *client.AbsentError
		if !errors.As(err, &absent) || !absent.Local || err.Error() != "no agent answers at "+socket {
			t.Errorf("%s: %v", what, err)
		}
	}
	if ported == nil {
		t.Error("no port was forwarded")
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	c := local(t, &node{})
	_, err := c.Get(t.Context(), "/v1/teapot", nil)
	if !client.IsRefused(err, http.StatusTeapot) || err.Error() != "short and stout?" {
		t.Errorf("%v", err)
	}
	grace := int64(3)
	if err := c.Restart(t.Context(), "default", "web-n1", []string{"c"}, &grace); err != nil {
		t.Error(err)
	}
	var changes []string
	for change, err := range c.WatchPods(t.Context(), []v1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "web-n1", UID: "u1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "gone", UID: "u0"}}}) {
		if err != nil {
			t.Fatal(err)
		}
		changes = append(changes, change.Type+" "+change.Object.Name)
	}
	if !slices.Equal(changes, []string{"DELETED gone", "ADDED web-n1", "DELETED web-n1"}) {
		t.Errorf("%q", changes)
	}
	broken := 0
	for _, err := range c.Lines(t.Context(), "/v1/pods", map[string][]string{"watch": {"true"}, "break": {"1"}}) {
		var lost *client.LostError
		if errors.As(err, &lost) {
			broken++
		}
	}
	if broken != 1 {
		t.Errorf("a stream that broke off yielded %d errors", broken)
	}
}

// TestD2_ServerIsVerified: the client refuses a certificate of an unknown authority, and
// sends a token over TLS only.
//
// Shows: D2
func TestD2_ServerIsVerified(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(&node{})
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca"), filepath.Join(dir, "token")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := errors.Join(os.WriteFile(ca, data, 0o600), os.WriteFile(token, []byte("sesame"), 0o600)); err != nil {
		t.Fatal(err)
	}
	stranger, err := client.New(client.Config{Server: s.URL, TokenFile: token})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server with an unknown authority: %v", err)
	}
	if _, err := client.New(client.Config{Server: strings.Replace(s.URL, "https", "http", 1), TokenFile: token}); err == nil {
		t.Error("a server without TLS is taken")
	}
	known, err := client.New(client.Config{Server: s.URL, CertificateAuthority: ca, TokenFile: token})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := known.Pods(t.Context())
	if err != nil || len(pods) != 1 {
		t.Errorf("%d pods, %v", len(pods), err)
	}
	var out bytes.Buffer
	if err := known.Exec(t.Context(), "default", "web-n1", "c", []string{"echo", "over TLS"}, client.Streams{Stdout: &out}); err != nil || out.String() != "over TLS\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := os.WriteFile(token, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := client.New(client.Config{Server: s.URL, CertificateAuthority: ca, TokenFile: token})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Pods(t.Context()); !client.IsRefused(err, http.StatusUnauthorized) {
		t.Errorf("with a wrong token: %v", err)
	}
}

// TestD1_CVE_2020_8559_NoTokenGoesElsewhere: no request follows a redirect, since the token
// would go along.
//
// Shows: D1
func TestD1_CVE_2020_8559_NoTokenGoesElsewhere(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusTeapot)
	}))
	defer other.Close()
	for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.Path, code)
		}))
		defer s.Close()
		dir := t.TempDir()
		ca, token := filepath.Join(dir, "ca"), filepath.Join(dir, "token")
		data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
		if err := errors.Join(os.WriteFile(ca, data, 0o600), os.WriteFile(token, []byte("sesame"), 0o600)); err != nil {
			t.Fatal(err)
		}
		c, err := client.New(client.Config{Server: s.URL, CertificateAuthority: ca, TokenFile: token})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Pods(t.Context()); err == nil {
			t.Errorf("%d: pods come from elsewhere", code)
		}
		if err := c.Exec(t.Context(), "default", "p", "c", []string{"true"}, client.Streams{Stdout: io.Discard}); err == nil {
			t.Errorf("%d: exec", code)
		}
		if err := c.Forward(t.Context(), "default", "p", []string{"localhost"}, []string{":80"}, io.Discard, io.Discard); err == nil {
			t.Errorf("%d: port-forward", code)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

// entry is an entry of a container's tar.
type entry struct {
	name, link, text string
	kind             byte
}

func tarOf(t *testing.T, entries []entry) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: 0o4755, Size: int64(len(e.text))}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestD1_CVE_2019_1002101_11246_11249_11251_ATarWritesNowhereElse: no tar of a container
// makes Unpack write outside of the target.
//
// Shows: D1
func TestD1_CVE_2019_1002101_11246_11249_11251_ATarWritesNowhereElse(t *testing.T) {
	t.Parallel()
	const file, dir, sym, hard, dev = tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeChar
	for name, c := range map[string]struct {
		entries []entry
		fails   bool
		notes   int
	}{
		"dots":                    {[]entry{{"data/../../evil", "", "x", file}}, true, 0},
		"dots within":             {[]entry{{"data/a/../../../evil", "", "x", file}}, true, 0},
		"absolute":                {[]entry{{"/evil", "", "x", file}}, true, 0},
		"another name":            {[]entry{{"evil", "", "x", file}}, true, 0},
		"a name that begins so":   {[]entry{{"data-evil", "", "x", file}}, true, 0},
		"link, then through it":   {[]entry{{"data/out", "..", "", sym}, {"data/out/evil", "", "x", file}}, false, 1},
		"absolute link":           {[]entry{{"data/out", "/tmp", "", sym}, {"data/out/h7-evil", "", "x", file}}, false, 1},
		"the target is a link":    {[]entry{{"data", "..", "", sym}, {"data/evil", "", "x", file}}, false, 1},
		"hard link":               {[]entry{{"data/passwd", "/etc/passwd", "", hard}}, false, 1},
		"device":                  {[]entry{{"data/null", "", "", dev}}, false, 1},
		"link, dir of its name":   {[]entry{{"data/a", "/", "", sym}, {"data/a", "", "", dir}, {"data/a/evil", "", "x", file}}, false, 1},
		"nothing at all":          {nil, true, 0},
		"a backslash is a letter": {[]entry{{`data/..\..\evil`, "", "x", file}}, false, 0},
	} {
		above := t.TempDir()
		target := filepath.Join(above, "in", "data")
		notes := 0
		err := client.Unpack(tarOf(t, c.entries), "data", target, 1<<30, func(string) { notes++ })
		if (err != nil) != c.fails || notes != c.notes {
			t.Errorf("%s: error %v, %d notes", name, err, notes)
		}
		err = filepath.WalkDir(above, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(above, path)
			if !d.IsDir() && !strings.HasPrefix(rel, "in/data") || d.Type()&fs.ModeSymlink != 0 {
				t.Errorf("%s: %s was written", name, rel)
			}
			if info, err := d.Info(); err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
				t.Errorf("%s: %s is setuid", name, rel)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestD1_ALinkThatIsHereIsNotFollowedOut: Unpack does not follow an existing link below the
// target to a place outside.
//
// Shows: D1
func TestD1_ALinkThatIsHereIsNotFollowedOut(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "data"), 0o700), os.Symlink(outside, filepath.Join(dir, "data", "out"))); err != nil {
		t.Fatal(err)
	}
	err := client.Unpack(tarOf(t, []entry{{"data/out/evil", "", "x", tar.TypeReg}}), "data", filepath.Join(dir, "data"), 1<<30, func(string) {})
	if err == nil {
		t.Error("no error")
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("%s was written outside", left[0].Name())
	}
}

// TestD1_ALinkThatIsHereIsNotFollowedBeside: Unpack does not follow one to a file beside the
// target either.
//
// Shows: D1
func TestD1_ALinkThatIsHereIsNotFollowedBeside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, beside := filepath.Join(dir, "data"), filepath.Join(dir, "beside")
	if err := errors.Join(os.Mkdir(data, 0o700), os.Mkdir(beside, 0o700), os.Symlink("../beside", filepath.Join(data, "out"))); err != nil {
		t.Fatal(err)
	}
	err := client.Unpack(tarOf(t, []entry{{"data", "", "", tar.TypeDir}, {"data/out/evil", "", "x", tar.TypeReg}}), "data", data, 1<<30, func(string) {})
	if err == nil {
		t.Error("no error")
	}
	if left, _ := os.ReadDir(beside); len(left) > 0 {
		t.Errorf("%s was written outside", left[0].Name())
	}
}

// TestPackAndUnpackAreOneCopy: files, directories and modes are the same after a copy.
func TestPackAndUnpackAreOneCopy(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(from, "a", "empty"), 0o755), os.WriteFile(filepath.Join(from, "a", "run.sh"), []byte("#!/bin/sh\n"), 0o755),
		os.WriteFile(filepath.Join(from, "b"), bytes.Repeat([]byte("x"), 1<<20), 0o600), os.Symlink("b", filepath.Join(from, "link"))); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := client.Pack(&b, from, "base", func(string) {}); err != nil {
		t.Fatal(err)
	}
	var notes []string
	if err := client.Unpack(&b, "base", filepath.Join(to, "copy"), 1<<30, func(s string) { notes = append(notes, s) }); err != nil {
		t.Fatal(err)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "link") {
		t.Errorf("notes %q", notes)
	}
	info, err := os.Stat(filepath.Join(to, "copy", "a", "run.sh"))
	if err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("run.sh: %v, %v", info, err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "copy", "b")); err != nil || len(data) != 1<<20 {
		t.Errorf("b: %d bytes, %v", len(data), err)
	}
	if _, err := os.Stat(filepath.Join(to, "copy", "a", "empty")); err != nil {
		t.Error(err)
	}
}
