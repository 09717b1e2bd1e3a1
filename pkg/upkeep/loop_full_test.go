//go:build full

package upkeep

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

const mib = int64(1) << 20

// loopSeeds is how many scenarios the test runs, from seed 1.
const loopSeeds = 500

// TestRun_LoopFilesystems_ExecutionIsThePlan: on file systems that really fill, of bytes or of
// inodes, the agent takes the steps of the dry run, in this order. It evicts no pod while an unused
// image or an exited container lies on the disk that is short. In the end no threshold is met,
// unless nothing is left that may be removed or evicted. In some scenarios one disk has everything.
// In the others images have another disk, and writable layers are with them, with volumes and logs,
// or on a third disk.
//
// Shows: C-1.33.12, C-1.35.5
func TestRun_LoopFilesystems_ExecutionIsThePlan(t *testing.T) {
	disks := []string{loopMount(t), loopMount(t), loopMount(t)}
	evictions, removals := 0, 0
	for seed := uint64(1); seed <= loopSeeds; seed++ {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			}()
			s := newScenario(t, seed, disks)
			for phase := range 2 {
				if phase > 0 {
					s.change()
				}
				s.check(fmt.Sprintf("seed %d, phase %d", seed, phase))
			}
			evictions, removals = evictions+s.evictions, removals+s.removals
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d scenarios: %d removals of unused data, %d evictions", loopSeeds, removals, evictions)
	if evictions < loopSeeds/10 || removals < loopSeeds {
		t.Error("the scenarios show too little")
	}
}

// loopMount returns a fresh ext4 file system of 64 MiB and 1,024 inodes.
func loopMount(t *testing.T) string {
	t.Helper()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 64*mib); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-N", "1024", "-O", "^has_journal", "-E", "lazy_itable_init=0", file},
		{"mount", "-o", "loop", file, dir},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// scenario is a node whose images, containers, sandboxes and pods are files on its disks.
type scenario struct {
	*Upkeep
	*rand.Rand
	t      *testing.T
	policy reclaim.EvictPolicy

	data, images, layers string // the disk of each

	mu                  sync.Mutex
	node                reclaim.Node // the pods, images and disks; usage is read from the disks
	leaves              map[string]time.Time
	named               int // things that were named so far
	done                []string
	evictions, removals int
}

func newScenario(t *testing.T, seed uint64, disks []string) *scenario {
	s := &scenario{Rand: rand.New(rand.NewPCG(seed, 17)), t: t, leaves: map[string]time.Time{}}
	layouts := [][3]int{{0, 0, 0}, {0, 1, 1}, {0, 1, 0}, {0, 1, 2}}
	at := layouts[s.IntN(len(layouts))]
	s.data, s.images, s.layers = disks[at[0]], disks[at[1]], disks[at[2]]
	for _, disk := range disks {
		entries, err := os.ReadDir(disk)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "lost+found" {
				s.must(os.RemoveAll(filepath.Join(disk, e.Name())))
			}
		}
	}
	for range 4 + s.IntN(16) {
		s.add()
	}
	s.policy = reclaim.EvictPolicy{Transition: 5 * time.Minute, MaxGrace: 20}
	for _, signal := range pod.Signals() {
		own := s.layers != s.data && s.layers != s.images // without a disk of their own, layers have no thresholds
		if !strings.Contains(signal, "fs.") || strings.HasPrefix(signal, "containerfs.") && !own || s.IntN(2) == 0 {
			continue
		}
		limit, err := pod.ParseThreshold(fmt.Sprintf("%s<%d%%", signal, 10+s.IntN(70)))
		s.must(err)
		it := reclaim.Threshold{Threshold: limit}
		if s.IntN(4) == 0 {
			it.Grace = time.Minute
		}
		s.policy.Thresholds = append(s.policy.Thresholds, it)
	}
	s.Upkeep = New(Config{Policy: s.policy, Observer: s, Actor: s, PodsUnknown: errPodsUnknown})
	return s
}

func (s *scenario) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// fill makes a directory with a file of a random size, and up to 30 empty ones.
func (s *scenario) fill(dir string) {
	s.must(os.MkdirAll(dir, 0o700))
	bytes, _, err := node.DiskLevels(dir)
	s.must(err)
	size := min(int64(s.IntN(17))*mib/4, bytes.Available-4*mib) // 4 MiB stay: a file system that is full shows no more than 0 available bytes
	s.named++
	f, err := os.Create(filepath.Join(dir, fmt.Sprint(s.named)))
	s.must(err)
	if size > 0 {
		s.must(syscall.Fallocate(int(f.Fd()), 0, 0, size))
	}
	s.must(f.Close())
	for range s.IntN(31) {
		s.named++
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(s.named)), nil, 0o600); err != nil {
			return // no inode is left
		}
	}
}

// add adds an image, an exited container, a sandbox or a pod. The caller holds the lock.
func (s *scenario) add() {
	s.named++
	id := fmt.Sprint(s.named)
	ago := func() time.Time { return time.Now().Add(-time.Duration(1+s.IntN(1000)) * time.Minute) }
	key := pod.Key{Namespace: "default", Name: "p" + id}
	switch s.IntN(6) {
	case 0, 1:
		it := reclaim.Image{ID: id, FirstSeen: ago(), Layers: []reclaim.Layer{}}
		for range 1 + s.IntN(3) {
			l := fmt.Sprint("shared", s.IntN(6))
			if s.IntN(2) == 0 {
				s.named++
				l = fmt.Sprint(s.named)
			}
			if _, err := os.Stat(s.layer(l)); err != nil {
				s.fill(s.layer(l))
			}
			if !slices.ContainsFunc(it.Layers, func(o reclaim.Layer) bool { return o.ID == l }) {
				it.Layers = append(it.Layers, reclaim.Layer{ID: l})
			}
		}
		switch s.IntN(8) {
		case 0, 1:
			it.Users = []string{"pod default/web"}
		case 2:
			it.Pinned = true
		case 3:
			it.Archive = true
		case 4:
			it.UnresponsiveRegistry = "registry.example"
		}
		s.node.Images = append(s.node.Images, it)
	case 2, 3:
		s.fill(s.place(s.layers, "container", id))
		s.fill(s.place(s.data, "log", id))
		s.node.Containers = append(s.node.Containers, reclaim.Container{ID: id, Name: "c", Pod: key, Exited: ago(), Needed: s.IntN(3) == 0})
	case 4:
		s.fill(s.place(s.layers, "sandbox", id))
		s.node.Sandboxes = append(s.node.Sandboxes, reclaim.Sandbox{ID: id, Pod: key, Created: ago(), Needed: s.IntN(3) == 0})
	case 5:
		s.fill(s.place(s.data, "volumes", id))
		s.fill(s.place(s.layers, "pod", id))
		s.fill(s.place(s.data, "podlogs", id))
		s.node.Pods = append(s.node.Pods, reclaim.Pod{
			Key: key, UID: id, Priority: []int32{0, 5, 2_000_000_000}[s.IntN(3)], Static: true, Measured: s.IntN(5) > 0, Grace: 30, DiskRequest: int64(s.IntN(4)) * mib,
		})
	}
}

func (s *scenario) place(disk, kind, id string) string { return filepath.Join(disk, kind, id) }
func (s *scenario) layer(id string) string             { return s.place(s.images, "layer", id) }

// change makes the changes of some hours: it adds objects, lets volumes grow, and makes images and
// containers unused.
func (s *scenario) change() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range s.IntN(12) {
		s.add()
	}
	for _, p := range s.node.Pods {
		if s.IntN(2) == 0 {
			s.fill(s.place(s.data, "volumes", p.UID))
		}
	}
	for i := range s.node.Images {
		if s.IntN(3) == 0 {
			s.node.Images[i].Users, s.node.Images[i].LastUsed = nil, time.Now()
		}
	}
	for i := range s.node.Containers {
		s.node.Containers[i].Needed = s.node.Containers[i].Needed && s.IntN(3) > 0
	}
}

// check compares the steps of an agent in half an hour with its forecast now.
func (s *scenario) check(where string) {
	foreseen, err := s.Foresee(s.t.Context(), nil)
	s.must(err)
	want := []string{}
	for _, round := range foreseen.Rounds {
		for _, step := range round.Steps {
			want = append(want, fmt.Sprint(step.Action, " ", step.ID))
		}
	}
	ctx, stop := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	time.Sleep(30 * time.Minute)
	synctest.Wait()
	stop()
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if fmt.Sprint(s.done) != fmt.Sprint(want) {
		s.t.Errorf("%s: done %v\nforeseen %v", where, s.done, want)
	}
	s.done = nil
	for _, it := range s.short() {
		evictable := slices.ContainsFunc(s.node.Pods, func(p reclaim.Pod) bool { return p.Priority < 2_000_000_000 })
		if unused := s.unused(s.disk(it.Signal), inodes(it.Signal)); unused != "" || evictable {
			s.t.Errorf("%s: at the end %s is met, unused is %q, a pod may be evicted: %v", where, it.Threshold, unused, evictable)
		}
	}
}
