package pluginconn

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestNew_PathIsNoSocket_IsRefused(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "conn") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := errors.Join(os.Symlink("a.sock", filepath.Join(dir, "link")), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	conn, err := New(filepath.Join(dir, "a.sock"), Dial, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"link", "file", ".", "missing"} {
		if _, err := New(filepath.Join(dir, name), Dial, 1); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestShortError_TextIsLong_CodeStays(t *testing.T) {
	t.Parallel()
	long := status.Error(codes.Aborted, strings.Repeat("x", 2*MaxText))
	if got := ShortError(long); status.Code(got) != codes.Aborted || len(status.Convert(got).Message()) != MaxText+len("…") {
		t.Errorf("%d bytes, %v", len(got.Error()), status.Code(got))
	}
	for _, err := range []error{status.Error(codes.Internal, "x"), errors.New(strings.Repeat("x", 2*MaxText))} {
		if got := ShortError(err); got != err {
			t.Errorf("%v becomes %v", err, got)
		}
	}
}
