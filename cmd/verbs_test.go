package cmd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/client"
)

// TestDetachKeysLeaveATerminal: all input but the detach keys reaches the container in
// order, however the bytes are split.
func TestDetachKeysLeaveATerminal(t *testing.T) {
	t.Parallel()
	keys, err := parseKeys("ctrl-p,ctrl-q")
	if err != nil || !bytes.Equal(keys, []byte{0x10, 0x11}) {
		t.Fatalf("%v, %v", keys, err)
	}
	for typed, want := range map[string]struct {
		through  string
		detached bool
	}{
		"ls\n":                   {"ls\n", false},
		"ls\x10\x11never":        {"ls", true},
		"\x10\x10\x11":           {"\x10", true},
		"a\x10b":                 {"a\x10b", false},
		"a\x10":                  {"a", false}, // held back: the next key decides
		"\x11\x10x":              {"\x11\x10x", false},
		strings.Repeat("x", 1e5): {strings.Repeat("x", 1e5), false},
	} {
		for _, in := range []io.Reader{strings.NewReader(typed), iotest.OneByteReader(strings.NewReader(typed)), iotest.DataErrReader(strings.NewReader(typed))} {
			detached := false
			got, err := io.ReadAll(&detacher{in: in, keys: keys, detach: func() { detached = true }})
			if err != nil || string(got) != want.through || detached != want.detached {
				t.Errorf("%.20q: %.20q, detached %v, %v", typed, got, detached, err)
			}
		}
	}
	for _, wrong := range []string{"ctrl-", "ctrl-pp", "f1", ",", "ctrl-1"} {
		if keys, err := parseKeys(wrong); err == nil {
			t.Errorf("%s is %v", wrong, keys)
		}
	}
}

func TestParseSide(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]copySide{
		"web:/etc":     {"web", "/etc"},
		"shop/db:data": {"shop", ""},
		"./a:b":        {"", "./a:b"},
		"/a:b":         {"", "/a:b"},
		"a/b/c:d":      {"", "a/b/c:d"},
		"plain":        {"", "plain"},
		"web:":         {"web", ""},
	} {
		if text == "shop/db:data" {
			want = copySide{"shop/db", "data"}
		}
		if got := parseSide(text); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func podOf(namespace, name string) v1.Pod {
	return v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.PodSpec{NodeName: "N1", Containers: []v1.Container{
			{Name: "c", Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
	}
}

func TestNamesOfPods(t *testing.T) {
	t.Parallel()
	all := []v1.Pod{podOf("a", "web-n1"), podOf("b", "web-n1"), podOf("a", "db"), podOf("a", "db-n1"), podOf("a", "one-n1")}
	for given, want := range map[[2]string]string{
		{"one", ""}:        "a/one-n1",
		{"pod/one", ""}:    "a/one-n1",
		{"po/one-n1", ""}:  "a/one-n1",
		{"a/web", ""}:      "a/web-n1",
		{"web", "b"}:       "b/web-n1",
		{"db", ""}:         "a/db", // the exact name wins over one with the suffix
		{"web", ""}:        "pod web is ambiguous: a/web-n1, b/web-n1",
		{"missing", ""}:    "pod missing not found",
		{"one", "b"}:       "pod one not found in namespace b",
		{"a/one", "b"}:     "a/one is not in the namespace of -n b",
		{"pod/", ""}:       "the name of a pod is empty",
		{"a/one-n1", "a"}:  "a/one-n1",
		{"pods/db-n1", ""}: "a/db-n1",
	} {
		parsed, err := client.ParseName(given[0], given[1])
		got := ""
		if err == nil {
			var it *v1.Pod
			if it, err = onePod(parsed, all); err == nil {
				got = it.Namespace + "/" + it.Name
			}
		}
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", given, got, want)
		}
	}
}

func TestPortsOfForwards(t *testing.T) {
	t.Parallel()
	it := podOf("a", "web")
	got, err := portsOf(&it, []string{"80", "8080:80", ":80", "9090:http", "http", ":http"})
	if want := []string{"80:80", "8080:80", "0:80", "9090:8080", "8080:8080", "0:8080"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for _, wrong := range []string{"0", "x", "70000", "x:80", "80:", "", "1:2:3"} {
		if got, err := portsOf(&it, []string{wrong}); err == nil {
			t.Errorf("%s: %q", wrong, got)
		}
	}
}

// TestD8_CompletionIsQuick: without an agent, with one that does not answer, and with one
// that stops in the middle, completion ends after completionTime at most, and prints
// nothing.
//
// Shows: D8
func TestD8_CompletionIsQuick(t *testing.T) {
	if completionTime > 200*time.Millisecond {
		t.Errorf("completion may take %s", completionTime)
	}
	quick := func(what, dir string) {
		if got := completed(t, dir); got != ":4\n" {
			t.Errorf("%s: %q", what, got)
		}
	}
	for _, answer := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{", "no HTTP at all\n"} {
		dir := t.TempDir()
		l, err := net.Listen("unix", filepath.Join(dir, "nodectl.sock"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		runUntilEnd(t, func(context.Context) error {
			for {
				conn, err := l.Accept()
				if err != nil {
					return nil
				}
				context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = conn.Write([]byte(answer))
			}
		})
		t.Cleanup(func() { cancel(); _ = l.Close() })
		quick(fmt.Sprintf("with %.10q", answer), dir)
	}
	quick("without an agent", t.TempDir())
}

// completed returns the shell's completions of the names of pods.
func completed(t *testing.T, dir string) string {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p := newProgram(null, out, null, func(name string) string {
		return map[string]string{"NODECTL_ROOT_DIR": dir, "NODECTL_RUN_DIR": dir, "NODECTL_NODE_NAME": "n1"}[name]
	})
	p.run(t.Context(), []string{"__complete", "logs", ""})
	data, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
