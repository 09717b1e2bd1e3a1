package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// A file that moves from memory to the disk stays in memory while the disk cannot be written.
func TestSplit_DiskFailsWhileAFileMovesToIt_KeepsItInMemory(t *testing.T) {
	t.Parallel()
	const layer = "api:/kubeconfig"
	disk, memory := t.TempDir(), t.TempDir()
	key := NewKey(t.TempDir(), "")
	apart := true
	s := NewSplit(NewSets(disk, key), NewSets(memory, key), func(string, pod.LastGoodSet) bool { return apart })
	file := pod.LastGoodSet{File: "f", Objects: []*pod.Object{{
		Key: pod.Key{Namespace: "ns", Name: "b"}, Kind: pod.KindConfigMap, Hash: "v1-b", Object: &v1.ConfigMap{Data: map[string]string{"k": "v"}},
	}}}
	if err := s.Save(layer, time.Now(), []pod.LastGoodSet{file}); err != nil {
		t.Fatal(err)
	}
	apart = false
	sets := NewSets(disk, key).dir
	if err := os.RemoveAll(sets); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sets, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(layer, time.Now(), []pod.LastGoodSet{file}); err == nil {
		t.Fatal("a disk without a directory for sets saved one")
	}
	if err := os.Remove(sets); err != nil {
		t.Fatal(err)
	}
	all, err := s.Load()
	if err != nil || len(all[layer].Files) != 1 {
		t.Errorf("got %+v, %v; want the file", all, err)
	}
	if err := s.Save(layer, time.Now(), []pod.LastGoodSet{file}); err != nil {
		t.Fatal(err)
	}
	if left, err := NewSets(memory, key).Load(); err != nil || len(left[layer].Files) != 0 {
		t.Errorf("the disk has the file, and memory still %+v, %v", left, err)
	}
}

// I8: files for memory never reach the disk. The next agent finds them, and they are lost
// with the memory; the others stay.
//
// Shows: I8
func TestI8_SplitKeepsSecretsOffTheDisk(t *testing.T) {
	t.Parallel()
	const canary, layer = "canary-of-a-s3cret", "api:/kubeconfig"
	disk, memory := t.TempDir(), t.TempDir()
	isSecret := func(_ string, s pod.LastGoodSet) bool {
		return len(s.Objects) > 0 && s.Objects[0].Kind == pod.KindSecret
	}
	object := func(kind, name string, o any) *pod.Object {
		return &pod.Object{Key: pod.Key{Namespace: "ns", Name: name}, Kind: kind, Hash: "v1-" + name, Object: o}
	}
	secret := pod.LastGoodSet{File: "k#secret/ns/a", Objects: []*pod.Object{object(pod.KindSecret, "a", &v1.Secret{Data: map[string][]byte{"k": []byte(canary)}})}}
	config := pod.LastGoodSet{File: "k#configmap/ns/b", Objects: []*pod.Object{object(pod.KindConfigMap, "b", &v1.ConfigMap{Data: map[string]string{"k": "v"}})}}
	at := time.Now().Truncate(time.Second)
	key := NewKey(disk, "")
	s := NewSplit(NewSets(disk, key), NewSets(memory, key), isSecret)
	if err := s.Save(layer, at, []pod.LastGoodSet{secret, config}); err != nil {
		t.Fatal(err)
	}
	err := filepath.Walk(disk, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "Y2FuYXJ5") || strings.Contains(string(text), canary) {
			t.Errorf("%s holds the secret", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	files := func(disk, memory string) string {
		var sets *Sets
		if memory != "" {
			sets = NewSets(memory, key)
		}
		all, err := NewSplit(NewSets(disk, key), sets, isSecret).Load()
		look, worse := ReadSplit(disk, memory, key)
		if err != nil || worse != nil || len(look[layer].Files) != len(all[layer].Files) || !all[layer].At.Equal(at) {
			t.Errorf("%v, %v, %+v", err, worse, all)
		}
		var names []string
		for _, f := range all[layer].Files {
			names = append(names, f.File)
		}
		return strings.Join(names, " ")
	}
	if got := files(disk, memory); got != "k#configmap/ns/b k#secret/ns/a" {
		t.Errorf("the next agent finds %q", got)
	}
	if got := files(disk, t.TempDir()); got != "k#configmap/ns/b" {
		t.Errorf("after a reboot: %q", got)
	}
	if got := files(disk, ""); got != "k#configmap/ns/b" {
		t.Errorf("without memory: %q", got)
	}
	// A file that is removed from the source is removed from both places.
	if err := s.Save(layer, at, []pod.LastGoodSet{{File: secret.File}}); err != nil {
		t.Fatal(err)
	}
	if got := files(disk, memory); got != "k#configmap/ns/b" {
		t.Errorf("taken away: %q", got)
	}
	if err := s.Forget(func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Load(); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
}
