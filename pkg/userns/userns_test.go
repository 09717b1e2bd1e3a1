package userns

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
)

// config returns a configuration with a temporary root, and, if given, one text of
// subordinate IDs for both files.
func config(t *testing.T, subordinate string) Config {
	t.Helper()
	dir := t.TempDir()
	c := Config{Root: filepath.Join(dir, "root"), MaxPods: 110, SubUID: filepath.Join(dir, "subuid"), SubGID: filepath.Join(dir, "subgid")}
	if subordinate != "" {
		write(t, c.SubUID, subordinate)
		write(t, c.SubGID, subordinate)
	}
	return c
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (c Config) file(uid string) string { return filepath.Join(c.Root, "pods", uid, "userns") }

func give(t *testing.T, b *Blocks, uid string) pod.Users {
	t.Helper()
	u, err := b.Allocate(uid)
	if err != nil {
		t.Fatalf("%s: %v", uid, err)
	}
	return *u
}

// Shows: C-1.42.1
func TestC_1_42_1_FormOfTheFile(t *testing.T) {
	t.Parallel()
	c := config(t, "")
	if got := give(t, New(c), "5e9c"); got != (pod.Users{HostID: 65536, Length: 65536}) {
		t.Errorf("%+v", got)
	}
	text, err := os.ReadFile(c.file("5e9c"))
	want := `{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}` + "\n"
	if err != nil || string(text) != want {
		t.Errorf("%q, %v", text, err)
	}
	info, err := os.Stat(c.file("5e9c"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if list, _ := os.ReadDir(filepath.Dir(c.file("5e9c"))); len(list) != 1 {
		t.Errorf("beside it: %v", list)
	}
}

// Shows: C-1.42.1
func TestC_1_42_1_Ranges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, uid, gid string
		length         uint32
		pods           int
		first          uint32
		wrong          string
	}{
		{name: "no files", uid: "-", gid: "-", pods: 110, first: 65536},
		{name: "others alone", uid: "joe:100000:65536\n", gid: "", pods: 110, first: 65536},
		{name: "no room in the world", uid: "-", gid: "-", pods: 65535, wrong: "has 65534 blocks of 65536, and there may be 65535 pods"},
		{name: "the kubelet's", uid: "joe:1:2\nkubelet:131072:7208960\n", gid: "kubelet:131072:7208960", pods: 110, first: 131072},
		{name: "ours first", uid: "kubelet:65536:7208960\nnodectl:655360:7208960\n", gid: "nodectl:655360:7208960\nkubelet:65536:7208960\n", pods: 110, first: 655360},
		{name: "larger blocks", uid: "-", gid: "-", length: 131072, pods: 110, first: 131072},
		{name: "odd blocks", uid: "-", gid: "-", length: 65537, pods: 1, wrong: "is not a multiple of 65536"},
		{name: "files that differ", uid: "kubelet:65536:7208960", gid: "kubelet:131072:7208960", pods: 110, wrong: "exactly one range, the same in both"},
		{name: "users alone", uid: "kubelet:65536:7208960", gid: "", pods: 110, wrong: "exactly one range, the same in both"},
		{name: "groups alone", uid: "", gid: "nodectl:65536:7208960", pods: 110, wrong: "exactly one range, the same in both"},
		{name: "two ranges", uid: "kubelet:65536:7208960\nkubelet:73400320:65536", gid: "kubelet:65536:7208960\nkubelet:73400320:65536", pods: 110, wrong: "exactly one range, the same in both"},
		{name: "odd offset", uid: "kubelet:65537:7208960", gid: "kubelet:65537:7208960", pods: 110, wrong: "is not made of blocks of 65536"},
		{name: "odd length", uid: "kubelet:65536:7208961", gid: "kubelet:65536:7208961", pods: 110, wrong: "is not made of blocks of 65536"},
		{name: "root", uid: "kubelet:0:7208960", gid: "kubelet:0:7208960", pods: 110, wrong: "starts with ID 0, the node's root"},
		{name: "too few", uid: "kubelet:65536:7143424", gid: "kubelet:65536:7143424", pods: 110, wrong: "has 109 blocks of 65536, and there may be 110 pods"},
		{name: "past the end", uid: "kubelet:4294901760:65536", gid: "kubelet:4294901760:65536", pods: 1, wrong: "goes past the last ID"},
		{name: "no numbers", uid: "kubelet:a:b", gid: "kubelet:a:b", pods: 1, wrong: `"kubelet:a:b" is not a range of user kubelet`},
		{name: "negative", uid: "kubelet:-65536:65536", gid: "kubelet:-65536:65536", pods: 1, wrong: "is not a range of user kubelet"},
		{name: "too large a number", uid: "kubelet:4294967296:65536", gid: "", pods: 1, wrong: "is not a range of user kubelet"},
		{name: "nothing", uid: "kubelet:65536:0", gid: "kubelet:65536:0", pods: 1, wrong: "is not a range of user kubelet"},
		{name: "short line", uid: "kubelet:65536", gid: "", pods: 1, wrong: "is not a range of user kubelet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, "")
			if c.uid != "-" {
				write(t, cfg.SubUID, c.uid)
				write(t, cfg.SubGID, c.gid)
			}
			cfg.Length, cfg.MaxPods = c.length, c.pods
			u, err := New(cfg).Allocate("a")
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("%v, %v; want %q", u, err, c.wrong)
				}
				return
			}
			if err != nil || u.HostID != c.first || u.Length != max(c.length, DefaultLength) {
				t.Errorf("%+v, %v", u, err)
			}
		})
	}
}

// Shows: C-1.42.1
func TestC_1_42_1_AllBlocksAreGiven(t *testing.T) {
	t.Parallel()
	c := config(t, fmt.Sprintf("nodectl:%d:%d", 3*65536, 4*65536))
	c.MaxPods = 4
	b := New(c)
	var got []uint32
	for i := range 4 {
		got = append(got, give(t, b, fmt.Sprint("p", i)).HostID/65536)
	}
	if !slices.Equal(got, []uint32{3, 4, 5, 6}) {
		t.Errorf("%v", got)
	}
	if u, err := b.Allocate("p4"); err == nil || err.Error() != "all 4 blocks of users are allocated" {
		t.Errorf("%v, %v", u, err)
	}
	if err := b.Release("p1"); err != nil {
		t.Fatal(err)
	}
	if u := give(t, b, "p4"); u.HostID != 4*65536 {
		t.Errorf("%+v", u)
	}
}

// An invalid file allocates nothing to its pod. As its block might be any, no other pod
// gets a new one. Existing blocks of others stay.
//
// Shows: C-1.42.2
func TestC_1_42_2_DamagedFileIsAnError(t *testing.T) {
	t.Parallel()
	const whole = `{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`
	for name, text := range map[string]string{
		"empty":           "",
		"half":            whole[:40],
		"no JSON":         "65536",
		"more":            whole + whole,
		"another field":   strings.Replace(whole, `{"uid`, `{"x":1,"uid`, 1),
		"nothing":         `{}`,
		"no groups":       `{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`,
		"other groups":    strings.Replace(whole, `"gidMappings":[{"hostId":65536`, `"gidMappings":[{"hostId":131072`, 1),
		"two blocks":      strings.ReplaceAll(whole, `}]`, `},{"hostId":131072,"containerId":65536,"length":65536}]`),
		"not from root":   strings.ReplaceAll(whole, `"containerId":0`, `"containerId":1`),
		"the node's root": strings.ReplaceAll(whole, `"hostId":65536`, `"hostId":0`),
		"no users":        strings.ReplaceAll(whole, `"length":65536`, `"length":0`),
		"negative":        strings.ReplaceAll(whole, `"hostId":65536`, `"hostId":-1`),
		"too large":       strings.ReplaceAll(whole, `"hostId":65536`, `"hostId":4294967296`),
		"very long":       whole + strings.Repeat(" ", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config(t, "")
			was := give(t, New(c), "well")
			write(t, c.file("bad"), text)
			b := New(c)
			if u, err := b.Allocate("bad"); err == nil || !strings.Contains(err.Error(), c.file("bad")) {
				t.Errorf("its pod: %v, %v", u, err)
			}
			if u, err := b.Allocate("new"); err == nil || !strings.Contains(err.Error(), c.file("bad")) {
				t.Errorf("another: %v, %v", u, err)
			}
			if got := give(t, b, "well"); got != was {
				t.Errorf("who has some: %v, want %v", got, was)
			}
			if err := os.RemoveAll(filepath.Dir(c.file("bad"))); err != nil {
				t.Fatal(err)
			}
			if got := give(t, b, "new"); got.HostID == was.HostID {
				t.Errorf("when it is gone: %v", got)
			}
		})
	}
}

// A block outside this node's range is an error only for its own pod.
//
// Shows: C-1.42.2
func TestC_1_42_2_BlockOfAnotherRange(t *testing.T) {
	t.Parallel()
	for name, u := range map[string]pod.Users{
		"before it":      {HostID: 65536, Length: 65536},
		"after it":       {HostID: 20 * 65536, Length: 65536},
		"across":         {HostID: 10*65536 + 1, Length: 65536},
		"another length": {HostID: 10 * 65536, Length: 2 * 65536},
		"most of all":    {HostID: 1, Length: math.MaxUint32},
	} {
		c := config(t, fmt.Sprintf("kubelet:%d:%d", 10*65536, 5*65536))
		c.MaxPods = 5
		write(t, c.file("odd"), string(encode(u)))
		b := New(c)
		if got, err := b.Allocate("odd"); err == nil || !strings.Contains(err.Error(), "not one of this node's blocks of 65536 from 655360 on") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if got, err := b.Allocate("new"); err == nil && (overlap(*got, u) || got.HostID < 10*65536) || err != nil && name != "most of all" {
			t.Errorf("%s: another gets %v, %v", name, got, err)
		}
	}
}

func overlap(a, b pod.Users) bool {
	return uint64(a.HostID) < uint64(b.HostID)+uint64(b.Length) && uint64(b.HostID) < uint64(a.HostID)+uint64(a.Length)
}

// Shows: C-1.42.1
func TestC_1_42_1_SharedBlockIsAnError(t *testing.T) {
	t.Parallel()
	c := config(t, "")
	for _, uid := range []string{"a", "b"} {
		write(t, c.file(uid), string(encode(pod.Users{HostID: 65536, Length: 65536})))
	}
	b := New(c)
	for _, uid := range []string{"a", "b"} {
		if u, err := b.Allocate(uid); err == nil || err.Error() != "the pods a and b have the same users, 65536 to 131071" {
			t.Errorf("%s: %v, %v", uid, u, err)
		}
	}
	if u := give(t, b, "c"); u.HostID != 2*65536 {
		t.Errorf("another: %v", u)
	}
	if err := b.Release("a"); err != nil {
		t.Fatal(err)
	}
	if u := give(t, b, "b"); u.HostID != 65536 {
		t.Errorf("alone with it: %v", u)
	}
}

// UIDs come from manifests: none leads out of the pods' directory, and a link or a pipe in
// place of the file is neither followed nor waited for.
//
// Shows: D1
func TestHostileNamesAndFiles(t *testing.T) {
	t.Parallel()
	c := config(t, "")
	b := New(c)
	for _, uid := range []string{"", ".", "..", "../x", "a/b", "/etc", "a\x00b"} {
		if u, err := b.Allocate(uid); !errors.Is(err, errUID) {
			t.Errorf("%q: %v, %v", uid, u, err)
		}
		if err := b.Release(uid); !errors.Is(err, errUID) {
			t.Errorf("take %q: %v", uid, err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, string(encode(pod.Users{HostID: 65536, Length: 65536})))
	for name, put := range map[string]func(path string) error{
		"link":      func(p string) error { return os.Symlink(outside, p) },
		"pipe":      func(p string) error { return unix.Mkfifo(p, 0o600) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		c := config(t, "")
		if err := os.MkdirAll(filepath.Dir(c.file("x")), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := put(c.file("x")); err != nil {
			t.Fatal(err)
		}
		if u, err := New(c).Allocate("x"); err == nil {
			t.Errorf("%s: %v", name, u)
		}
	}
	// The pod's directory itself is a link that leads out.
	c = config(t, "")
	if err := os.MkdirAll(filepath.Join(c.Root, "pods"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(c.Root, "pods", "x")); err != nil {
		t.Fatal(err)
	}
	if u, err := New(c).Allocate("x"); err == nil {
		t.Errorf("a link in place of its directory: %v", u)
	}
	if list, _ := os.ReadDir(filepath.Dir(outside)); len(list) != 1 {
		t.Errorf("written outside: %v", list)
	}
}

// F13: a block that cannot be written is not returned, but may still be on the disk.
//
// Shows: F13
func TestF13_ReadOnlyDisk(t *testing.T) {
	c := config(t, "")
	if err := os.MkdirAll(c.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", c.Root, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(c.Root, unix.MNT_DETACH) })
	b := New(c)
	was := give(t, b, "a")
	if err := unix.Mount("", c.Root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if u, err := b.Allocate("b"); !errors.Is(err, unix.EROFS) {
		t.Errorf("%v, %v", u, err)
	}
	if got := give(t, b, "a"); got != was {
		t.Errorf("%v, want %v", got, was)
	}
	if err := b.Release("a"); !errors.Is(err, unix.EROFS) {
		t.Errorf("take: %v", err)
	}
	if got := give(t, b, "a"); got != was {
		t.Errorf("after a take that failed: %v, want %v", got, was)
	}
}

// While an agent runs, its blocks stay even if the directory is cleared: the next agent
// knows them too.
//
// Shows: C-1.42.2
func TestC_1_42_2_ClearedDirectory(t *testing.T) {
	t.Parallel()
	c := config(t, "")
	b := New(c)
	give(t, b, "a")
	was := give(t, b, "b")
	if err := os.RemoveAll(filepath.Join(c.Root, "pods")); err != nil {
		t.Fatal(err)
	}
	if got := give(t, b, "b"); got != was {
		t.Errorf("%v, want %v", got, was)
	}
	if got := give(t, New(c), "b"); got != was {
		t.Errorf("another agent: %v, want %v", got, was)
	}
	if err := b.Release("b"); err != nil {
		t.Error(err)
	}
	if err := b.Release("b"); err != nil {
		t.Errorf("again: %v", err)
	}
}

// After any sequence of allocations, releases and restarts, a pod keeps its block, and no
// two pods share one.
//
// Shows: C-1.42
func TestC_1_42_RandomLives(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 42))
		c := config(t, fmt.Sprintf("nodectl:%d:%d", 7*65536, 12*65536))
		c.MaxPods = 12
		b := New(c)
		model := map[string]pod.Users{}
		for step := range 150 {
			uid := fmt.Sprint("p", rnd.IntN(16))
			switch was, has := model[uid]; rnd.IntN(8) {
			case 0:
				b = New(c)
			case 1, 2:
				if err := b.Release(uid); err != nil {
					t.Fatalf("seed %d step %d: %v", seed, step, err)
				}
				delete(model, uid)
			default:
				u, err := b.Allocate(uid)
				if !has && len(model) == 12 {
					if err == nil {
						t.Fatalf("seed %d step %d: %v is one too many", seed, step, u)
					}
					continue
				}
				if err != nil || has && *u != was {
					t.Fatalf("seed %d step %d: %v, %v, want %v", seed, step, u, err, was)
				}
				for other, o := range model {
					if other != uid && overlap(o, *u) {
						t.Fatalf("seed %d step %d: %s and %s have %v and %v", seed, step, uid, other, u, o)
					}
				}
				if u.HostID < 7*65536 || u.HostID > 18*65536 || u.HostID%65536 != 0 || u.Length != 65536 {
					t.Fatalf("seed %d step %d: %v", seed, step, u)
				}
				model[uid] = *u
			}
		}
		b = New(c)
		for _, uid := range slices.Sorted(maps.Keys(model)) {
			if got := give(t, b, uid); got != model[uid] {
				t.Errorf("seed %d: %s: %v, want %v", seed, uid, got, model[uid])
			}
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	b := New(config(t, ""))
	got := make([]pod.Users, 64)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			if u, err := b.Allocate(fmt.Sprint("p", i%32)); err == nil {
				got[i] = *u
			}
		})
	}
	wg.Wait()
	seen := map[uint32]int{}
	for i, u := range got {
		seen[u.HostID]++
		if u != got[i%32] || u.Length == 0 {
			t.Errorf("p%d: %v and %v", i%32, u, got[i%32])
		}
	}
	if len(seen) != 32 {
		t.Errorf("%d blocks for 32 pods", len(seen))
	}
}
