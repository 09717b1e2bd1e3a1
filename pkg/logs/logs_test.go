package logs_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/logs"
)

// place is one container's log directory with a runtime that writes there.
type place struct {
	*testing.T
	root, dir, path string
	now             time.Time
	writer          *os.File // the runtime's
	reopened        int
}

func newPlace(t *testing.T) *place {
	root := t.TempDir()
	p := &place{T: t, root: root, dir: filepath.Join(root, "default_web_uid", "c"), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	p.path = filepath.Join(p.dir, "0.log")
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.writer != nil {
			p.writer.Close()
		}
	})
	p.begin()
	return p
}

// begin opens the log as a runtime does.
func (p *place) begin() {
	p.Helper()
	f, err := os.OpenFile(p.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		p.Fatal(err)
	}
	if p.writer != nil {
		p.writer.Close()
	}
	p.writer = f
}

func (p *place) write(text string) {
	p.Helper()
	if _, err := p.writer.WriteString(text); err != nil {
		p.Fatal(err)
	}
}

func (p *place) reopen(context.Context) error {
	p.reopened++
	p.begin()
	return nil
}

func (p *place) rotator(c logs.Config) *logs.Rotator {
	c.Dir, c.Now = p.root, func() time.Time { return p.now }
	if c.MaxSize == 0 {
		c.MaxSize = 8
	}
	return logs.New(c)
}

// rotate rotates once, ten seconds after the last time.
func (p *place) rotate(r *logs.Rotator) {
	p.Helper()
	p.now = p.now.Add(10 * time.Second)
	if err := r.Rotate(p.Context(), p.path, p.reopen); err != nil {
		p.Fatal(err)
	}
}

// files returns the content of the files, by name; compressed ones are decompressed.
func (p *place) files() map[string]string {
	p.Helper()
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		p.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		path := filepath.Join(p.dir, e.Name())
		if !e.Type().IsRegular() {
			all[e.Name()] = e.Type().String()
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			p.Fatal(err)
		}
		if strings.HasSuffix(path, ".gz") {
			z, err := gzip.NewReader(bytes.NewReader(text))
			if err == nil {
				text, err = io.ReadAll(z)
			}
			if err != nil {
				p.Fatalf("%s: %v", e.Name(), err)
			}
		}
		all[e.Name()] = string(text)
	}
	return all
}

func (p *place) want(want map[string]string) {
	p.Helper()
	if diff := cmp.Diff(want, p.files()); diff != "" {
		p.Errorf("files (-want +got):\n%s", diff)
	}
}

// Shows: C-1.43.1
func TestC_1_43_1_RenameReopenCompressKeepFive(t *testing.T) {
	p := newPlace(t)
	r := p.rotator(logs.Config{})
	p.write("12345678")
	p.rotate(r)
	p.want(map[string]string{"0.log": "12345678"}) // exactly at the limit
	for i := range 7 {
		p.write(fmt.Sprintf("line %d, long enough", i))
		p.rotate(r)
	}
	p.want(map[string]string{
		"0.log":                    "",
		"0.log.20260102-030525":    "line 6, long enough",
		"0.log.20260102-030515.gz": "line 5, long enough",
		"0.log.20260102-030505.gz": "line 4, long enough",
		"0.log.20260102-030455.gz": "line 3, long enough",
	})
	if p.reopened != 7 {
		t.Errorf("reopened %d times", p.reopened)
	}
	info, err := os.Stat(filepath.Join(p.dir, "0.log.20260102-030515.gz"))
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("compressed: %v, %v", info, err)
	}
}

// Shows: C-1.43.1
func TestC_1_43_1_NumberAndCompressionAreSettings(t *testing.T) {
	for files, want := range map[int][]string{
		1: {"0.log"},
		2: {"0.log", "0.log.20260102-030445"},
		3: {"0.log", "0.log.20260102-030435", "0.log.20260102-030445"},
	} {
		p := newPlace(t)
		r := p.rotator(logs.Config{MaxFiles: files, Plain: true})
		for range 4 {
			p.write("long enough")
			p.rotate(r)
		}
		var got []string
		for _, e := range must(os.ReadDir(p.dir)) {
			got = append(got, e.Name())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d files (-want +got):\n%s", files, diff)
		}
	}
	p := newPlace(t)
	p.write(strings.Repeat("x", 100))
	p.rotate(p.rotator(logs.Config{MaxSize: -1}))
	if p.reopened != 0 {
		t.Error("rotated without a limit")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Shows: C-1.43.1
func TestC_1_43_1_ReopenFailureRenamesBack(t *testing.T) {
	p := newPlace(t)
	r := p.rotator(logs.Config{})
	p.write("first, long enough")
	err := r.Rotate(t.Context(), p.path, func(context.Context) error { return errors.New("runtime is busy") })
	if err == nil || !strings.Contains(err.Error(), "runtime is busy") {
		t.Errorf("error %v", err)
	}
	p.write(" and more")
	p.want(map[string]string{"0.log": "first, long enough and more"})
	p.rotate(r)
	p.want(map[string]string{"0.log": "", "0.log.20260102-030415": "first, long enough and more"})
}

// If the runtime began a new log and its answer was lost, the new log must not be lost.
//
// Shows: F84
func TestF84_ReopenedInSpiteOfTheError(t *testing.T) {
	p := newPlace(t)
	p.write("first, long enough")
	err := p.rotator(logs.Config{}).Rotate(t.Context(), p.path, func(ctx context.Context) error {
		_ = p.reopen(ctx)
		p.write("second")
		return context.DeadlineExceeded
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	p.want(map[string]string{"0.log": "second", "0.log.20260102-030405": "first, long enough"})
}

// Shows: F84
func TestF84_LogThatIsNotThere(t *testing.T) {
	p := newPlace(t)
	r := p.rotator(logs.Config{})
	if err := os.RemoveAll(p.path); err != nil {
		t.Fatal(err)
	}
	p.rotate(r)
	if err := os.RemoveAll(filepath.Dir(p.dir)); err != nil {
		t.Fatal(err)
	}
	p.rotate(r)
	if err := os.RemoveAll(p.root); err != nil {
		t.Fatal(err)
	}
	p.rotate(r)
	if p.reopened != 0 {
		t.Error("reopened what is not there")
	}
}

// The pod's directory is removed while its log is rotated: at the reopening, and during
// compression.
//
// Shows: F84
func TestF84_RotationRacesWithRemoval(t *testing.T) {
	p := newPlace(t)
	r := p.rotator(logs.Config{})
	p.write("long enough")
	err := r.Rotate(t.Context(), p.path, func(context.Context) error {
		if err := os.RemoveAll(p.dir); err != nil {
			t.Fatal(err)
		}
		return errors.New("container is not running")
	})
	if err == nil || err.Error() != "rotate "+p.path+": start a new log: container is not running" {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is back: %v", err)
	}

	p = newPlace(t)
	r = p.rotator(logs.Config{})
	for range 2 {
		p.write("long enough")
		p.rotate(r)
	}
	p.write("long enough")
	err = r.Rotate(t.Context(), p.path, func(context.Context) error { return os.RemoveAll(p.dir) })
	if err != nil {
		t.Errorf("error %v", err)
	}
}

// F84, audit #81132: a link or a pipe in place of the log is not touched, and nothing
// outside the logs' directory is.
//
// Shows: F84
func TestF84_LinksAndPipesAreRefused(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, bytes.Repeat([]byte("s"), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(path string) error{
		"link": func(path string) error { return os.Symlink(outside, path) },
		"pipe": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error {
			return os.MkdirAll(filepath.Join(path, strings.Repeat("n", 200)), 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			if err := errors.Join(os.Remove(p.path), put(p.path)); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(p.path)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.rotator(logs.Config{}).Rotate(t.Context(), p.path, p.reopen); !errors.Is(err, logs.ErrNotRegular) {
				t.Errorf("error %v", err)
			}
			if after, err := os.Lstat(p.path); err != nil || after.Mode() != before.Mode() || p.reopened != 0 {
				t.Errorf("%v, %v, reopened %d times", after, err, p.reopened)
			}
		})
	}
	t.Run("directory that is a link", func(t *testing.T) {
		p := newPlace(t)
		if err := errors.Join(os.RemoveAll(p.dir), os.Symlink(filepath.Dir(outside), p.dir)); err != nil {
			t.Fatal(err)
		}
		if err := p.rotator(logs.Config{}).Rotate(t.Context(), filepath.Join(p.dir, "secret"), p.reopen); err == nil || p.reopened != 0 {
			t.Errorf("error %v, reopened %d times", err, p.reopened)
		}
	})
	t.Run("path outside", func(t *testing.T) {
		p := newPlace(t)
		for _, path := range []string{outside, p.root + "/../elsewhere/secret", "secret"} {
			if err := p.rotator(logs.Config{}).Rotate(t.Context(), path, p.reopen); err == nil || p.reopened != 0 {
				t.Errorf("%s: error %v", path, err)
			}
		}
	})
	if text, err := os.ReadFile(outside); err != nil || len(text) != 100 {
		t.Errorf("the file outside: %d bytes, %v", len(text), err)
	}
}

// The next rotation completes a killed one; files of other names stay.
//
// Shows: C-1.43.2
func TestC_1_43_2_HalfDoneRotationsAreTidied(t *testing.T) {
	p := newPlace(t)
	packed := new(bytes.Buffer)
	z := gzip.NewWriter(packed)
	if _, err := z.Write([]byte("complete")); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"0.log.20260101-000001.tmp":   "half",                   // killed while compressing
		"0.log.20260101-000001":       "to be compressed",       //
		"0.log.20260101-000002":       "complete",               // killed before its removal
		"0.log.20260101-000002.gz":    packed.String(),          //
		"0.log.20260101-000003.tmp":   "half, and its log gone", //
		"0.log.old":                   "a person's",
		"0.log.20260101-000009.bak":   "a person's",
		"10.log.20260101-000004":      "another life's",
		"1.log":                       "another life's",
		"0.log.20269901-000009":       "no moment",
		"0.log.20260101-000001.gz.gz": "no moment",
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(p.dir, "0.log.20260101-000001.gz.gz"), filepath.Join(p.dir, "0.log.x.y")); err != nil {
		t.Fatal(err)
	}
	p.write("now, long enough")
	p.rotate(p.rotator(logs.Config{}))
	p.want(map[string]string{
		"0.log": "", "0.log.20260102-030415": "now, long enough",
		"0.log.20260101-000001.gz": "to be compressed", "0.log.20260101-000002.gz": "complete",
		"0.log.old": "a person's", "0.log.20260101-000009.bak": "a person's", "10.log.20260101-000004": "another life's",
		"1.log": "another life's", "0.log.20269901-000009": "no moment", "0.log.x.y": "no moment",
	})
}

// Two rotations in one second keep both logs, in order.
//
// Shows: C-1.43.1
func TestC_1_43_1_TwiceInASecond(t *testing.T) {
	p := newPlace(t)
	r := p.rotator(logs.Config{})
	for i := range 3 {
		p.write(fmt.Sprintf("log %d, long enough", i))
		p.now = p.now.Add(-10 * time.Second)
		p.rotate(r)
	}
	p.want(map[string]string{
		"0.log": "", "0.log.20260102-030407": "log 2, long enough",
		"0.log.20260102-030406.gz": "log 1, long enough", "0.log.20260102-030405.gz": "log 0, long enough",
	})
}

// A log of 100 GB is renamed as fast as a small one; its later compression ends with the
// context, and leaves it unchanged.
//
// Shows: F84
func TestF84_HundredGigabytes(t *testing.T) {
	p := newPlace(t)
	r := p.rotator(logs.Config{})
	if err := os.Truncate(p.path, 100<<30); err != nil {
		t.Fatal(err)
	}
	p.rotate(r)
	p.write("long enough")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	p.now = p.now.Add(10 * time.Second)
	if err := r.Rotate(ctx, p.path, p.reopen); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	info, err := os.Stat(filepath.Join(p.dir, "0.log.20260102-030415"))
	if err != nil || info.Size() != 100<<30 || p.reopened != 2 {
		t.Errorf("%v, %v, reopened %d times", info, err, p.reopened)
	}
	if left := must(filepath.Glob(filepath.Join(p.dir, "*.tmp"))); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

// Whatever fails, no line is lost and none is there twice.
//
// Shows: F84
func TestF84_EveryLineIsKept(t *testing.T) {
	p := newPlace(t)
	r := p.rotator(logs.Config{MaxFiles: 1000})
	var all []string
	for i := range 200 {
		line := fmt.Sprintf("line %03d of the log\n", i)
		all = append(all, line)
		p.write(line)
		switch i % 4 {
		case 0:
			p.rotate(r)
		case 1: // the runtime does not answer
			_ = r.Rotate(t.Context(), p.path, func(context.Context) error { return errors.New("busy") })
		case 2: // the agent leaves
			ctx, cancel := context.WithCancel(t.Context())
			_ = r.Rotate(ctx, p.path, func(ctx context.Context) error { cancel(); return p.reopen(ctx) })
			p.now = p.now.Add(time.Second)
		}
	}
	var got []string
	names := make([]string, 0, 200)
	files := p.files()
	for _, e := range must(os.ReadDir(p.dir)) { // in order of names; the log itself is the newest
		if e.Name() != "0.log" {
			names = append(names, e.Name())
		}
	}
	for _, name := range append(names, "0.log") {
		for line := range strings.Lines(files[name]) {
			got = append(got, line)
		}
	}
	if diff := cmp.Diff(all, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}
