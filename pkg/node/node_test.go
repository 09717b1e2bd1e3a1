package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func texts(list v1.ResourceList) map[string]string {
	out := map[string]string{}
	for name, q := range list {
		out[string(name)] = q.String()
	}
	return out
}

// TestC_1_31_3_Labels: every node has three, two of them by old names too, and the
// user's win.
//
// Shows: C-1.31.3
func TestC_1_31_3_Labels(t *testing.T) {
	t.Parallel()
	f := Facts{OS: "linux", Arch: "arm64"}
	want := map[string]string{"kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux", "kubernetes.io/arch": "armv7", "disk": "ssd", "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "arm64"}
	if diff := cmp.Diff(want, f.Labels("n1", map[string]string{"disk": "ssd", "kubernetes.io/arch": "armv7"})); diff != "" {
		t.Error(diff)
	}
}

func list(pairs ...string) v1.ResourceList {
	l := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

// Shows: C-1.41.6
func TestC_1_41_6_Allocatable(t *testing.T) {
	t.Parallel()
	f := Facts{Capacity: list("cpu", "4", "memory", "8Gi", "ephemeral-storage", "100Gi", "hugepages-2Mi", "1Gi")}
	for _, c := range []struct {
		name     string
		reserved []v1.ResourceList
		want     map[string]string
		err      string
	}{
		{"nothing", nil, map[string]string{"cpu": "4", "memory": "7Gi", "ephemeral-storage": "100Gi", "hugepages-2Mi": "1Gi"}, ""},
		{
			"both", []v1.ResourceList{list("cpu", "500m", "memory", "1Gi"), list("cpu", "1", "ephemeral-storage", "10Gi", "pid", "1000")},
			map[string]string{"cpu": "2500m", "memory": "6Gi", "ephemeral-storage": "90Gi", "hugepages-2Mi": "1Gi"}, "",
		},
		{"all", []v1.ResourceList{list("memory", "8Gi", "cpu", "4")}, map[string]string{"cpu": "0", "memory": "0", "ephemeral-storage": "100Gi", "hugepages-2Mi": "1Gi"}, ""},
		{"too much together", []v1.ResourceList{list("cpu", "3"), list("cpu", "2")}, nil, "more cpu is reserved than the 4 that this node has"},
	} {
		got, err := f.Allocatable(c.reserved...)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: %v, want %q", c.name, err, c.err)
			}
			continue
		}
		if diff := cmp.Diff(c.want, texts(got)); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
	}
	if diff := cmp.Diff(list("cpu", "4", "memory", "8Gi", "ephemeral-storage", "100Gi", "hugepages-2Mi", "1Gi"), f.Capacity); diff != "" {
		t.Errorf("the capacity itself changed:\n%s", diff)
	}
}

// TestC_1_41_6_Enforced: the limits of kubepods are the capacity minus the reservations. Huge pages
// are part of the memory, and process IDs have a limit.
//
// Shows: C-1.41.6
func TestC_1_41_6_Enforced(t *testing.T) {
	t.Parallel()
	f := Facts{Capacity: list("cpu", "4", "memory", "8Gi", "hugepages-2Mi", "1Gi"), PIDs: 4000}
	got := f.EnforcedLimits(list("cpu", "500m", "memory", "1Gi", "pid", "1000"), list("cpu", "5", "memory", "1Gi"))
	want := map[string]string{"cpu": "0", "memory": "6Gi", "hugepages-2Mi": "1Gi", "pid": "3k"}
	if diff := cmp.Diff(want, texts(got)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(list("cpu", "4", "memory", "8Gi", "hugepages-2Mi", "1Gi"), f.Capacity); diff != "" {
		t.Errorf("the capacity itself changed:\n%s", diff)
	}
	if _, ok := (Facts{}).EnforcedLimits()[resourcePID]; ok {
		t.Error("an unknown number of processes is a limit")
	}
}
