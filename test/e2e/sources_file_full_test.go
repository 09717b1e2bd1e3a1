//go:build full

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestF40_F46_FileFaultsAreSeenAndMended causes one fault after the other under one agent.
// Each time the running pods are the same processes afterwards, and the fault is in get
// sources with its reason and in the log. The agent follows good files beside it, and mending
// it is an ordinary edit.
//
// Shows: F40, F46
func TestF40_F46_FileFaultsAreSeenAndMended(t *testing.T) {
	s := parallelStage(t)
	a := s.serve("--file-check-frequency", "1s")
	kept := s.keep()
	s.write("web.yaml", simple("web"))
	web := s.awaitRunning("web", "main")
	s.awaitOK("file")
	edits := 0
	// mended restores web with an edit, and waits until the agent has applied it.
	mended := func() {
		s.Helper()
		edits++
		value := fmt.Sprint("v", edits)
		s.write("web.yaml", labelled(simple("web"), value))
		s.awaitLabel("web", value)
		s.awaitOK("file")
		s.untouched("web", web)
		s.untouched("keep", kept)
	}
	// others shows that the source follows its other files.
	others := func() {
		s.Helper()
		edits++
		value := fmt.Sprint("v", edits)
		s.write("keep.yaml", labelled(simple("keep"), value))
		s.awaitLabel("keep", value)
		s.untouched("web", web)
		s.untouched("keep", kept)
	}

	s.scene("F40 a writer killed midway", func() {
		text := labelled(simple("web"), "half")
		s.inPlace("web.yaml", text[:len(text)*2/3])
		p := s.awaitRejected("file", "web.yaml")
		if p.Message == "" {
			s.Errorf("the problem has no reason: %+v", p)
		}
		a.await("level=WARN", "web.yaml")
		others()
		mended()
	})
	s.scene("F40 a writer that takes its time", func() {
		s.writeSlowly("web.yaml", labelled(simple("web"), "slow"), 4, func() { s.untouched("web", web) })
		s.awaitLabel("web", "slow")
		mended()
	})
	s.scene("F41 all files garbage", func() {
		lines := len(a.linesWith("Error in manifest file"))
		s.inPlace("web.yaml", "\x00\x01\x02")
		s.inPlace("keep.yaml", "")
		s.awaitSource("file", "rejects both", func(it sourceState) bool { return len(it.Problems) == 2 && it.Pods == 2 })
		a.awaitLines(lines+2, "Error in manifest file")
		s.untouched("web", web)
		s.untouched("keep", kept)
		s.write("keep.yaml", simple("keep"))
		mended()
	})
	s.scene("F45 what is no regular file", func() {
		lines := len(a.linesWith("web.yaml"))
		path := func(file string) string { return filepath.Join(s.manifests, file) }
		s.must(unix.Mkfifo(path("fifo.yaml"), 0o600), os.Symlink("/dev/zero", path("zero.yaml")),
			os.WriteFile(path("huge.yaml"), make([]byte, 11<<20), 0o600))
		for _, file := range []string{"fifo.yaml", "zero.yaml", "huge.yaml"} {
			s.awaitRejected("file", file)
			a.await(file)
		}
		others()
		// One of them replaces a good manifest.
		s.must(unix.Mkfifo(filepath.Join(s.dir, "web.yaml"), 0o600), os.Rename(filepath.Join(s.dir, "web.yaml"), path("web.yaml")))
		s.awaitRejected("file", "web.yaml")
		a.awaitLines(lines+1, "web.yaml")
		others()
		for _, file := range []string{"fifo.yaml", "zero.yaml", "huge.yaml"} {
			s.remove(file)
		}
		mended()
	})
	s.scene("F46 bombs beside good pods", func() {
		bombs := map[string]string{
			"aliases.yaml": aliasBomb(),
			"deep.yaml":    "a: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
			"keys.yaml":    manyKeys(1_000_000),
		}
		for file, text := range bombs {
			s.write(file, text)
		}
		for file := range bombs {
			s.awaitRejected("file", file)
			a.await("Error in manifest file", file)
		}
		others()
		s.inPlace("web.yaml", bombs["aliases.yaml"])
		s.awaitRejected("file", "web.yaml")
		s.untouched("web", web)
		if kB := peak(s.T, a.cmd.Process.Pid); kB > 256<<10 {
			s.Errorf("the agent has used %d MiB", kB>>10)
		}
		for file := range bombs {
			s.remove(file)
		}
		mended()
	})
}

// aliasBomb is small, and expands to a hundred million strings.
func aliasBomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n")
	for i := range 8 {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	return b.String() + "apiVersion: v1\nkind: Pod\nmetadata: {name: bomb}\n"
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	return b.String()
}

// peak returns the most memory a process has used, in kB.
func peak(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kB int
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kB); err == nil {
			return kB
		}
	}
	t.Fatal("/proc tells no VmHWM")
	return 0
}

// TestF42_DirectoryAndMountAway: a directory that is moved away, or whose file system is
// unmounted, is an unreadable source. Its pods run on, get sources shows since when and why,
// and later changes are applied when it is back.
//
// Shows: F42
func TestF42_DirectoryAndMountAway(t *testing.T) {
	s := parallelStage(t)
	real, away := filepath.Join(s.dir, "real"), filepath.Join(s.dir, "away")
	s.must(os.Mkdir(real, 0o700), os.WriteFile(filepath.Join(real, "one.yaml"), []byte(simple("one")), 0o600))
	mounted := filepath.Join(s.dir, "mounted")
	s.must(os.Mkdir(mounted, 0o700), unix.Mount(real, mounted, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	a := s.serve("-f", mounted, "--file-check-frequency", "1s")
	kept := s.keep()
	one := s.awaitRunning("one", "main")

	begin := time.Now()
	s.must(os.Rename(s.manifests, away))
	it := s.awaitStale(s.manifests, 1, begin, "does not exist")
	a.await("Failed to read source", s.manifests)
	s.awaitOK(mounted) // the other source is OK
	if table := s.run("get", "sources"); !strings.Contains(table.out, " stale ") || !strings.Contains(table.out, "since "+atClock(it.Since)+": "+it.Error) {
		t.Errorf("get sources:\n%s", table.out)
	}
	s.untouched("keep", kept)
	s.must(os.WriteFile(filepath.Join(away, "more.yaml"), []byte(simple("more")), 0o600), os.Rename(away, s.manifests))
	s.awaitRunning("more", "main")
	s.awaitOK(s.manifests)
	a.await("Source can be read again", s.manifests)
	s.untouched("keep", kept)

	// Unmounted: the directory below exists, and is empty.
	begin = time.Now()
	s.eventually(func() error { return unix.Unmount(mounted, 0) }) // not while the agent reads it
	it = s.awaitStale(mounted, 1, begin, "unmounted?")
	a.await("Failed to read source", mounted)
	s.untouched("one", one)
	s.must(os.Remove(filepath.Join(real, "one.yaml")), os.WriteFile(filepath.Join(real, "two.yaml"), []byte(simple("two")), 0o600))
	s.untouched("one", one)
	s.must(unix.Mount(real, mounted, "", unix.MS_BIND, ""))
	s.awaitRunning("two", "main")
	s.awaitGone("one")
	s.awaitOK(mounted)
	s.untouched("keep", kept)
	s.eventually(func() error { return unix.Unmount(mounted, 0) }) // not while the agent reads it
	s.awaitStale(mounted, 1, begin, it.Error)
}

// TestF43_OtherFilesOfAPodChange_CausesNoUpdate: the losing file of two may be first in byte order, change and be
// removed without an effect on its pod; when the winner is removed, the loser takes over
// without a gap.
//
// Shows: F43
func TestF43_OtherFilesOfAPodChange_CausesNoUpdate(t *testing.T) {
	s := parallelStage(t)
	s.write("m.yaml", labelled(simple("web"), "winner"))
	a := s.serve("--file-check-frequency", "1s")
	web := s.awaitRunning("web", "main")
	loses := func(file string) func(sourceState) bool {
		return func(it sourceState) bool {
			return len(it.Conflicts) == 1 && strings.HasSuffix(it.Conflicts[0].Loser.File, file) && strings.HasSuffix(it.Conflicts[0].Winner.File, "/m.yaml")
		}
	}
	for _, file := range []string{"a.yaml", "z.yaml"} {
		s.write(file, labelled(strings.Replace(simple("web"), "forever", "print, usurper, forever", 1), "loser"))
		s.awaitSource("file", file+" loses", loses(file))
		a.await("Pod is defined more than once", file, "m.yaml")
		s.inPlace(file, "kind: [") // a broken loser is still a loser
		s.awaitRejected("file", file)
		s.remove(file)
		s.awaitOK("file")
		s.untouched("web", web)
	}
	s.write("a.yaml", labelled(simple("web"), "heir"))
	s.awaitSource("file", "a.yaml loses", loses("a.yaml"))
	s.must(os.Link(filepath.Join(s.manifests, "m.yaml"), filepath.Join(s.manifests, "l.yaml"))) // a hard link is a second file
	s.awaitSource("file", "two lose", func(it sourceState) bool { return len(it.Conflicts) == 2 })
	s.remove("l.yaml")
	s.remove("m.yaml")
	s.awaitLabel("web", "heir")
	s.untouched("web", web)
	if all := s.awaitSource("file", "no conflict", func(it sourceState) bool { return len(it.Conflicts) == 0 }); all.Pods != 1 {
		t.Errorf("%+v", all)
	}
	if gaps := a.linesWith("no longer in the desired set"); len(gaps) > 0 {
		t.Errorf("a gap: %v", gaps)
	}
	s.remove("a.yaml")
	s.awaitGone("web")
}

// TestF44_EditorsAndConfigMaps: an update of a file by an editor or by the kubelet's
// ConfigMap volume is one edit, and no pod stops meanwhile.
//
// Shows: F44
func TestF44_EditorsAndConfigMaps(t *testing.T) {
	s := parallelStage(t)
	volume := filepath.Join(s.dir, "volume")
	version := func(name, value string) string {
		dir := filepath.Join(volume, name)
		s.must(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "map.yaml"), []byte(labelled(simple("map"), value)), 0o600))
		return name
	}
	s.must(os.MkdirAll(volume, 0o700), os.Symlink(version("..one", "one"), filepath.Join(volume, "..data")),
		os.Symlink("..data/map.yaml", filepath.Join(volume, "map.yaml")))
	a := s.serve("-f", volume, "--file-check-frequency", "1s")
	kept := s.keep()
	inMap := s.awaitRunning("map", "main")
	path := filepath.Join(s.manifests, "keep.yaml")
	text := func(v string) []byte { return []byte(labelled(simple("keep"), v)) }
	var gap time.Duration // how long the file was missing
	forgiven := 0
	replace := func(away func() error, v string) {
		begin := time.Now()
		s.must(away())
		s.must(os.WriteFile(path, text(v), 0o600))
		gap = time.Since(begin)
	}
	backup := func() error { return os.Rename(path, path+"~") }
	for name, edit := range map[string]func(v string) error{
		"vim with a backup": func(v string) error {
			probe := filepath.Join(s.manifests, "4913")
			s.must(os.WriteFile(filepath.Join(s.manifests, ".keep.yaml.swp"), []byte("b0VIM"), 0o600), os.WriteFile(probe, nil, 0o600), os.Remove(probe))
			replace(backup, v)
			return os.Remove(path + "~")
		},
		"emacs": func(v string) error {
			lock := filepath.Join(s.manifests, ".#keep.yaml")
			s.must(os.Symlink("root@host.1:1", lock), os.WriteFile(filepath.Join(s.manifests, "#keep.yaml#"), text("auto-saved"), 0o600))
			replace(backup, v)
			return os.Remove(lock)
		},
		"rsync": func(v string) error {
			tmp := filepath.Join(s.manifests, ".keep.yaml.Xy12ab")
			s.must(os.WriteFile(tmp, text(v), 0o600))
			return os.Rename(tmp, path)
		},
		"cp": func(v string) error { return os.WriteFile(path, text(v), 0o600) },
		"removed and written": func(v string) error {
			replace(func() error { return os.Remove(path) }, v)
			return nil
		},
	} {
		value := strings.ReplaceAll(name, " ", "-")
		for try := 0; ; try++ {
			gap = 0
			s.must(edit(fmt.Sprint(value, try)))
			if gap >= 60*time.Millisecond {
				s.history.Gap(s.full("keep"))
			}
			s.awaitLabel("keep", fmt.Sprint(value, try))
			if gap < 60*time.Millisecond { // the agent waits for 100
				break
			}
			if try == 9 {
				t.Fatalf("%s: the file was away for %s at each try", name, gap)
			}
			// The machine was too slow: no editor takes so long, and the agent may have
			// treated it as a removal. Then the pod came back, and the test repeats the edit.
			s.excuse("keep")
			s.awaitReady("keep", true)
			kept = s.awaitRunning("keep", "main")
			forgiven = len(a.linesWith("no longer in the desired set"))
		}
		s.untouched("keep", kept)
	}
	for _, v := range []string{"two", "three"} {
		tmp := filepath.Join(volume, "..data_tmp")
		s.must(os.Symlink(version(".."+v, v), tmp), os.Rename(tmp, filepath.Join(volume, "..data")))
		s.awaitLabel("map", v)
		s.untouched("map", inMap)
	}
	if gaps := a.linesWith("no longer in the desired set")[forgiven:]; len(gaps) > 0 {
		t.Errorf("a gap: %v", gaps)
	}
	it := s.awaitSource(s.manifests, "skips", func(it sourceState) bool { return len(it.Skipped) > 0 })
	for _, p := range it.Skipped {
		if p.Message == "" {
			t.Errorf("skipped without a reason: %+v", p)
		}
	}
	if len(it.Problems) > 0 {
		t.Errorf("problems: %+v", it.Problems)
	}
}
