package image

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

// fakeStock is a runtime whose disk has a capacity of 100 bytes.
type fakeStock struct {
	images  []pod.Image
	users   []pod.ImageUser
	removed []string
	fails   map[string]bool // by ID
	free    int64
	calls   int
}

func (s *fakeStock) Images(context.Context) ([]pod.Image, error) {
	s.calls++
	return slices.Clone(s.images), nil
}

func (s *fakeStock) ImageUsers(context.Context) ([]pod.ImageUser, error) { return s.users, nil }

func (s *fakeStock) RemoveImage(_ context.Context, id string) error {
	if s.fails[id] {
		return errors.New("in use")
	}
	i := slices.IndexFunc(s.images, func(i pod.Image) bool { return i.ID == id })
	s.free += s.images[i].Size
	s.images = slices.Delete(s.images, i, i+1)
	s.removed = append(s.removed, id)
	return nil
}

func (s *fakeStock) Filesystems(context.Context) (images, containers pod.Filesystem, err error) {
	return pod.Filesystem{Mountpoint: "/images"}, pod.Filesystem{}, nil
}

func (s *fakeStock) disk(string) (bytes, inodes reclaim.Level, err error) {
	return reclaim.Level{Available: s.free, Capacity: 100}, reclaim.Level{}, nil
}

// pulledImage returns an image of ten bytes that a registry has.
func pulledImage(name string) pod.Image {
	repo, _, _ := strings.Cut(name, ":")
	return pod.Image{ID: "sha256:" + repo, Names: []string{full(repo) + "@sha256:" + strings.Repeat("0", 64), full(name)}, Size: 10}
}

// stocked returns a stock and the configuration of an Inventory of it, whose images were last
// in use that many hours ago.
func stocked(t *testing.T, free int64, hours map[string]int) (*fakeStock, InventoryConfig) {
	t.Helper()
	s := &fakeStock{free: free, fails: map[string]bool{}}
	history := reclaim.ImageHistory{}
	for _, name := range slices.Sorted(maps.Keys(hours)) {
		i := pulledImage(name)
		s.images = append(s.images, i)
		history[i.ID] = reclaim.ImageTimes{First: time.Now().Add(-100 * time.Hour), Last: time.Now().Add(-time.Duration(hours[name]) * time.Hour)}
	}
	file := filepath.Join(t.TempDir(), "used.json")
	js, err := json.Marshal(history)
	if err == nil {
		err = os.WriteFile(file, js, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, InventoryConfig{
		Runtime: s, File: file, Disk: s.disk, Policy: reclaim.ImagePolicy{High: 85, Low: 70, MinAge: time.Minute},
		RegistryAnswers: func(context.Context, string) bool { return true },
	}
}

// TestCollect_DiskIsFull_RemovesUnusedByLastUse: used and desired images stay, and so do those
// that this node could not get again. Last use is known from before a restart.
//
// Shows: C-1.33.8, C-1.33.9
func TestCollect_DiskIsFull_RemovesUnusedByLastUse(t *testing.T) {
	t.Parallel()
	s, cfg := stocked(t, 10, map[string]int{"a:1": 1, "b:1": 5, "c:1": 3, "used:1": 50, "desired:1": 51, "archive:1": 52, "quay.io/silent:1": 53, "pinned:1": 54})
	s.users = []pod.ImageUser{{ID: "c1", Key: pod.Key{Namespace: "default", Name: "web"}, Images: []string{"sha256:used"}}}
	for i := range s.images {
		s.images[i].Pinned = s.images[i].ID == "sha256:pinned"
	}
	cfg.Desired = func() (map[string][]string, bool) {
		return map[string][]string{"pod default/db": {"desired:1"}}, true
	}
	cfg.Archives = func() []string { return []string{"docker.io/library/archive:1"} }
	var mu sync.Mutex // guards asked
	asked := map[string]int{}
	cfg.RegistryAnswers = func(_ context.Context, registry string) bool {
		mu.Lock()
		defer mu.Unlock()
		asked[registry]++
		return registry == "docker.io"
	}
	var reasons, events []string
	cfg.Collected = func(reason string) { reasons = append(reasons, reason) }
	cfg.Event = func(reason, _, _ string) { events = append(events, reason) }
	if err := NewInventory(cfg).Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"sha256:b", "sha256:c"}; !slices.Equal(s.removed, want) {
		t.Errorf("removed %v, want %v", s.removed, want)
	}
	if fmt.Sprint(asked) != "map[docker.io:1 quay.io:1]" || fmt.Sprint(reasons, events) != "[space space] []" {
		t.Errorf("asked %v, counted %v, events %v", asked, reasons, events)
	}
	// More than there is to remove.
	s.free = 5
	err := NewInventory(cfg).Collect(t.Context())
	if err == nil || !strings.Contains(err.Error(), "(95% of 100 B used). Failed to free sufficient space by deleting unused images (freed 10 bytes)") ||
		fmt.Sprint(events) != "[FreeDiskSpaceFailed]" || !slices.Equal(s.removed, []string{"sha256:b", "sha256:c", "sha256:a"}) {
		t.Errorf("error %v, events %v, removed %v", err, events, s.removed)
	}
}

// An image that cannot be removed does not keep a collection from removing others.
func TestCollect_ImageFails_OthersGo(t *testing.T) {
	t.Parallel()
	s, cfg := stocked(t, 10, map[string]int{"a:1": 1, "b:1": 5, "c:1": 3})
	s.fails["sha256:b"] = true
	err := NewInventory(cfg).Collect(t.Context())
	if err == nil || !strings.Contains(err.Error(), "remove image docker.io/library/b:1: in use") || !slices.Equal(s.removed, []string{"sha256:c"}) {
		t.Errorf("%v, removed %v", err, s.removed)
	}
}

// TestCollect_PodsUnknown_RemovesNothing: while a source has not answered, no image counts as
// unused, for a person neither, and the runtime is not asked.
//
// Shows: I9
func TestCollect_PodsUnknown_RemovesNothing(t *testing.T) {
	t.Parallel()
	s, cfg := stocked(t, 0, map[string]int{"a:1": 1})
	cfg.Desired = func() (map[string][]string, bool) { return nil, false }
	v := NewInventory(cfg)
	if err := v.Collect(t.Context()); !errors.Is(err, ErrPodsUnknown) || s.calls > 0 {
		t.Errorf("%v, %d calls", err, s.calls)
	}
	if _, err := v.Prune(t.Context(), false); !errors.Is(err, ErrPodsUnknown) {
		t.Error(err)
	}
	if _, err := v.Remove(t.Context(), "a:1"); !errors.Is(err, ErrPodsUnknown) || len(s.removed) > 0 {
		t.Errorf("%v, removed %v", err, s.removed)
	}
}

// TestRun_PodsBecomeKnown_CollectsAtOnce: Run does nothing before all pods are known, and
// collects when they are, without a timer in between.
//
// Shows: I9
func TestRun_PodsBecomeKnown_CollectsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, cfg := stocked(t, 0, map[string]int{"a:1": 1})
		known := make(chan struct{})
		cfg.PodsKnown = known
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		wg.Go(func() { NewInventory(cfg).Run(ctx) })
		time.Sleep(time.Hour)
		synctest.Wait()
		if s.calls > 0 {
			t.Errorf("%d calls before the pods are known", s.calls)
		}
		close(known)
		synctest.Wait()
		if !slices.Equal(s.removed, []string{"sha256:a"}) {
			t.Errorf("removed %v", s.removed)
		}
	})
}

// TestCollect_PodAppearsMeanwhile_ItsImageStays.
func TestCollect_PodAppearsMeanwhile_ItsImageStays(t *testing.T) {
	t.Parallel()
	s, cfg := stocked(t, 0, map[string]int{"a:1": 2, "b:1": 1})
	cfg.Desired = func() (map[string][]string, bool) {
		if len(s.removed) == 0 {
			return nil, true
		}
		return map[string][]string{"pod default/new": {"docker.io/library/b:1"}}, true
	}
	if err := NewInventory(cfg).Collect(t.Context()); err == nil || !slices.Equal(s.removed, []string{"sha256:a"}) {
		t.Errorf("%v, removed %v", err, s.removed)
	}
}

// TestLook_NothingChanges_WritesNothing: an idle node has no writes, and the next agent knows the
// changes.
func TestLook_NothingChanges_WritesNothing(t *testing.T) {
	t.Parallel()
	s, cfg := stocked(t, 50, map[string]int{"a:1": 1})
	s.users = []pod.ImageUser{{ID: "c1", Images: []string{"docker.io/library/a:1"}}}
	look := func(v *Inventory) (reclaim.Image, os.FileInfo) {
		t.Helper()
		n, _, err := v.Observe(t.Context())
		info, serr := os.Stat(cfg.File)
		if err = errors.Join(err, serr); err != nil {
			t.Fatal(err)
		}
		return n.Images[0], info
	}
	v := NewInventory(cfg)
	i, before := look(v)
	if len(i.Users) != 1 || i.Users[0] != "container c1" {
		t.Errorf("users %v", i.Users)
	}
	for range 3 {
		if _, after := look(v); !os.SameFile(before, after) {
			t.Error("the record was written although nothing changed")
		}
	}
	s.users = nil
	i, after := look(v)
	if os.SameFile(before, after) || time.Since(i.LastUsed) > time.Minute {
		t.Errorf("last used %s", i.LastUsed)
	}
	next, _ := look(NewInventory(cfg))
	if !next.LastUsed.Equal(i.LastUsed) {
		t.Errorf("the next agent: last used %s, want %s", next.LastUsed, i.LastUsed)
	}
	cfg.ReadOnly = true
	s.images[0].ID = "sha256:other"
	if _, last := look(NewInventory(cfg)); !os.SameFile(after, last) {
		t.Error("a look without an agent has written")
	}
}

// TestRemove_UsedOrUnknown_IsRefused.
func TestRemove_UsedOrUnknown_IsRefused(t *testing.T) {
	t.Parallel()
	s, cfg := stocked(t, 50, map[string]int{"a:1": 1, "b:1": 1})
	s.users = []pod.ImageUser{{ID: "c1", Key: pod.Key{Namespace: "default", Name: "web"}, Images: []string{"sha256:a"}}}
	v := NewInventory(cfg)
	for name, want := range map[string]string{
		"a:1": "image a:1 is not removed: it is used by pod default/web", "c:1": "image c:1 not found",
	} {
		if _, err := v.Remove(t.Context(), name); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if names, err := v.Remove(t.Context(), "b:1"); err != nil || len(names) != 2 || !slices.Equal(s.removed, []string{"sha256:b"}) {
		t.Errorf("%v, %v, removed %v", names, err, s.removed)
	}
}

func TestFind_ByNameDigestAndID(t *testing.T) {
	t.Parallel()
	images := []reclaim.Image{
		{ID: "sha256:abcd1", Names: []string{"docker.io/library/web@sha256:" + strings.Repeat("1", 64), "docker.io/library/web:1"}},
		{ID: "sha256:abcd2", Names: []string{"quay.io/x/web:1"}},
	}
	for name, want := range map[string]string{
		"web:1": "sha256:abcd1", "docker.io/library/web:1": "sha256:abcd1", "quay.io/x/web:1": "sha256:abcd2", "sha256:abcd2": "sha256:abcd2", "abcd1": "sha256:abcd1",
		"web@sha256:" + strings.Repeat("1", 64): "sha256:abcd1", "abcd": "", "web": "", "abc": "",
	} {
		id := ""
		if i := Find(images, name); i != nil {
			id = i.ID
		}
		if id != want {
			t.Errorf("%s: %q, want %q", name, id, want)
		}
	}
	listed := []pod.Image{{ID: images[0].ID, Names: images[0].Names}}
	for name, want := range map[string]string{"web:1": "docker.io/library/web:1", "abcd1": "docker.io/library/web:1", "x": ""} {
		if is := FullName(listed, name); is != want {
			t.Errorf("full name of %s: %q, want %q", name, is, want)
		}
	}
}

// TestAnswers_AnyAnswerThatIsNoServerError_Counts.
func TestAnswers_AnyAnswerThatIsNoServerError_Counts(t *testing.T) {
	t.Parallel()
	code := http.StatusUnauthorized
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	plain, secure := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	secure.StartTLS() // by an authority that is not trusted
	defer secure.Close()
	if !RegistryAnswers(t.Context(), plain.Listener.Addr().String()) || !RegistryAnswers(t.Context(), secure.Listener.Addr().String()) {
		t.Error("a registry that asks for credentials answers")
	}
	code = http.StatusServiceUnavailable
	if RegistryAnswers(t.Context(), plain.Listener.Addr().String()) {
		t.Error("a registry that is out of service does not answer")
	}
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hub/v2/" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer mirror.Close()
	plain.Close()
	gone := plain.Listener.Addr().String()
	if RegistryAnswers(t.Context(), gone) || RegistryAnswers(t.Context(), gone, mirror.URL) {
		t.Error("a registry that is not there does not answer, nor does a mirror that fails")
	}
	v := NewInventory(InventoryConfig{Mirrors: func(registry string) []string {
		if registry != gone {
			t.Errorf("mirrors of %q", registry)
		}
		return []string{"http://" + gone, mirror.URL + "/hub/"}
	}})
	if !v.cfg.RegistryAnswers(t.Context(), gone) {
		t.Error("a registry whose second mirror answers does not answer")
	}
}

// TestRemoveRecord_ImageWasPulledAgain_RecordStays: without the record, every pod could use it.
func TestRemoveRecord_ImageWasPulledAgain_RecordStays(t *testing.T) {
	t.Parallel()
	p := New(Config{Dir: t.TempDir(), Endpoint: "system"})
	n, err := parse("private:1")
	if err != nil {
		t.Fatal(err)
	}
	secret := credential{user: "u", password: "p", secret: &secretRef{Namespace: "default", Name: "s"}}
	if err := p.records.recordPulled("sha256:1", n, secret); err != nil {
		t.Fatal(err)
	}
	there := func() bool {
		_, err := os.Stat(p.records.file("pulled", "sha256:1"))
		return err == nil
	}
	p.RemoveRecord("sha256:1", time.Now().Add(-time.Hour))
	if !there() {
		t.Error("it was pulled after the removal: the record stays")
	}
	if err := p.records.beginPull(n); err != nil {
		t.Fatal(err)
	}
	p.RemoveRecord("sha256:1", time.Now().Add(time.Hour))
	if !there() {
		t.Error("it is being pulled: the record stays")
	}
	p.records.endPull(n)
	p.RemoveRecord("sha256:1", time.Now().Add(time.Hour))
	if there() {
		t.Error("the record of a removed image stays")
	}
}

// TestRemoveRecordsExcept_ImageIsGone_ItsRecordGoes: another program may remove images, and a pull
// may keep RemoveRecord from removing a record.
func TestRemoveRecordsExcept_ImageIsGone_ItsRecordGoes(t *testing.T) {
	t.Parallel()
	p := New(Config{Dir: t.TempDir(), Endpoint: "system"})
	n, err := parse("private:1")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"sha256:1", "sha256:2"} {
		if err := p.records.recordPulled(id, n, credential{}); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int {
		files, err := os.ReadDir(filepath.Join(p.records.dir, "pulled"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	later := time.Now().Add(time.Hour)
	p.RemoveRecordsExcept(nil, later)
	p.RemoveRecordsExcept([]string{"sha256:1"}, time.Now().Add(-time.Hour))
	if left() != 2 {
		t.Error("an empty list, or one from before the pull, removes records")
	}
	p.RemoveRecordsExcept([]string{"sha256:1"}, later)
	if _, err := os.Stat(p.records.file("pulled", "sha256:1")); err != nil || left() != 1 {
		t.Errorf("%d records, %v: want that of the image that is there", left(), err)
	}
}

// TestRecords_OfAnOlderAgentOrAKubelet_KeepTheImagePrivate: a record under its earlier name, or one of a
// kubelet that used the directory before, counts: without it, every pod could use the image.
// RemoveRecordsExcept leaves files of other programs alone, as Kubernetes' node suite makes some.
//
// Shows: C-1.39.6
func TestRecords_OfAnOlderAgentOrAKubelet_KeepTheImagePrivate(t *testing.T) {
	t.Parallel()
	p := New(Config{Dir: t.TempDir(), Endpoint: "system"})
	n, err := parse("private:1")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(p.records.dir, "pulled")
	secret := credential{user: "u", password: "p", secret: &secretRef{Namespace: "a", Name: "s", UID: "1"}}
	if err := p.records.recordPulled("sha256:1", n, secret); err != nil {
		t.Fatal(err)
	}
	now := p.records.file("pulled", "sha256:1")
	if want := fmt.Sprintf("sha256-%x", sha256.Sum256([]byte("sha256:1"))); filepath.Base(now) != want {
		t.Errorf("the record is %s, a kubelet's %s", filepath.Base(now), want)
	}
	if err := os.Rename(now, now+".json"); err != nil {
		t.Fatal(err)
	}
	kubelets := `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2026-01-01T00:00:00Z","imageRef":"%s","credentialMapping":{%q:%s}}`
	for id, of := range map[string]string{"sha256:2": `{"kubernetesSecrets":[{"uid":"1","namespace":"a","name":"s","credentialHash":"x"}]}`, "sha256:3": `{"nodePodsAccessible":true}`} {
		if err := os.WriteFile(p.records.file("pulled", id), fmt.Appendf(nil, kubelets, id, n.repo, of), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	foreign := filepath.Join(dir, "temp_"+filepath.Base(now))
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.RemoveRecordsExcept([]string{"sha256:1", "sha256:2", "sha256:3"}, time.Now().Add(time.Hour))
	for id, want := range map[string]bool{"sha256:1": false, "sha256:2": false, "sha256:3": true, "sha256:4": true} {
		if may, err := p.records.mayUse(id, n, nil, true); err != nil || may != want {
			t.Errorf("%s: a pod without a secret may use it: %t, %v, want %t", id, may, err, want)
		}
	}
	if may, err := p.records.mayUse("sha256:1", n, []credential{secret}, true); err != nil || !may {
		t.Errorf("the pod with the secret may use it: %t, %v", may, err)
	}
	p.RemoveRecordsExcept([]string{"sha256:2"}, time.Now().Add(time.Hour))
	if _, err := os.Stat(now); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record of an image that is gone: %v", err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("another program's file: %v", err)
	}
}

// TestRemoveRecordsExcept_AnotherRuntimeMayHaveTheImage_RecordStays: the bundled runtime runs while
// the system's does not answer. Without records every pod could use the images that other tenants
// have pulled.
//
// Shows: C-1.39.6
func TestRemoveRecordsExcept_AnotherRuntimeMayHaveTheImage_RecordStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	system, bundled := New(Config{Dir: dir, Endpoint: "system"}), New(Config{Dir: dir, Endpoint: "bundled"})
	n, err := parse("private:1")
	if err != nil {
		t.Fatal(err)
	}
	secret := credential{user: "u", password: "p", secret: &secretRef{Namespace: "a", Name: "s"}}
	for id, pullers := range map[string][]*Puller{"system's": {system}, "both": {system, bundled}, "free": {system, bundled}} {
		for _, p := range pullers {
			c := secret
			if id == "free" {
				c = credential{}
			}
			if err := p.records.recordPulled(id, n, c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := system.records.write(system.records.file("pulled", "older"), pulledRecord{Image: "older"}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"half", "half-2"} {
		if err := os.WriteFile(system.records.file("pulled", id)+".tmp", []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	later := time.Now().Add(time.Hour)
	kept := func(want ...string) {
		t.Helper()
		for _, id := range []string{"system's", "both", "free", "older"} {
			rec, err := system.records.load(id)
			if err != nil || (rec != nil) != slices.Contains(want, id) {
				t.Errorf("record of %s: %+v, %v; want those of %q", id, rec, err, want)
			}
			if id == "free" || rec == nil {
				continue
			}
			if may, err := system.records.mayUse(id, n, nil, true); may || err != nil {
				t.Errorf("another tenant may use %s: %t, %v", id, may, err)
			}
		}
	}
	bundled.RemoveRecordsExcept([]string{"other"}, later)
	bundled.RemoveRecord("both", later)
	bundled.RemoveRecord("system's", later)
	kept("system's", "both", "free", "older")
	system.RemoveRecord("system's", later)
	kept("both", "free", "older")
	system.RemoveRecordsExcept([]string{"other"}, later)
	kept("older") // whose runtime is not known
	if files, err := os.ReadDir(filepath.Join(dir, "pulled")); err != nil || len(files) != 1 {
		t.Errorf("%v, %v; want the one record", files, err)
	}
}
