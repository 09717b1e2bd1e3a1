package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// shownSpec is a pod with a Secret and a ConfigMap for round.
func shownSpec(round int) *pod.Spec {
	s := &pod.Spec{Key: pod.Key{Namespace: "default", Name: "web"}, Pod: &v1.Pod{}}
	s.Pod.UID = types.UID("u")
	s.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](2000)}
	s.Pod.Spec.Volumes = []v1.Volume{
		{Name: "cm", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "o"}}}},
		{Name: "sec", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "o", DefaultMode: ptr.To[int32](0o400)}}},
	}
	text := strings.Repeat(strconv.Itoa(round), 100)
	values := map[string]string{"same": text, "also": text, "only" + strconv.Itoa(round): text}
	bytes := map[string][]byte{}
	for k, v := range values {
		bytes[k] = []byte(v)
	}
	return podspec.Bind(s, podspec.NewData([]*pod.Object{
		{Kind: pod.KindConfigMap, Key: pod.Key{Name: "o"}, Hash: text, Object: &v1.ConfigMap{Data: values}},
		{Kind: pod.KindSecret, Key: pod.Key{Name: "o"}, Hash: text, Object: &v1.Secret{Data: bytes}},
	}))
}

// cutEnv makes another process run SetUp, which kills itself after so many steps.
const cutEnv = "VOLUME_TEST_CUT"

func TestMain(m *testing.M) {
	if args := strings.Split(os.Getenv(cutEnv), " "); len(args) == 3 {
		round, _ := strconv.Atoi(args[1])
		left, _ := strconv.Atoi(args[2])
		v := New(Config{RootDir: args[0]})
		v.step = func() {
			if left--; left < 0 {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
		if err := v.SetUp(context.Background(), shownSpec(round), pod.Place{}, 1); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// An agent that is killed after any step leaves the old files or the new ones, never a mix,
// and the next SetUp removes all leftovers.
//
// Shows: C-1.37.6
func TestC_1_37_6_KilledAfterEveryStep(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: secrets lie on a tmpfs, which it mounts")
	}
	root := t.TempDir()
	v := New(Config{RootDir: root})
	t.Cleanup(func() {
		if err := v.TearDown(context.Background(), "u", 1); err != nil {
			t.Error(err)
		}
	})
	cuts := 0
	for _, first := range []bool{true, false} { // with no content before, and with another content
		for left, killed := 0, true; killed; left++ {
			if first {
				if err := v.TearDown(t.Context(), "u", 1); err != nil {
					t.Fatal(err)
				}
			} else if err := v.SetUp(t.Context(), shownSpec(1), pod.Place{}, 1); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s 2 %d", cutEnv, root, left))
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			killed = errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
			if err != nil && !killed {
				t.Fatalf("%v: %s", err, out)
			}
			if killed {
				cuts++
				if _, ok, _ := v.Ready(shownSpec(2), 1); ok {
					t.Fatalf("ready after an end at step %d", left)
				}
			}
			for _, dir := range []string{"kubernetes.io~configmap/cm", "kubernetes.io~secret/sec"} {
				whole(t, filepath.Join(root, "pods/u/1/volumes", dir), first)
			}
			if err := v.SetUp(t.Context(), shownSpec(2), pod.Place{}, 1); err != nil {
				t.Fatal(err)
			}
			if _, ok, _ := v.Ready(shownSpec(2), 1); !ok {
				t.Fatal("not ready after SetUp")
			}
			settled(t, filepath.Join(root, "pods/u/1/volumes/kubernetes.io~configmap/cm"), "-rw-r--r--")
			settled(t, filepath.Join(root, "pods/u/1/volumes/kubernetes.io~secret/sec"), "-r--r-----")
		}
	}
	if cuts < 30 {
		t.Errorf("only %d ends were tried", cuts)
	}
}

// whole checks that the files of a volume come from one SetUp. none says that it may be
// empty.
func whole(t *testing.T, dir string, none bool) {
	t.Helper()
	same, err := os.ReadFile(filepath.Join(dir, "..data", "same"))
	if errors.Is(err, fs.ErrNotExist) && none {
		return
	}
	also, err2 := os.ReadFile(filepath.Join(dir, "..data", "also"))
	if err != nil || err2 != nil || len(same) != 100 || !bytes.Equal(same, also) {
		t.Fatalf("%s shows %q and %q (%v, %v)", dir, same, also, err, err2)
	}
	if _, err := os.Stat(filepath.Join(dir, "..data", "only"+string(same[:1]))); err != nil {
		t.Fatal(err)
	}
}

// settled checks that a volume shows the content of round 2 and nothing else is left.
func settled(t *testing.T, dir, mode string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	if len(names) != 5 || !names["..data"] || !names["same"] || !names["also"] || !names["only2"] {
		t.Fatalf("%s holds %v", dir, names)
	}
	for _, name := range []string{"same", "also", "only2"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		info, err2 := os.Stat(filepath.Join(dir, name))
		if err != nil || err2 != nil || string(text) != strings.Repeat("2", 100) || info.Mode().String() != mode || info.Sys().(*syscall.Stat_t).Gid != 2000 {
			t.Fatalf("%s: %q %v %v %v", name, text, info, err, err2)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "..data"))
	if err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o755 {
		t.Fatalf("..data: %v %v", info, err)
	}
}

// A reader sees one content or the other while the content changes a thousand times.
//
// Shows: C-1.37.6
func TestC_1_37_6_ReadersSeeOneContent(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	root, err := os.OpenRoot(path)
	must(t, err)
	defer root.Close()
	content := func(i int) files {
		text := []byte(strings.Repeat(strconv.Itoa(i%10), 5000))
		return files{"a": {data: text, mode: 0o644}, "d/b": {data: text, mode: 0o644}}
	}
	w := writer{root: root}
	must(t, w.write(content(0)))
	var done atomic.Bool
	var wg sync.WaitGroup
	reads, last := 0, byte('0')
	seen := map[byte]bool{}
	wg.Go(func() {
		for !done.Load() {
			if _, err := os.Readlink(filepath.Join(path, "..data")); err != nil {
				t.Error(err) // the link is always there
				return
			}
			dir, err := os.OpenRoot(filepath.Join(path, "..data"))
			if err != nil {
				continue // the target was removed meanwhile
			}
			a, err1 := dir.ReadFile("a")
			b, err2 := dir.ReadFile("d/b")
			dir.Close()
			if err1 != nil || err2 != nil {
				continue // removed meanwhile
			}
			if !bytes.Equal(a, b) || len(a) != 5000 {
				t.Errorf("a mix: %d bytes of %q and %d of %q", len(a), a[:1], len(b), b[:1])
				return
			}
			reads, last = reads+1, a[0]
			seen[last] = true
			if text, err := os.ReadFile(filepath.Join(path, "a")); err == nil && (len(text) != 5000 || bytes.Count(text, text[:1]) != 5000) {
				t.Errorf("a torn file of %d bytes", len(text))
				return
			}
		}
	})
	for i := range 1000 {
		must(t, w.write(content(i+1)))
	}
	done.Store(true)
	wg.Wait()
	if reads < 100 || len(seen) < 5 {
		t.Errorf("only %d reads of %d contents", reads, len(seen))
	}
	if entries, _ := os.ReadDir(path); len(entries) != 4 {
		t.Errorf("left: %v", entries)
	}
}

// A directory that only looks like the writer's content stays.
func TestWriterRemovesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	root, err := os.OpenRoot(path)
	must(t, err)
	defer root.Close()
	for _, name := range []string{"..mine", "..2026_03_01_12_00_00", "dir"} {
		must(t, root.Mkdir(name, 0o755))
	}
	for _, old := range []string{"..2026_03_01_12_00_00.123", "..2026_03_01_12_00_00.9"} {
		must(t, root.Mkdir(old, 0o755))
		must(t, root.WriteFile(old+"/secret", nil, 0o600))
	}
	must(t, root.Symlink("..2026_03_01_12_00_00.123", nextLink))
	must(t, root.Symlink("../..", dataLink)) // another target than the writer's
	w := writer{root: root}
	must(t, w.write(files{"a": {data: []byte("x"), mode: 0o600}}))
	entries, err := os.ReadDir(path)
	must(t, err)
	var names []string
	for _, e := range entries {
		if !isStamp(e.Name()) {
			names = append(names, e.Name())
		}
	}
	if got := strings.Join(names, " "); got != "..2026_03_01_12_00_00 ..data ..mine a dir" || len(entries) != 6 {
		t.Errorf("left %s of %d", got, len(entries))
	}
	if text, err := os.ReadFile(filepath.Join(path, "a")); string(text) != "x" {
		t.Errorf("%q %v", text, err)
	}
}
