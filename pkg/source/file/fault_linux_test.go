package file_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/file"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

// Shows: F41, I9
func TestF41_AllGarbageKeepsEveryFileInTheSet(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, name := range []string{"a.yaml", "b.yaml", "c.yaml"} {
		p.put(name, "pod "+name+" x")
	}
	l := p.listen()
	l.Set()
	for _, name := range []string{"a.yaml", "b.yaml", "c.yaml"} {
		p.put(name, "\x00\xff garbage")
	}
	for {
		w := l.Set()
		if w.Files.Len() != 3 {
			t.Fatalf("%d files in the set: %q", w.Files.Len(), w.Contents())
		}
		for f := range w.Files.All() {
			if !f.Incomplete && len(f.Pods) != 1 {
				t.Fatalf("%s is whole and lost its pod", f.File)
			}
		}
		if slices.Equal(w.Contents(), []string{"!", "!", "!"}) {
			return
		}
	}
}

// Shows: F42
func TestF42_DirectoryDeletedAndMadeAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("web.yaml", "pod one x")
	l := sourcetest.Listen(t, p.source().Hold(400*time.Millisecond, 0))
	l.Set()
	for range 2 {
		must(t, os.RemoveAll(p.dir))
		if err := l.Error(); err.Error() != "does not exist" || !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("error %q", err)
		}
		must(t, os.Mkdir(p.dir, 0o700))
		// It exists and stays empty while nothing is mounted on it.
		w := l.Set()
		if len(w.Contents()) == 0 {
			w.Names(t, "one")
			p.put("web.yaml", "pod one x")
			w = l.Set()
		}
		w.Holds(t, "one")
	}
}

// Shows: F42
func TestF42_MissingAtFirstWithItsParents(t *testing.T) {
	t.Parallel()
	p := place{t, filepath.Join(t.TempDir(), "a/b/manifests")}
	l := p.listen()
	_ = l.Error()
	must(t, os.MkdirAll(filepath.Dir(p.dir), 0o700))
	must(t, os.Mkdir(p.dir+".new", 0o700))
	must(t, os.WriteFile(p.dir+".new/web.yaml", []byte("pod one x"), 0o600))
	p.move(p.dir+".new", p.dir)
	l.Set().Holds(t, "one")
	p.put("web.yaml", "pod one y") // the directory is watched now
	l.Set().Names(t, "one")
}

// Shows: F42
func TestF42_SingleFileMissingAtFirst(t *testing.T) {
	t.Parallel()
	p := place{t, filepath.Join(t.TempDir(), "a/web.yaml")}
	l := p.listen()
	_ = l.Error()
	must(t, os.Mkdir(filepath.Dir(p.dir), 0o700))
	p.put("", "pod one x")
	l.Set().Holds(t, "one")
}

// Two renames replace the directory. No set shows that it is missing between them.
//
// Shows: F42
func TestF42_DirectoryReplacedIsOneChange(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("web.yaml", "pod one x\npod two x")
	l := p.patient()
	l.Set()
	next := place{t, p.dir + ".next"}
	must(t, os.Mkdir(next.dir, 0o700))
	next.put("web.yaml", "pod one x\npod two y")
	p.move(p.dir, p.dir+".before")
	p.move(next.dir, p.dir)
	w := l.Set()
	w.Holds(t, "one", "two")
	w.Names(t, "two")
	p.put("web.yaml", "pod one z\npod two y") // watched, though another inode
	l.Set().Names(t, "one")
}

// Shows: F42
func TestF42_UnreadablePathIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	must(t, os.Symlink("loop", loop))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for path, want := range map[string]string{
		loop:                           "too many levels of symbolic links",
		filepath.Join(dir, "dangling"): "is a symbolic link to a missing file",
		filepath.Join(dir, "file/x"):   "does not exist",
		filepath.Join(dir, strings.Repeat("x", 300)): "file name too long",
	} {
		if err := (place{t, path}).listen().Error(); err.Error() != want {
			t.Errorf("%s: error %q, want %q", path, err, want)
		}
	}
}

// asUnprivileged reads a source's first set as UID 65534: permission bits do not restrict
// root.
func asUnprivileged(t *testing.T, s *file.Source) (source.Snapshot, error) {
	t.Helper()
	var snapshot source.Snapshot
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its rights
		if os.Geteuid() == 0 {
			if _, err = unix.SetfsuidRetUid(65534); err != nil {
				return
			}
		}
		for snapshot, err = range s.Sets(t.Context()) {
			break
		}
	}()
	<-done
	return snapshot, err
}

// newOpenPlace returns a place that every user can read.
func newOpenPlace(t *testing.T) place {
	t.Helper()
	p := newPlace(t)
	for _, dir := range []string{p.dir, filepath.Dir(p.dir), filepath.Dir(filepath.Dir(p.dir))} {
		must(t, os.Chmod(dir, 0o755))
	}
	return p
}

// Shows: F45
func TestF45_PermissionDenied(t *testing.T) {
	t.Parallel()
	t.Run("of a file is its problem", func(t *testing.T) {
		p := newOpenPlace(t)
		p.put("good.yaml", "pod one x")
		must(t, os.Chmod(p.path("good.yaml"), 0o644))
		p.put("secret.yaml", "pod two x")
		must(t, os.Chmod(p.path("secret.yaml"), 0))
		snapshot, err := asUnprivileged(t, p.source())
		w := sourcetest.Result{Snapshot: snapshot, Err: err}
		w.Holds(t, "one", "!")
		if got := w.Files.At(1).Problems[0].Msg; got != "cannot be read: permission denied" {
			t.Errorf("problem %q", got)
		}
	})
	t.Run("of the directory is an error", func(t *testing.T) {
		p := newOpenPlace(t)
		p.put("good.yaml", "pod one x")
		must(t, os.Chmod(p.dir, 0))
		t.Cleanup(func() { must(t, os.Chmod(p.dir, 0o700)) })
		if _, err := asUnprivileged(t, p.source()); err == nil || err.Error() != "permission denied" {
			t.Errorf("error %v", err)
		}
	})
	t.Run("of a directory below is an error", func(t *testing.T) {
		p := newOpenPlace(t)
		must(t, os.Mkdir(p.path("below"), 0))
		t.Cleanup(func() { must(t, os.Chmod(p.path("below"), 0o700)) })
		_, err := asUnprivileged(t, p.source(func(c *file.Config) { c.Recursive = true }))
		if err == nil || err.Error() != p.path("below")+": permission denied" {
			t.Errorf("error %v", err)
		}
	})
}

// Shows: F43
func TestF43_DuplicatesAreAllReported(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("a.yaml", "pod one x")
	p.put("b.yaml", "pod one x")
	must(t, os.Link(p.path("a.yaml"), p.path("c.yaml")))
	l := p.listen()
	w := l.Set()
	w.Holds(t, "one", "one", "one")
	w.Names(t, "one")
	kept := w.Files.At(1).Pods[0]
	p.remove("a.yaml")
	w = l.Set()
	w.Holds(t, "one", "one")
	w.Names(t, "one")
	if w.Files.At(0).Pods[0] != kept {
		t.Error("removing one file touched the pod of another")
	}
}

// Shows: F45
func TestF45_WhatIsNoReadableFile(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		make func(t *testing.T, path string)
		want string // the problem; "" when it is read
	}{
		"named pipe": {func(t *testing.T, path string) { must(t, unix.Mkfifo(path, 0o600)) }, "is a named pipe; only regular files are read"},
		"socket": {func(t *testing.T, path string) {
			listener, err := net.Listen("unix", path)
			must(t, err)
			t.Cleanup(func() { _ = listener.Close() })
		}, "is a socket; only regular files are read"},
		"link to a device":   {func(t *testing.T, path string) { must(t, os.Symlink("/dev/zero", path)) }, "is a device; only regular files are read"},
		"link to nothing":    {func(t *testing.T, path string) { must(t, os.Symlink("nothing", path)) }, "is a symbolic link to a missing file"},
		"link to itself":     {func(t *testing.T, path string) { must(t, os.Symlink(filepath.Base(path), path)) }, "is a loop of symbolic links"},
		"unreadable":         {func(t *testing.T, path string) { must(t, os.Symlink("/proc/self/mem", path)) }, "cannot be read: input/output error"},
		"of a size it lacks": {func(t *testing.T, path string) { must(t, os.Symlink("/proc/version", path)) }, "cannot be read: its size is not the one that the file system reports"},
		"binary":             {func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte{0, 255, 1, 10, 7}, 0o600)) }, "is not a manifest"},
		"empty":              {func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) }, "is empty"},
		"over 10 MiB": {func(t *testing.T, path string) {
			whole := filepath.Join(filepath.Dir(path), "..odd") // a hidden name while it grows
			must(t, os.WriteFile(whole, []byte("#\n"), 0o600))
			must(t, os.Truncate(whole, file.SizeLimit+1))
			must(t, os.Rename(whole, path))
		}, "is larger than 10 MiB, the limit for one file"},
		"10 MiB": {func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte("pod odd x\n"+strings.Repeat("#\n", (file.SizeLimit-10)/2)), 0o600))
		}, ""},
		"link to a file elsewhere": {func(t *testing.T, path string) {
			must(t, os.WriteFile(filepath.Dir(path)+".elsewhere", []byte("pod odd x"), 0o600))
			must(t, os.Symlink(filepath.Dir(path)+".elsewhere", path))
		}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.put("good.yaml", "pod one x")
			l := p.listen()
			l.Set()
			c.make(t, p.path("odd.yaml"))
			w := l.Set()
			if c.want == "" {
				w.Holds(t, "one", "odd")
				return
			}
			w.Holds(t, "one", "!")
			if got := w.Files.At(1).Problems[0].Msg; got != c.want {
				t.Errorf("problem %q, want %q", got, c.want)
			}
			// The rest of the directory is still read, with it and after it.
			p.put("good.yaml", "pod one y")
			l.Set().Holds(t, "one", "!")
			p.remove("odd.yaml")
			l.Set().Holds(t, "one")
		})
	}
}

// Shows: F45
func TestF45_PathItselfIsAPipe(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.dir = p.path("pipe")
	must(t, unix.Mkfifo(p.dir, 0o600))
	w := p.listen().Set()
	w.Holds(t, "!")
	if got, want := w.Files.At(0).Problems[0].Hint, "use -f - to read standard input"; got != want {
		t.Errorf("hint %q, want %q", got, want)
	}
}

// Shows: F45
func TestF45_ManifestReplacedByAPipeKeepsItsPods(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("web.yaml", "pod one x")
	l := p.listen()
	first := l.Set()
	p.remove("web.yaml")
	must(t, unix.Mkfifo(p.path("web.yaml"), 0o600))
	l.Set().Holds(t, "!")
	p.remove("web.yaml")
	p.put("web.yaml", "pod one x")
	w := l.Set()
	w.Holds(t, "one")
	if w.Pod("one") != first.Pod("one") {
		t.Error("the pod is another pointer")
	}
}

func TestSkippedNamesAndReasons(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, name := range []string{".hidden.yaml", "web.yaml~", "web.yaml.bak", "web.swp", "README.md", "kube-apiserver.yaml-bak", "#web.yaml#", "a.yaml", "b.yml", "c.json"} {
		must(t, os.WriteFile(p.path(name), []byte("pod p"+name+" x"), 0o600))
	}
	for _, name := range []string{"below", ".git", "..2026_1", "dir.yaml"} {
		must(t, os.Mkdir(p.path(name), 0o700))
		must(t, os.WriteFile(p.path(name+"/deep.yaml"), []byte("pod deep-"+name+" x"), 0o600))
	}
	must(t, os.Symlink("below", p.path("link.yaml")))
	say := func(recursive bool) (pods, skipped []string) {
		w := p.listen(func(c *file.Config) { c.Recursive = recursive }).Set()
		for _, s := range w.Skipped {
			skipped = append(skipped, strings.TrimPrefix(s.Error(), p.dir+"/"))
		}
		return w.Contents(), skipped
	}
	skips := []string{
		"#web.yaml#: skipped: not .yaml, .yml or .json",
		".git: skipped: hidden directory",
		".hidden.yaml: skipped: hidden file",
		"README.md: skipped: not .yaml, .yml or .json",
		"below: skipped: directory",
		"dir.yaml: skipped: directory",
		"kube-apiserver.yaml-bak: skipped: not .yaml, .yml or .json",
		"link.yaml: skipped: symbolic link to a directory",
		"web.swp: skipped: backup file",
		"web.yaml.bak: skipped: backup file",
		"web.yaml~: skipped: backup file",
	}
	read := []string{"pa.yaml", "pb.yml", "pc.json"}
	for _, recursive := range []bool{false, true} {
		if recursive {
			skips = slices.DeleteFunc(skips, func(s string) bool { return strings.HasSuffix(s, ": directory") })
			read = append([]string{"deep-below", "deep-dir.yaml"}, read...)
		}
		pods, skipped := say(recursive)
		if !slices.Equal(pods, read) {
			t.Errorf("recursive %v: read %q, want %q", recursive, pods, read)
		}
		if !slices.Equal(skipped, skips) {
			t.Errorf("recursive %v: skipped\n%s\nwant\n%s", recursive, strings.Join(skipped, "\n"), strings.Join(skips, "\n"))
		}
	}
}

func TestNoticesOfTheParserAreSkips(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("web.yaml", "pod one x\nnotice unknown field")
	w := p.listen().Set()
	w.Holds(t, "one")
	if len(w.Skipped) != 1 || w.Skipped[0].Msg != "unknown field" {
		t.Errorf("skipped: %+v", w.Skipped)
	}
}

// The rescan finds changes without inotify events: in the target of a link, and in
// skipped files.
func TestRescanFindsChangesWithoutEvents(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	elsewhere := newPlace(t)
	elsewhere.put("real.yaml", "pod one x")
	must(t, os.Symlink(elsewhere.path("real.yaml"), p.path("web.yaml")))
	l := p.listen(func(c *file.Config) { c.CheckFrequency = 10 * time.Millisecond })
	l.Set()
	elsewhere.put("real.yaml", "pod one y")
	l.Set().Names(t, "one")
	must(t, os.WriteFile(p.path("notes.txt"), nil, 0o600))
	w := l.Set()
	w.Names(t)
	if len(w.Skipped) != 1 {
		t.Errorf("skipped: %+v", w.Skipped)
	}
}

func TestNameIsThePathAsGiven(t *testing.T) {
	t.Parallel()
	if got := file.New(file.Config{Path: "./manifests/"}).Name(); got != "file:./manifests/" {
		t.Errorf("name %q", got)
	}
}

func TestRelativePathsAreReadAndWatched(t *testing.T) {
	p := newPlace(t)
	p.put("web.yaml", "pod one x")
	t.Chdir(filepath.Dir(p.dir))
	for _, path := range []string{"manifests", "./manifests/", "manifests/web.yaml"} {
		t.Run(path, func(t *testing.T) {
			l := p.listen(func(c *file.Config) { c.Path = path })
			w := l.Set()
			if got := w.Files.At(0).File; got != "manifests/web.yaml" {
				t.Errorf("file %q", got)
			}
			p.put("web.yaml", "pod one "+path)
			l.Set().Names(t, "one")
		})
	}
	t.Run(".", func(t *testing.T) {
		t.Chdir(p.dir)
		l := p.listen(func(c *file.Config) { c.Path = "." })
		l.Set()
		p.put("web.yaml", "pod one again")
		l.Set().Names(t, "one")
	})
}
