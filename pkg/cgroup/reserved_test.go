package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

func reservedList() v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("64Mi"),
		v1.ResourceEphemeralStorage: resource.MustParse("1Gi"), resourcePID: resource.MustParse("100"),
	}
}

// TestLimitsOfReservedCgroups: -compressible limits the CPU alone, and memory QoS protects
// the memory.
//
// Shows: C-1.41.11
func TestLimitsOfReservedCgroups(t *testing.T) {
	qos := Config{Enforce: pod.Enforcement{MemoryQoS: &pod.MemoryQoS{}}}
	want(t, "all", Config{}.ofReserved(reservedList(), false, nil), "shares=512 quota=0 memory=67108864 pids=100 ")
	want(t, "compressible", Config{}.ofReserved(reservedList(), true, []string{"2MB"}), "shares=512 quota=0 memory=0 pids=0 ")
	want(t, "nothing reserved", Config{}.ofReserved(nil, false, nil), "shares=0 quota=0 memory=0 pids=0 ")
	want(t, "memory QoS", qos.ofReserved(reservedList(), false, nil).guard[memoryMin], "67108864")
	want(t, "memory QoS, compressible", len(qos.ofReserved(reservedList(), true, nil).guard), 0)
}

// TestLimitReserved_ExistingCgroup_IsLimited: a cgroup of the machine gets its limits and no
// mark; one that does not exist is not created.
//
// Shows: C-1.41.11
func TestLimitReserved_ExistingCgroup_IsLimited(t *testing.T) {
	g := cgroupsOf(t)
	name := g.cfg.Root
	if err := g.LimitReserved(name, reservedList(), false); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Fatalf("a cgroup that does not exist: %v", err)
	}
	for _, dir := range rootDirs(t, name) {
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	if err := g.LimitReserved(name, reservedList(), false); err != nil {
		t.Fatal(err)
	}
	h, err := g.host()
	if err != nil {
		t.Fatal(err)
	}
	has, err := h.has(name)
	if err != nil || has.memory != 64<<20 || h.unified == (has.shares == 512) {
		t.Errorf("%s, %v", has, err)
	}
	for _, dir := range h.dirs(name) {
		if o, _, err := g.marks.owner(dir); err != nil || o != unmarked {
			t.Errorf("%s has owner %v, %v", dir, o, err)
		}
	}
	if dir, ok := h.paths(name)["pids"]; ok {
		text, err := os.ReadFile(filepath.Join(dir, "pids.max"))
		if err != nil || strings.TrimSpace(string(text)) != "100" {
			t.Errorf("pids.max is %q, %v", text, err)
		}
	}
}
