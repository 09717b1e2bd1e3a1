package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/compare"
)

// A directory stands for the root of a container: the look reports each kind of file with its
// mode, its owner and its content.
func TestEveryFileOfAVolumeIsRecorded(t *testing.T) {
	proc := t.TempDir() + "/"
	root := proc + "root"
	for _, d := range []string{"/v/..2026_01_02_03_04_05.123", "/a b", "/sys/x", "/dev"} {
		if err := os.MkdirAll(root+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := &Case{Prepare: []Thing{
		{File: "..2026_01_02_03_04_05.123/one", Text: "1\n", Mode: 0o2640},
		{Link: "..data", To: "..2026_01_02_03_04_05.123"}, {Link: "one", To: "..data/one"},
		{Pipe: "p"}, {Socket: "s", Mode: 0o700}, {Dir: "d", Mode: 0o1777}, {File: "long", Text: strings.Repeat("x", shortFile+1)},
	}}
	if err := c.prepare(root + "/v"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/dev/termination-log", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mounts := "1 2 3:4 / / rw - ext4 x rw\n1 2 3:4 / /v rw - ext4 x rw\n1 2 3:4 / /a\\040b rw - ext4 x rw\n" +
		"1 2 3:4 / /sys/x ro - sysfs x rw\n1 2 3:4 / /dev/termination-log rw - ext4 x rw\n"
	me := fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
	want := []string{
		"/a b dir 0755 " + me,
		"/dev/termination-log file 0600 " + me + ` ""`,
		"/v dir 0755 " + me,
		"/v/..$TIME dir 0755 " + me,
		"/v/..$TIME/one file 2640 " + me + ` "1\n"`,
		"/v/..data link " + me + " -> ..$TIME",
		"/v/d dir 1777 " + me,
		"/v/long file 0644 " + me + " 4097 bytes ",
		"/v/one link " + me + " -> ..data/one",
		"/v/p pipe 0644 " + me,
		"/v/s socket 0700 " + me,
	}
	got := newNormaliser(&Recording{}).lines(volumeFiles(proc, mounts, idMap{}))
	if !slices.EqualFunc(got, want, func(a, b string) bool { return a == b || strings.HasSuffix(b, " bytes ") && strings.HasPrefix(a, b) }) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestMountsAreRecordedWithoutNumbers(t *testing.T) {
	for line, want := range map[string]string{
		"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue": "/mnt2 ext3 /mnt1 rw,noatime master shared",
		"36 35 98:0 /mnt1 /mnt2 ro - ext3 /dev/root rw":                                           "/mnt2 ext3 /mnt1 ro",
		"36 35 0:9 / /v rw,relatime - tmpfs tmpfs rw,size=8192k":                                  "/v tmpfs / rw,relatime rw,size=8192k",
		"36 35 0:9 /abc / rw - overlay overlay rw,lowerdir=/x":                                    "/ overlay / rw",
	} {
		if got := mountLine(line); got != want {
			t.Errorf("%s\ngot  %q\nwant %q", line, got, want)
		}
	}
}

func TestNamespacesAreTheNodesOrNumbered(t *testing.T) {
	looks := map[string]Look{
		"a": {Namespaces: compare.Facts{"pid": "pid:[1]", "net": "the node's", "ipc": "ipc:[7]"}},
		"b": {Namespaces: compare.Facts{"pid": "pid:[2]", "net": "net:[5]", "ipc": "ipc:[7]"}},
	}
	nameNamespaces(looks)
	for _, tc := range [][3]string{
		{"a", "pid", "1 of the pod"}, {"b", "pid", "2 of the pod"}, {"a", "net", "the node's"},
		{"b", "net", "1 of the pod"}, {"a", "ipc", "1 of the pod"}, {"b", "ipc", "1 of the pod"},
	} {
		if got := looks[tc[0]].Namespaces[tc[1]]; got != tc[2] {
			t.Errorf("%s of %s is %q, want %q", tc[1], tc[0], got, tc[2])
		}
	}
	own := namespaceLinks(fmt.Sprintf("/proc/%d/", os.Getpid()))
	if own["net"] != "the node's" || own["pid"] != "the node's" {
		t.Errorf("this process is in %v", own)
	}
}

// A pod for the API server has the name that it would have from a file, and is
// bound to the node; its objects are as they are written.
func TestObjectsForAnAPIServer(t *testing.T) {
	path, name, body, err := object("metadata: {name: a}\nspec: {containers: [{name: c, image: i}]}")
	var pod struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			NodeName                     string
			AutomountServiceAccountToken *bool
		}
	}
	if err == nil {
		err = json.Unmarshal(body, &pod)
	}
	if err != nil || path != "/api/v1/namespaces/default/pods" || name != "a-parity" || pod.Metadata.Name != name ||
		pod.Spec.NodeName != nodeName || pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken || pod.Kind != "Pod" || pod.APIVersion != "v1" {
		t.Errorf("%s %s %s: %v", path, name, body, err)
	}
	path, name, body, err = object("kind: ConfigMap\nmetadata: {name: a}\ndata: {x: z}")
	if err != nil || path != "/api/v1/namespaces/default/configmaps" || name != "a" || !strings.Contains(string(body), `"data":{"x":"z"}`) {
		t.Errorf("%s %s %s: %v", path, name, body, err)
	}
}

func TestObjectsOfACaseAreNamedLikeIt(t *testing.T) {
	const head = "shows: x\ncontract: [C-1.2]\nwatch: 5s\n---\nmetadata: {name: a}\n---\nkind: Secret\nmetadata: {name: %s}\n"
	if _, err := readCase("a", fmt.Appendf(nil, head, "b")); err == nil {
		t.Error("an object with another name is taken")
	}
	c, err := readCase("a", fmt.Appendf(nil, head, "a-x"))
	if err != nil || len(c.objects) != 1 || len(c.manifests) != 1 {
		t.Errorf("%v: %d objects, %d pods", err, len(c.objects), len(c.manifests))
	}
}

func TestRegistryHasWhatCasesName(t *testing.T) {
	cases := []*Case{{manifests: []string{"image: $REGISTRY/a:1", "image: $REGISTRY/none:1", "image: $REGISTRY/b/c", "image: $REGISTRY/d@$DIGEST", "image: other/e:1"}}}
	if got := strings.Join(named(cases), " "); got != "a:1 b/c:latest d:latest" {
		t.Errorf("it has %s", got)
	}
}

func TestPreparedThingsHaveTheirOwner(t *testing.T) {
	dir := t.TempDir()
	if err := (&Case{Prepare: []Thing{{File: "f", Text: "x", Mode: 0o4640, Owner: 42}}}).prepare(dir); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "f"), &st); err != nil || st.Uid != 42 || st.Gid != 42 || st.Mode&0o7777 != 0o4640 {
		t.Errorf("%d:%d %o: %v", st.Uid, st.Gid, st.Mode, err)
	}
	if err := (&Case{Prepare: []Thing{{Text: "x"}}}).prepare(dir); err == nil {
		t.Error("a thing without a name is made")
	}
}

func TestOwnersAreThoseOfTheContainer(t *testing.T) {
	proc := t.TempDir() + "/"
	for text, want := range map[string][2]uint32{
		"         0     131072      65536\n": {131072 + 1000, 1000},
		"         0          0 4294967295\n": {1000, 1000},
		"         0     131072      65536":   {1000, 1000}, // not mapped in the namespace
		"":                                   {1000, 1000},
	} {
		if err := os.WriteFile(proc+"uid_map", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := readIDMap(proc).inside(want[0]); got != want[1] {
			t.Errorf("%q: %d is %d, want %d", text, want[0], got, want[1])
		}
	}
}
