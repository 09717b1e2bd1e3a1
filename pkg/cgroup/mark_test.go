package cgroup

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// everyDir calls f for each cgroup below root in each hierarchy, root included.
func everyDir(t *testing.T, root string, f func(dir string)) {
	t.Helper()
	for _, dir := range rootDirs(t, root) {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				f(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func mkdir(t *testing.T, root, name string) {
	t.Helper()
	for _, dir := range rootDirs(t, root) {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestF34_EveryCgroupIsMarked: the mark has the node, and an identity of the root
// directory; the tiers keep no claims.
//
// Shows: F34
func TestF34_EveryCgroupIsMarked(t *testing.T) {
	g := cgroupsOf(t)
	put(t, g, shape(t, "a", guaranteed))
	put(t, g, shape(t, "b", burstablePod))
	everyDir(t, g.cfg.Root, func(dir string) {
		mark, err := attributeOf(dir, "trusted.nodectl")
		if err != nil || !strings.HasPrefix(mark, "n1 ") || len(strings.Fields(mark)[1]) != 16 {
			t.Errorf("%s: mark %q, %v", dir, mark, err)
		}
		names := make([]byte, 1024)
		n, err := unix.Llistxattr(dir, names)
		if list := string(names[:max(n, 0)]); err != nil || list != "trusted.nodectl\x00" {
			t.Errorf("%s has %q, %v", dir, list, err)
		}
	})
	if _, err := os.Stat(filepath.Join(g.cfg.RootDir, "cgroups.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a list was written: %v", err)
	}
	// A root directory that is reached by a link has the same identity.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(g.cfg.RootDir, link); err != nil {
		t.Fatal(err)
	}
	c := g.cfg
	c.RootDir = link
	want(t, "through a link", New(c).marks.id, g.marks.id)
}

// TestF34_AnotherAgentsCgroups: its tree is refused, and its pods are not changed.
//
// Shows: F34
func TestF34_AnotherAgentsCgroups(t *testing.T) {
	g := cgroupsOf(t)
	put(t, g, shape(t, "a", burstablePod))
	before := snapshot(t, g.cfg.Root)
	for what, edit := range map[string]func(*Config){
		"another root directory": func(c *Config) { c.RootDir = t.TempDir() },
		"another node":           func(c *Config) { c.Node = "n" },
	} {
		c := g.cfg
		edit(&c)
		other := New(c)
		for _, uid := range []string{"a", "b"} {
			if _, err := other.Ensure(shape(t, uid, guaranteed)); err == nil || !strings.Contains(err.Error(), "belongs to another nodectl") {
				t.Errorf("%s: %v", what, err)
			}
		}
		want(t, what+": parent", other.Parent(shape(t, "a", burstablePod)), "")
		if err := other.Foreign(); err == nil || !strings.Contains(err.Error(), "belongs to another nodectl") {
			t.Errorf("%s: beforehand it is %v", what, err)
		}
		if err := other.Destroy("a"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		removed, err := other.Sweep(nil)
		want(t, what+": swept", removed, []string{})
		want(t, what+": sweep", err, nil)
		unchanged(t, g.cfg.Root, before)
	}
}

// TestF34_EmptyTreeIsTakenOver: an empty tree that a kubelet left is used, with a line in
// the log.
//
// Shows: F34
func TestF34_EmptyTreeIsTakenOver(t *testing.T) {
	var log strings.Builder
	g := cgroupsOf(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	mkdir(t, g.cfg.Root, "kubepods/burstable")
	mkdir(t, g.cfg.Root, "kubepods/besteffort")
	want(t, "beforehand", g.Foreign(), nil)
	put(t, g, shape(t, "a", burstablePod))
	want(t, "of ours", g.Foreign(), nil)
	everyDir(t, g.cfg.Root, func(dir string) {
		o, _, err := g.marks.owner(dir)
		if isRoot := filepath.Base(dir) == filepath.Base(g.cfg.Root); err != nil || isRoot && o != unmarked || !isRoot && o != ours {
			t.Errorf("%s: owner %d, %v", dir, o, err)
		}
	})
	if n := strings.Count(log.String(), "Taking over empty cgroup"); n != 3 {
		t.Errorf("log: %s", &log)
	}
	want(t, "memory", value(t, g.cfg.Root+"/kubepods", "memory.limit_in_bytes"), 1<<30)
	if err := g.Destroy("a"); err != nil {
		t.Fatal(err)
	}
	want(t, "left: the root belongs to another program", names(t, g.cfg.Root), []string{""})
}

// TestF34_UsedTreeIsNotTakenOver: a tree with a process, or with a cgroup that is no tier,
// is not used.
//
// Shows: F34
func TestF34_UsedTreeIsNotTakenOver(t *testing.T) {
	for what, use := range map[string]func(t *testing.T, root string){
		"a process in kubepods": func(t *testing.T, root string) {
			mkdir(t, root, "kubepods")
			inside(t, root+"/kubepods")
		},
		"a process in a tier": func(t *testing.T, root string) {
			mkdir(t, root, "kubepods/besteffort")
			inside(t, root+"/kubepods/besteffort")
		},
		"another group":       func(t *testing.T, root string) { mkdir(t, root, "kubepods/system") },
		"another group below": func(t *testing.T, root string) { mkdir(t, root, "kubepods/burstable/burstable") },
		"a pod":               func(t *testing.T, root string) { mkdir(t, root, "kubepods/pod1") },
		"a pod in one hierarchy": func(t *testing.T, root string) {
			mkdir(t, root, ".")
			if err := os.MkdirAll(rootDirs(t, root)[3]+"/kubepods/besteffort/pod1", 0o755); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := cgroupsOf(t)
			use(t, g.cfg.Root)
			before := snapshot(t, g.cfg.Root)
			var foreign *ForeignError
			if _, err := g.Ensure(shape(t, "a", burstablePod)); !errors.As(err, &foreign) || foreign.Holds == "" {
				t.Errorf("error %v", err)
			}
			if said := *foreign; !errors.As(g.Foreign(), &foreign) || *foreign != said {
				t.Errorf("beforehand it is %v", g.Foreign())
			}
			unchanged(t, g.cfg.Root, before)
		})
	}
}

// TestF34_ForeignPodBesideOurs: a pod's cgroup that another program made in our tree is not
// changed, even if it has the name of a pod of ours.
//
// Shows: F34
func TestF34_ForeignPodBesideOurs(t *testing.T) {
	g := cgroupsOf(t)
	put(t, g, shape(t, "a", burstablePod))
	mkdir(t, g.cfg.Root, "kubepods/burstable/podb/container")
	mkdir(t, g.cfg.Root, "kubepods/podc")
	before := snapshot(t, g.cfg.Root)
	for uid, spec := range map[string]string{"b": burstablePod, "c": guaranteed} {
		var foreign *ForeignError
		if _, err := g.Ensure(shape(t, uid, spec)); !errors.As(err, &foreign) || !foreign.Pod || !strings.Contains(err.Error(), "/pod"+uid+" is not nodectl's") {
			t.Errorf("%s: %v", uid, err)
		}
		want(t, "parent", g.Parent(shape(t, uid, spec)), "")
		if err := g.Destroy(uid); err != nil {
			t.Error(err)
		}
	}
	removed, err := g.Sweep(map[string]bool{"a": true})
	want(t, "swept", removed, []string{})
	want(t, "sweep", err, nil)
	unchanged(t, g.cfg.Root, before)
	if err := g.Destroy("a"); err != nil {
		t.Fatal(err)
	}
	want(t, "left", names(t, g.cfg.Root), []string{"", "/kubepods", "/kubepods/burstable", "/kubepods/burstable/podb", "/kubepods/burstable/podb/container", "/kubepods/podc"})
}

// bare is an agent on a kernel without support for such attributes.
func bare(g *Cgroups) *Cgroups {
	g.marks.set = func(string, string, []byte) error { return unix.ENOTSUP }
	return g
}

// TestF34_WithoutAttributesAListMarks: the same results with a file of our own, which no
// other agent reads.
//
// Shows: F34
func TestF34_WithoutAttributesAListMarks(t *testing.T) {
	g := bare(cgroupsOf(t))
	a := shape(t, "a", burstablePod)
	put(t, g, a)
	put(t, g, shape(t, "b", burstablePod))
	everyDir(t, g.cfg.Root, func(dir string) {
		if _, err := attributeOf(dir, attribute); err == nil {
			t.Errorf("%s has a mark", dir)
		}
	})
	file := filepath.Join(g.cfg.RootDir, "cgroups.json")
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "mode", info.Mode(), fs.FileMode(0o600))

	g = bare(again(g))
	want(t, "parent", g.Parent(a), g.cfg.Root+"/kubepods/burstable/poda")
	put(t, g, a)
	want(t, "shares of 500m", value(t, g.cfg.Root+"/kubepods/burstable", "cpu.shares"), 512)
	if err := g.Destroy("a"); err != nil {
		t.Fatal(err)
	}
	// A cgroup of the same name that another program made later is not ours.
	mkdir(t, g.cfg.Root, "kubepods/burstable/poda")
	var foreign *ForeignError
	if _, err := g.Ensure(a); !errors.As(err, &foreign) {
		t.Errorf("error %v", err)
	}
	for _, dir := range rootDirs(t, g.cfg.Root) {
		if err := os.Remove(dir + "/kubepods/burstable/poda"); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(dir + "/kubepods/burstable/podb"); err != nil {
			t.Fatal(err)
		}
	}
	mkdir(t, g.cfg.Root, "kubepods/burstable/podb") // in place of a listed one
	removed, err := bare(again(g)).Sweep(nil)
	want(t, "swept", removed, []string{})
	want(t, "sweep", err, nil)

	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var l listed
	if err := json.Unmarshal(data, &l); err != nil {
		t.Fatal(err)
	}
	l.Boot = "another"
	if data, err = json.Marshal(l); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if o, _, err := bare(again(g)).marks.owner(rootDirs(t, g.cfg.Root)[0] + "/kubepods"); o != unmarked || err != nil {
		t.Errorf("of another boot: owner %d, %v", o, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bare(again(g)).Ensure(a); err == nil || !strings.Contains(err.Error(), "cgroups.json") {
		t.Errorf("damaged: %v", err)
	}
}

// TestF34_NothingIsWrittenElsewhere: no attribute is set on a cgroup root that another
// program made, and no claim for another agent's cgroups.
//
// Shows: F34
func TestF34_NothingIsWrittenElsewhere(t *testing.T) {
	g := cgroupsOf(t)
	mkdir(t, g.cfg.Root, ".")
	set := g.marks.set
	g.marks.set = func(path, name string, value []byte) error {
		if slices.Contains(rootDirs(t, g.cfg.Root), path) {
			t.Errorf("%s is set on %s", name, path)
		}
		return set(path, name, value)
	}
	put(t, g, shape(t, "a", burstablePod))
	tier := rootDirs(t, g.cfg.Root)[0] + "/kubepods/burstable"
	if err := unix.Lsetxattr(tier, "trusted.nodectl.podb", []byte("n2 0123456789abcdef 0"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := again(g).Sweep(map[string]bool{"a": true}); err != nil {
		t.Fatal(err)
	}
	if _, err := attributeOf(tier, "trusted.nodectl.podb"); err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(tier+"/podb", 0o755); err != nil {
		t.Fatal(err)
	}
	if o, _, err := g.marks.owner(tier + "/podb"); o != unmarked || err != nil {
		t.Errorf("owner %d, %v", o, err)
	}
}
