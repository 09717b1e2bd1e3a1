package cri_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// asking is a spec whose one container has these resources; "" leaves one out.
func asking(cpuRequest, cpuLimit, memoryLimit string) *pod.Spec {
	w := wanted("web", "sleep")
	r := &w.Pod.Spec.Containers[0].Resources
	r.Requests, r.Limits = v1.ResourceList{}, v1.ResourceList{}
	for _, q := range []struct {
		to   v1.ResourceList
		name v1.ResourceName
		text string
	}{{r.Requests, v1.ResourceCPU, cpuRequest}, {r.Limits, v1.ResourceCPU, cpuLimit}, {r.Limits, v1.ResourceMemory, memoryLimit}} {
		if q.text != "" {
			q.to[q.name] = resource.MustParse(q.text)
		}
	}
	return w
}

// Shows: C-1.34.4
func TestC_1_34_4_UpdateGivesTheNumbersOfACreate(t *testing.T) {
	for name, c := range map[string]struct{ before, after *pod.Spec }{
		"more of all":        {asking("100m", "200m", "64Mi"), asking("250m", "1", "128Mi")},
		"less of all":        {asking("250m", "1", "128Mi"), asking("100m", "200m", "64Mi")},
		"limits where none":  {asking("", "", ""), asking("1", "2", "1Gi")},
		"requests alone":     {asking("1", "2", "1Gi"), asking("2", "2", "1Gi")},
		"as it is":           {asking("1", "2", "1Gi"), asking("1", "2", "1Gi")},
		"a tiny bit of CPU":  {asking("1", "2", "1Gi"), asking("1m", "1m", "1Gi")},
		"no request, ever":   {asking("", "1", ""), asking("", "2", "")},
		"memory, but no CPU": {asking("", "", "64Mi"), asking("", "", "65Mi")},
	} {
		t.Run(name, func(t *testing.T) {
			rt := critest.New()
			r := rt.CRI(cri.Config{Node: "n1", NodeMemory: 4 << 30})
			l := start(t, r, c.before, 0)
			rt.SetMemory(c.before.Key, "c0", 32<<20)
			if err := r.UpdateContainer(t.Context(), l.containers["c0"], c.after, "c0"); err != nil {
				t.Fatal(err)
			}
			got := rt.Resources(c.before.Key, "c0")

			other := critest.New()
			start(t, other.CRI(cri.Config{Node: "n1", NodeMemory: 4 << 30}), c.after, 0)
			want := other.Resources(c.after.Key, "c0")
			got.OomScoreAdj, want.OomScoreAdj = 0, 0 // a running process keeps its own
			for _, r := range []*runtimeapi.LinuxContainerResources{got, want} {
				if r.CpuQuota <= 0 { // no limit, in either notation
					r.CpuQuota, r.CpuPeriod = 0, 0
				}
				r.MemoryLimitInBytes, r.MemorySwapLimitInBytes = max(r.MemoryLimitInBytes, 0), max(r.MemorySwapLimitInBytes, 0)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("resources (-created +updated):\n%s", diff)
			}
		})
	}
}

// CRI reads zero as "unchanged": a removed limit has to be sent.
//
// Shows: C-1.34.4
func TestC_1_34_4_ALimitThatIsGoneIsTakenAway(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	before := asking("100m", "200m", "64Mi")
	l := start(t, r, before, 0)
	if err := r.UpdateContainer(t.Context(), l.containers["c0"], asking("100m", "", ""), "c0"); err != nil {
		t.Fatal(err)
	}
	if got := rt.Resources(before.Key, "c0"); got.CpuQuota != -1 || got.MemoryLimitInBytes != -1 {
		t.Errorf("%v", got)
	}
}

// A container without a limit of its own gets its pod's, in an update too.
//
// Shows: C-1.34.7
func TestC_1_34_7_UpdateKeepsThePodsLimit(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	before := asking("100m", "", "")
	before.Pod.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}}
	after := asking("200m", "", "")
	after.Pod.Spec.Resources = before.Pod.Spec.Resources
	l := start(t, r, before, 0)
	rt.SetMemory(before.Key, "c0", 32<<20)
	if err := r.UpdateContainer(t.Context(), l.containers["c0"], after, "c0"); err != nil {
		t.Fatal(err)
	}
	if got := rt.Resources(before.Key, "c0"); got.MemoryLimitInBytes != 64<<20 || got.CpuShares != 204 {
		t.Errorf("%v", got)
	}
	rt.SetMemory(before.Key, "c0", 65<<20)
	if err := r.UpdateContainer(t.Context(), l.containers["c0"], after, "c0"); err == nil || !strings.Contains(err.Error(), "memory limit (67108864) below current usage (68157440)") {
		t.Errorf("error %v", err)
	}
}

// Shows: C-1.34.4
func TestC_1_34_4_MemoryLimitBelowUseIsRefused(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := asking("100m", "200m", "64Mi")
	l := start(t, r, want, 0)
	rt.SetMemory(want.Key, "c0", 40<<20)
	rt.Reset()
	err := r.UpdateContainer(t.Context(), l.containers["c0"], asking("100m", "200m", "32Mi"), "c0")
	if err == nil || err.Error() != `cannot decrease memory limits: attempting to set container "c0" memory limit (33554432) below current usage (41943040)` {
		t.Errorf("error %v", err)
	}
	if got := rt.Transcript(); len(got) != 0 {
		t.Errorf("the runtime was asked: %q", got)
	}
	// If the runtime does not report the usage, the kernel decides.
	rt.Fault(critest.Fault{Method: "ContainerStats", Err: status.Error(codes.Unimplemented, "no")})
	err = r.UpdateContainer(t.Context(), l.containers["c0"], asking("100m", "200m", "32Mi"), "c0")
	if err == nil || !strings.Contains(err.Error(), "device or resource busy") {
		t.Errorf("error %v", err)
	}
	if got := rt.Resources(want.Key, "c0").MemoryLimitInBytes; got != 64<<20 {
		t.Errorf("the limit is %d", got)
	}
}

// Shows: C-1.34
func TestC_1_34_UpdateContainer_NotFoundOrExited_Fails(t *testing.T) {
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	want := asking("100m", "", "")
	l := start(t, r, want, 0)
	if err := r.UpdateContainer(t.Context(), "x", want, "c0"); !errors.Is(err, cri.ErrNotFound) {
		t.Errorf("no such container: %v", err)
	}
	if err := r.UpdateContainer(t.Context(), l.containers["c0"], want, "missing"); err == nil || !strings.Contains(err.Error(), `no container "missing"`) {
		t.Errorf("not in the spec: %v", err)
	}
	rt.Exit(want.Key, "c0", 0)
	if err := r.UpdateContainer(t.Context(), l.containers["c0"], want, "c0"); err == nil {
		t.Error("an exited container was updated")
	}
}

// Shows: C-1.43.1
func TestC_1_43_1_ReopenLogBeginsANewFile(t *testing.T) {
	logs := t.TempDir()
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1", PodLogsDir: logs})
	want := wanted("web", "sleep")
	l := start(t, r, want, 0)
	path := filepath.Join(logs, "default_web_uid-web", "c0", "0.log")
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := r.ReopenLog(t.Context(), l.containers["c0"]); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	rt.Exit(want.Key, "c0", 0)
	if err := r.ReopenLog(t.Context(), l.containers["c0"]); err == nil {
		t.Error("the log of an exited container was reopened")
	}
}
