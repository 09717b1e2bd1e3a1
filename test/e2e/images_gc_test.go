package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/registry"
)

// TestImages_DiskIsFilledAboveThreshold_UnusedGoByLastUse: of the images that were pulled from
// a registry, the unused ones go, the least recently used first, also across a restart of the
// agent. Those of a container that nodectl did not make, of a pod that waits, of archives and
// of a registry that does not answer stay. The commands pull, save, load, rmi and prune do the
// same on a real containerd.
//
// Shows: C-1.33.8, C-1.33.9
func TestImages_DiskIsFilledAboveThreshold_UnusedGoByLastUse(t *testing.T) {
	t.Parallel()
	s := newStage(t, node.New(t))
	r, lost := registry.New(t, registry.Options{}), registry.New(t, registry.Options{})
	names := map[string]string{}
	for _, name := range []string{"never", "before", "used", "desired", "spare"} {
		names[name] = r.Push(t, name+":1", 1, 1000)
	}
	names["lost"] = lost.Push(t, "lost:1", 1, 1000)
	s.excuse("waits")
	s.write("waits.yaml", strings.Replace(manifest("waits", []string{"- {name: main, image: '" + names["desired"] + "'}"}),
		"metadata: {", "metadata: {annotations: {nodectl.dev/depends-on: absent}, ", 1))
	a := s.serve("--image-gc-high-threshold", "100")
	a.await("Serving the local socket")
	for _, name := range names {
		if got := s.run("pull", name); got.code != 0 {
			t.Fatalf("pull %s: %s", name, got.err)
		}
	}
	box, _ := s.runForeign("foreign", nil)
	s.makeFrom(box, names["used"])
	before := s.makeFrom(box, names["before"])
	if users := s.imageUsers()[names["before"]]; len(users) != 1 {
		t.Errorf("users of an image of a container: %v", users)
	}
	if _, err := s.node.Runtime.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: before}); err != nil {
		t.Fatal(err)
	}
	users := s.imageUsers()
	if len(users[names["before"]]) != 0 || len(users[names["used"]]) != 1 || !slices.Equal(users[names["desired"]], []string{"pod default/" + s.full("waits")}) {
		t.Errorf("users of images: %v", users)
	}
	s.moveImage(names["spare"])
	a.leave()

	lost.Break(registry.Broken)
	b := s.serve("--image-gc-high-threshold", "1", "--image-gc-low-threshold", "0", "--minimum-image-ttl-duration", "0s")
	b.await("Image removed", names["before"])
	var removed []string
	for _, line := range b.linesWith("Image removed") {
		for short, name := range names {
			if strings.Contains(line, "image="+name+" ") {
				removed = append(removed, short)
				if strings.Contains(line, "bytes=0 ") {
					t.Errorf("nothing is freed: %s", line)
				}
			}
		}
	}
	if fmt.Sprint(removed) != "[never before]" || len(b.linesWith("Image removed")) != 2 {
		t.Errorf("removed %v:\n%s", removed, strings.Join(b.linesWith("Image removed"), "\n"))
	}
	there := s.imageUsers()
	for _, name := range []string{names["used"], names["desired"], names["lost"], names["spare"], node.Stamp} {
		if _, ok := there[name]; !ok {
			t.Errorf("%s is gone", name)
		}
	}
	// A user may remove images that the agent would keep.
	if got := s.run("rmi", names["used"]); got.code != 1 || !strings.Contains(got.err, "is used by") {
		t.Errorf("rmi of a used image: %d, %s", got.code, got.err)
	}
	if got := s.run("image", "prune", "--dry-run"); got.code != 0 || !strings.Contains(got.out, names["spare"]+" would be removed") || strings.Contains(got.out, names["used"]) {
		t.Errorf("prune --dry-run: %d\n%s%s", got.code, got.out, got.err)
	}
	if got := s.run("rmi", names["spare"]); got.code != 0 {
		t.Errorf("rmi: %s", got.err)
	}
	if _, ok := s.imageUsers()[names["spare"]]; ok {
		t.Error("rmi has not removed the image")
	}
}

// moveImage saves an image, removes it and loads the archive. The proxy before the runtime
// passes no streams in two directions, which saving and loading need.
func (s *stage) moveImage(name string) {
	s.Helper()
	archive := filepath.Join(s.scratch, "image.tar")
	for _, args := range [][]string{{"image", "save", name, "-o", archive}, {"rmi", name}, {"image", "load", archive}} {
		cmd := s.command(args...)
		cmd.Args[slices.Index(cmd.Args, s.endpoint)] = s.node.Endpoint
		if got := s.finish(cmd); got.code != 0 {
			s.Fatalf("%s: %s", strings.Join(args, " "), got.err)
		}
	}
	if info, err := os.Stat(archive); err != nil || info.Size() < 1000 {
		s.Errorf("the archive: %v", err)
	}
}

// makeFrom creates a container from an image, which is not started, in a sandbox that
// runForeign has made.
func (s *stage) makeFrom(box, image string) (id string) {
	s.Helper()
	c, err := s.node.Runtime.CreateContainer(s.Context(), &cri.CreateContainerRequest{
		PodSandboxId: box, SandboxConfig: &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: "foreign", Namespace: "default", Uid: "foreign"}},
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: image}, Command: []string{"/none"}, Image: &cri.ImageSpec{Image: image}, Linux: &cri.LinuxContainerConfig{},
		},
	})
	if err != nil {
		s.Fatal(err)
	}
	return c.ContainerId
}

// imageUsers returns the users of each image, by its names.
func (s *stage) imageUsers() map[string][]string {
	s.Helper()
	var list struct {
		Items []struct {
			Names, UsedBy []string
		}
	}
	got := s.run("get", "images", "-o", "json")
	if err := json.Unmarshal([]byte(got.out), &list); err != nil {
		s.Fatalf("get images: %v\n%s", err, got.err)
	}
	users := map[string][]string{}
	for _, i := range list.Items {
		for _, name := range i.Names {
			users[name] = i.UsedBy
		}
	}
	return users
}
