package logs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/logs"
	"github.com/nodectl/nodectl/test/said"
	"github.com/nodectl/nodectl/test/suite"
	"github.com/nodectl/nodectl/test/wait"
)

// all selects everything.
func all() logs.Options { return logs.Options{Stdout: true, Stderr: true, Tail: -1, Limit: -1} }

// logIn makes <dir>/pod/c/0.log with text.
func logIn(t *testing.T, text string) (f logs.File, path string) {
	t.Helper()
	f = logs.File{Dir: t.TempDir(), Path: "ns_pod_uid/c/0.log"}
	path = filepath.Join(f.Dir, f.Path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o640)); err != nil {
		t.Fatal(err)
	}
	return f, path
}

func text(t *testing.T, f logs.File, o logs.Options) string {
	t.Helper()
	var out bytes.Buffer
	if err := logs.Read(t.Context(), &out, f, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const three = "2026-01-02T03:04:05.000000001Z stdout F one\n" +
	"2026-01-02T03:04:06.12Z stderr F two\n" +
	"2026-01-02T03:04:07.5Z stdout P thr\n" +
	"2026-01-02T03:04:08Z stdout F ee\n"

// Shows: C-1.40.8
func TestC_1_40_8_WhatIsWanted(t *testing.T) {
	t.Parallel()
	f, _ := logIn(t, three)
	for name, c := range map[string]struct {
		change func(*logs.Options)
		want   string
	}{
		"all":          {func(*logs.Options) {}, "one\ntwo\nthree\n"},
		"stdout":       {func(o *logs.Options) { o.Stderr = false }, "one\nthree\n"},
		"stderr":       {func(o *logs.Options) { o.Stdout = false }, "two\n"},
		"timestamps":   {func(o *logs.Options) { o.Timestamps = true }, "2026-01-02T03:04:05.000000001Z one\n2026-01-02T03:04:06.120000000Z two\n2026-01-02T03:04:07.500000000Z three\n"},
		"tail 0":       {func(o *logs.Options) { o.Tail = 0 }, ""},
		"tail 3":       {func(o *logs.Options) { o.Tail = 3 }, "two\nthree\n"},
		"tail 100":     {func(o *logs.Options) { o.Tail = 100 }, "one\ntwo\nthree\n"},
		"since":        {func(o *logs.Options) { o.Since = time.Date(2026, 1, 2, 3, 4, 6, 120e6, time.UTC) }, "two\nthree\n"},
		"limit":        {func(o *logs.Options) { o.Limit = 6 }, "one\ntw"},
		"limit of 0":   {func(o *logs.Options) { o.Limit = 0 }, ""},
		"stamp, limit": {func(o *logs.Options) { o.Timestamps, o.Limit = true, 4 }, "2026"},
		"limit, tail":  {func(o *logs.Options) { o.Tail, o.Limit = 2, 4 }, "thre"},
	} {
		o := all()
		c.change(&o)
		if got := text(t, f, o); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Shows: C-1.40.8
func TestC_1_40_8_DamagedLinesAreLeftOut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200<<10)
	f, _ := logIn(t, "no format at all\n\n"+strings.Repeat("\x00", 100)+"\n2026-01-02T03:04:05Z stdout F\n2026-01-02T03:04:05Z elsewhere F x\n"+
		"yesterday stdout F x\n"+long+"\n2026-01-02T03:04:05Z stdout F:tag kept\n2026-01-02T03:04:05Z stdout F "+long+"\n2026-01-02T03:04:05Z stdout F cut of")
	if got, want := text(t, f, all()), "kept\n"+long+"\ncut of"; got != want {
		t.Errorf("%d bytes, want %d: %.80q", len(got), len(want), got)
	}
	o := all()
	o.Tail = 2
	if got, want := text(t, f, o), "kept\n"+long+"\n"; got != want {
		t.Errorf("tail: %d bytes, want %d: %.80q", len(got), len(want), got)
	}
}

func line(stream, text string) string { return "2026-01-02T03:04:05Z " + stream + " F " + text + "\n" }

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.WriteString(f, text); err != nil {
		t.Fatal(err)
	}
}

// followed starts a follower; end waits for its end.
func followed(t *testing.T, f logs.File, o logs.Options) (out *said.Log, end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, done := new(said.Log), make(chan error, 1)
	go func() { done <- logs.Read(ctx, out, f, o) }()
	t.Cleanup(cancel)
	return out, func() error {
		t.Helper()
		return wait.Receive(t, "the follower's end", done)
	}
}

// TestC_1_43_3_Follow: a follower gets all lines, across two rotations and those written to
// the old file after it was renamed, and ends with the container.
//
// Shows: C-1.43.3
func TestC_1_43_3_Follow(t *testing.T) {
	t.Parallel()
	f, path := logIn(t, line("stdout", "1"))
	o := all()
	o.Follow = true
	var ended atomic.Bool
	o.Ended = ended.Load
	out, end := followed(t, f, o)
	out.Is(t, "1\n")
	appendTo(t, path, "2026-01-02T03:04:05Z std")
	appendTo(t, path, "out F 2\n")
	out.Is(t, "1\n2\n")
	want := "1\n2\n"
	for i, stamp := range []string{".20260102-030405", ".20260102-030406"} {
		if err := os.Rename(path, path+stamp); err != nil {
			t.Fatal(err)
		}
		appendTo(t, path+stamp, line("stdout", "late"))
		appendTo(t, path, line("stderr", fmt.Sprint("new", i)))
		want += fmt.Sprint("late\nnew", i, "\n")
		out.Is(t, want)
	}
	ended.Store(true)
	appendTo(t, path, line("stdout", "last")) // before the next read
	if err := end(); err != nil {
		t.Error(err)
	}
	if last := want + "last\n"; out.String() != last && out.String() != want { // either
		t.Errorf("%q", out.String())
	}
}

// TestC_1_43_3_NothingIsLostAtTheEnd: all lines before the container's end are read,
// whenever the end is noticed.
//
// Shows: C-1.43.3
func TestC_1_43_3_NothingIsLostAtTheEnd(t *testing.T) {
	t.Parallel()
	f, path := logIn(t, "")
	o := all()
	o.Follow = true
	once := false
	o.Ended = func() bool { // it writes its last line just before it ends
		if !once {
			once = true
			appendTo(t, path, line("stdout", "last"))
		}
		return true
	}
	out, end := followed(t, f, o)
	if err := end(); err != nil || out.String() != "last\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// Shows: C-1.40.8
func TestC_1_40_8_FollowEndsWithItsReader(t *testing.T) {
	t.Parallel()
	f, path := logIn(t, line("stdout", "1"))
	o := all()
	o.Follow, o.Tail = true, 0
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	out := new(said.Log)
	go func() { done <- logs.Read(ctx, out, f, o) }()
	appendTo(t, path, line("stdout", "2"))
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	broken := errors.New("gone")
	if err := logs.Read(t.Context(), writer(func([]byte) (int, error) { return 0, broken }), f, all()); !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
	o = all()
	o.Follow, o.Limit = true, 3
	out, end := followed(t, f, o)
	if err := end(); err != nil || out.String() != "1\n2" {
		t.Errorf("the limit is the end: %q, %v", out.String(), err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// TestD1_LogsAreRegularFilesBeneathTheirDirectory: links, pipes, devices and other users'
// files are refused without being opened, at any place in the path.
//
// Shows: D1
func TestD1_LogsAreRegularFilesBeneathTheirDirectory(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(line("stdout", "secret")), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(dir, path string) error{
		"link": func(_, path string) error { return os.Symlink(secret, path) },
		"link inside": func(dir, path string) error {
			return errors.Join(os.WriteFile(dir+"/other", []byte(line("stdout", "secret")), 0o600), os.Symlink("other", path))
		},
		"pipe":      func(_, path string) error { return unix.Mkfifo(path, 0o644) },
		"device":    func(_, path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
		"directory": func(_, path string) error { return os.Mkdir(path, 0o755) },
		"socket":    func(_, path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o666, 0) },
		"another user": func(_, path string) error {
			return errors.Join(os.WriteFile(path, []byte(line("stdout", "secret")), 0o644), os.Chown(path, 1234, 1234))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "device" || name == "another user" {
				suite.NeedsRoot(t, "mknod and chown")
			}
			f, path := logIn(t, "")
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := make(filepath.Dir(path), path); err != nil {
				t.Fatal(err)
			}
			for _, follow := range []bool{false, true} {
				o := all()
				o.Follow = follow
				var out bytes.Buffer
				if err := logs.Read(t.Context(), &out, f, o); err == nil || out.Len() > 0 {
					t.Errorf("%q, %v", out.String(), err)
				}
			}
		})
	}
	f, path := logIn(t, line("stdout", "x"))
	for _, p := range []string{"../secret", "/etc/passwd", "", ".", "ns_pod_uid/../../x", "ns_pod_uid/c/0.log/x"} {
		if err := logs.Read(t.Context(), io.Discard, logs.File{Dir: f.Dir, Path: p}, all()); err == nil {
			t.Errorf("%q was read", p)
		}
	}
	moved := filepath.Join(t.TempDir(), "c")
	if err := errors.Join(os.Rename(filepath.Dir(path), moved), os.Symlink(moved, filepath.Dir(path))); err != nil {
		t.Fatal(err)
	}
	if err := logs.Read(t.Context(), io.Discard, f, all()); err == nil {
		t.Error("a directory that is a link was followed")
	}
}

// TestD1_SwapWhileTailing: a pod that can write to its log directory swaps its log for
// links as fast as it can while it is read and followed. The readers never get the links'
// targets.
//
// Shows: D1
func TestD1_SwapWhileTailing(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(line("stdout", "secret")), 0o600); err != nil {
		t.Fatal(err)
	}
	f, path := logIn(t, line("stdout", "mine"))
	dir := filepath.Dir(path)
	real := filepath.Join(dir, "real")
	if err := os.WriteFile(real, []byte(line("stdout", "mine")), 0o600); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	var swaps atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
			}
			next := filepath.Join(dir, "next")
			_ = os.Remove(next)
			var err error
			switch i % 3 {
			case 0:
				err = os.Symlink(secret, next)
			case 1:
				err = os.Link(real, next)
			case 2: // the directory itself
				elsewhere := dir + ".away"
				err = errors.Join(os.Rename(dir, elsewhere), os.Symlink(filepath.Dir(secret), dir), os.Remove(dir), os.Rename(elsewhere, dir))
				if err == nil {
					continue
				}
			}
			if err = errors.Join(err, os.Rename(next, path)); err != nil {
				t.Error(err)
				return
			}
			swaps.Add(1)
		}
	})
	o := all()
	o.Follow = true
	out, end := followed(t, f, o)
	const enough = 1000 // of each
	reads := 0
	for ; reads < enough || swaps.Load() < enough; reads++ {
		var got bytes.Buffer
		_ = logs.Read(t.Context(), &got, f, all()) // may be refused
		if s := got.String(); s != "" && s != "mine\n" {
			t.Fatalf("read %q", s)
		}
	}
	close(over)
	wg.Wait()
	_ = end
	if strings.Contains(out.String(), "secret") || swaps.Load() < enough || reads < enough {
		t.Errorf("%d swaps, %d reads: %q", swaps.Load(), reads, out.String())
	}
}

// TestC_1_43_3_ASilentFollowerIsCheap: 200 followers for twenty seconds of the bubble's
// time.
//
// Shows: C-1.43.3
func TestC_1_43_3_ASilentFollowerIsCheap(t *testing.T) {
	f, _ := logIn(t, "")
	o := all()
	o.Follow = true
	synctest.Test(t, func(t *testing.T) {
		const followers, seconds = 200, 20
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range followers {
			wg.Go(func() {
				if err := logs.Read(ctx, io.Discard, f, o); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Second) // until they poll at their slowest
		synctest.Wait()
		before := spent(t)
		time.Sleep(seconds * time.Second)
		synctest.Wait()
		took := spent(t) - before
		cancel()
		wg.Wait()
		each := took / followers / seconds
		t.Logf("a silent follower takes %s of a second", each)
		if each > time.Millisecond || each == 0 {
			t.Errorf("a silent follower takes %s of a second", each)
		}
	})
}

func spent(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(three), int64(-1), int64(-1), true)
	f.Add([]byte("2026-01-02T03:04:07.5Z stdout P thr\nx\n"), int64(1), int64(3), false)
	f.Add([]byte(strings.Repeat("y", 70<<10)), int64(0), int64(1), true)
	f.Fuzz(func(t *testing.T, data []byte, tail, limit int64, stamps bool) {
		file, _ := logIn(t, string(data))
		var out bytes.Buffer
		o := logs.Options{Stdout: true, Stderr: true, Timestamps: stamps, Tail: tail, Limit: limit}
		if err := logs.Read(t.Context(), &out, file, o); err != nil {
			t.Fatal(err)
		}
		if limit >= 0 && int64(out.Len()) > limit {
			t.Errorf("%d bytes of %d", out.Len(), limit)
		}
		if !stamps && out.Len() > len(data) {
			t.Errorf("%d bytes of %d there are", out.Len(), len(data))
		}
	})
}
