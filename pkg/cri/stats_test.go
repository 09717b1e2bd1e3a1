package cri_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// TestC_1_40_7_UsageIsOneCall: one call for any number of containers, and other nodes'
// containers are left out.
//
// Shows: C-1.40.7
func TestC_1_40_7_UsageIsOneCall(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	r := rt.CRI(cri.Config{Node: "n1"})
	other := rt.CRI(cri.Config{Node: "n2"})
	for _, name := range []string{"a", "b"} {
		start(t, r, wanted(name, "busybox"), 0)
	}
	start(t, other, wanted("c", "busybox"), 0)
	rt.SetMemory(pod.Key{Namespace: "default", Name: "a"}, "c0", 4711)
	before := rt.Calls()["ListContainerStats"]
	all, err := r.ContainerUsage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := rt.Calls()["ListContainerStats"] - before; got != 1 {
		t.Errorf("%d calls", got)
	}
	if len(all) != 2 {
		t.Fatalf("%d containers", len(all))
	}
	for _, u := range all {
		want := uint64(0)
		if u.Name == "a" {
			want = 4711
		}
		if u.Container != "c0" || u.Namespace != "default" || u.UID != "uid-"+u.Name || *u.MemoryUsage != want || u.CPURate != nil ||
			u.CPUNanoseconds == nil || u.At.IsZero() || u.Writable.Mountpoint != "/" || *u.Writable.Used == 0 {
			t.Errorf("%+v", struct {
				Name, Container, UID string
				Writable             pod.Filesystem
			}{u.Name, u.Container, u.UID, u.Writable})
		}
	}
}

// TestC_1_40_7_OneFilesystemForBoth: if a runtime reports no file system of containers, it
// is that of the images.
//
// Shows: C-1.40.7
func TestC_1_40_7_OneFilesystemForBoth(t *testing.T) {
	t.Parallel()
	images, containers, err := critest.New().CRI(cri.Config{Node: "n1"}).Filesystems(t.Context())
	if err != nil || images.Mountpoint != "/" || *images.Used == 0 || containers.Mountpoint != images.Mountpoint {
		t.Errorf("%+v %+v %v", images, containers, err)
	}
}

// splitDisks is a runtime with a file system of its own for writable layers.
type splitDisks struct{ runtimeapi.ImageServiceClient }

// ImageFsInfo implements CRI.
func (splitDisks) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error) {
	at := func(dir string) []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir}}}
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: at("/images"), ContainerFilesystems: at("/layers")}, nil
}

// TestFilesystems_OfLayersAndImages_AreOneIfNotDistinguished: as on a kubelet without
// KubeletSeparateDiskGC.
//
// Shows: C-1.40.7
func TestFilesystems_OfLayersAndImages_AreOneIfNotDistinguished(t *testing.T) {
	t.Parallel()
	for one, want := range map[bool]string{false: "/layers", true: "/images"} {
		images, containers, err := cri.New(cri.Config{OneDisk: one}, nil, splitDisks{}).Filesystems(t.Context())
		if err != nil || images.Mountpoint != "/images" || containers.Mountpoint != want {
			t.Errorf("one disk is %v: %+v %+v %v", one, images, containers, err)
		}
	}
}

// A RunPodSandbox call says whether its sandbox has a user namespace of its own.
//
// Shows: Appendix G
func TestObserve_UserNamespace_IsReported(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		rt := critest.New()
		rt.SetHandlers(critest.Handler{UserNamespaces: true})
		var mu sync.Mutex
		var said []bool
		r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt), Observe: func(c cri.Call) {
			mu.Lock()
			defer mu.Unlock()
			if c.Method == "RunPodSandbox" {
				said = append(said, c.UserNamespace)
			} else if c.UserNamespace {
				t.Errorf("%s has a user namespace", c.Method)
			}
		}})
		s := wanted("a", "busybox")
		host := !own
		s.Pod.Spec.HostUsers = &host
		place := pod.Place{Users: &pod.Users{HostID: 65536, Length: 65536}}
		if _, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: s, Instance: 1, Place: place}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if !slices.Equal(said, []bool{own}) {
			t.Errorf("hostUsers %t: %v", host, said)
		}
		mu.Unlock()
	}
}

// TestObserve_EveryCall_IsReported: Observe gets the name, end and error of every call, over a
// real connection.
func TestObserve_EveryCall_IsReported(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	var mu sync.Mutex
	reported := map[string][]cri.Call{}
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt), Observe: func(c cri.Call) {
		mu.Lock()
		defer mu.Unlock()
		reported[c.Method] = append(reported[c.Method], c)
	}})
	start(t, r, wanted("a", "busybox"), 0)
	rt.Fault(critest.Fault{Method: "ListContainerStats", Times: 1, Err: status.Error(codes.Internal, "no")})
	if _, err := r.ContainerUsage(t.Context()); err == nil {
		t.Error("no error")
	}
	mu.Lock()
	defer mu.Unlock()
	for method, failed := range map[string]bool{"RunPodSandbox": false, "StartContainer": false, "ListContainerStats": true} {
		calls := reported[method]
		if len(calls) != 1 || (calls[0].Err != nil) != failed || calls[0].Took <= 0 {
			t.Errorf("%s: reported %+v", method, calls)
		}
	}
}
