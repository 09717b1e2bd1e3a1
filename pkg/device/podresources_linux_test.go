package device

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// twoPods are a pod with an init container, a sidecar and a container, and one that has terminated.
func twoPods() []v1.Pod {
	always := v1.ContainerRestartPolicyAlways
	web, done := v1.Pod{}, v1.Pod{}
	web.Namespace, web.Name, web.UID = "shop", "web", types.UID("u1")
	web.Spec.InitContainers = []v1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}}
	web.Spec.Containers = []v1.Container{{Name: "main"}}
	done.Namespace, done.Name, done.UID, done.Status.Phase = "shop", "done", "u2", v1.PodSucceeded
	done.Spec.Containers = []v1.Container{{Name: "main"}}
	return []v1.Pod{web, done}
}

// service returns a service with a GPU near to two NUMA nodes, an unhealthy GPU, and a NIC with an
// unknown NUMA node.
func service(allocations func(context.Context) (map[string]map[string]pod.Allocation, error)) *PodResources {
	return NewPodResources(ResourcesConfig{
		Pods: twoPods, Allocations: allocations, CPUs: []int{1, 2}, Memory: []pod.Block{{NUMAAffinity: []int{0}, Type: "memory", Size: 5}},
		Devices: func() []Resource {
			return []Resource{
				{Name: "x.com/gpu", Devices: []Listed{
					{Device: Device{ID: "g0", Healthy: true, NUMA: []int64{0, 1}}, Listed: true}, {Device: Device{ID: "g1"}, Listed: true},
				}},
				{Name: "x.com/nic", Devices: []Listed{{Device: Device{ID: "n0", Healthy: true}, Listed: true}, {Device: Device{ID: "n1"}}}},
			}
		},
	})
}

// having returns allocations of both pods.
func having(context.Context) (map[string]map[string]pod.Allocation, error) {
	return map[string]map[string]pod.Allocation{
		"u1": {
			"main": {Placement: pod.Placement{CPUs: "2-3", Memory: []pod.Block{{NUMAAffinity: []int{0, 1}, Type: "memory", Size: 7}}}, Devices: []pod.DeviceAllocation{{Resource: "x.com/gpu", Devices: []string{"g0"}}}},
			"side": {
				Devices: []pod.DeviceAllocation{{Resource: "x.com/nic", Devices: []string{"n0"}}},
				Claims:  []pod.ClaimAllocation{{Namespace: "shop", Name: "gpu", UID: "c1", Devices: []pod.ClaimDevice{{Driver: "x.com", Pool: "p", Device: "d", ShareID: "s", CDI: []string{"x.com/gpu=d"}}}}},
			},
			"init": {Placement: pod.Placement{CPUs: "5"}},
		},
		"u2": {"main": {Placement: pod.Placement{CPUs: "6"}}},
	}, nil
}

// flat writes an answer in one line.
func flat(message fmt.Stringer) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(message.String(), "  ", " ")), " ")
}

// The service has the kubelet's answers: only pods that have not terminated, only sidecars and
// regular containers, each device once for each NUMA node.
//
// Shows: C-1.46.10
func TestPodResources_PodsOfANode_AreListedAsByTheKubelet(t *testing.T) {
	t.Parallel()
	p := service(having)
	list, err := p.List(t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil || len(list.GetPodResources()) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	one, err := p.Get(t.Context(), &podresources.GetPodResourcesRequest{PodNamespace: "shop", PodName: "web"})
	if err != nil || flat(one.GetPodResources()) != flat(list.GetPodResources()[0]) {
		t.Errorf("Get has %v, %v", one, err)
	}
	const want = `name:"web" namespace:"shop" ` +
		`containers:{name:"side" devices:{resource_name:"x.com/nic" device_ids:"n0"} ` +
		`dynamic_resources:{claim_name:"gpu" claim_namespace:"shop" claim_resources:{cdi_devices:{name:"x.com/gpu=d"} driver_name:"x.com" pool_name:"p" device_name:"d" share_id:"s"}}} ` +
		`containers:{name:"main" devices:{resource_name:"x.com/gpu" device_ids:"g0" topology:{nodes:{}}} ` +
		`devices:{resource_name:"x.com/gpu" device_ids:"g0" topology:{nodes:{ID:1}}} ` +
		`cpu_ids:2 cpu_ids:3 memory:{memory_type:"memory" size:7 topology:{nodes:{} nodes:{ID:1}}}}`
	if got := flat(list.GetPodResources()[0]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	all, err := p.GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{})
	const wantAll = `devices:{resource_name:"x.com/gpu" device_ids:"g0" topology:{nodes:{}}} devices:{resource_name:"x.com/gpu" device_ids:"g0" topology:{nodes:{ID:1}}} ` +
		`devices:{resource_name:"x.com/nic" device_ids:"n0"} cpu_ids:1 cpu_ids:2 memory:{memory_type:"memory" size:5 topology:{nodes:{}}}`
	if err != nil || flat(all) != wantAll {
		t.Errorf("allocatable %s, %v, want %s", flat(all), err, wantAll)
	}
	for _, name := range []string{"done", "other"} {
		if _, err := p.Get(t.Context(), &podresources.GetPodResourcesRequest{PodNamespace: "shop", PodName: name}); err == nil || !strings.Contains(err.Error(), "pod "+name+" in namespace shop not found") {
			t.Errorf("Get %s: %v", name, err)
		}
	}
}

// If the runtime does not answer, the result is an error, not an empty list. It counts as an error
// in the metrics.
func TestPodResources_RuntimeFails_IsAnError(t *testing.T) {
	t.Parallel()
	p := service(func(context.Context) (map[string]map[string]pod.Allocation, error) {
		return nil, errors.New("no answer")
	})
	var asked []string
	p.cfg.OnRequest = func(version, method string, failed bool) { asked = append(asked, fmt.Sprint(version, method, failed)) }
	if _, err := p.List(t.Context(), nil); err == nil {
		t.Error("List answers")
	}
	if _, err := p.Get(t.Context(), nil); err == nil {
		t.Error("Get answers")
	}
	if _, err := p.GetAllocatableResources(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := (earlier{of: p}).List(t.Context(), nil); err == nil {
		t.Error("List of v1alpha1 answers")
	}
	if got := strings.Join(asked, " "); got != "v1listtrue v1gettrue v1get_allocatablefalse v1alpha1listtrue" {
		t.Errorf("counted %s", got)
	}
}

// The socket answers in both versions, and rejects a caller that sends too many requests.
//
// Shows: C-1.46.10
func TestPodResources_Socket_IsLimited(t *testing.T) {
	t.Parallel()
	n := start(t)
	p := service(having)
	p.cfg.Dir = n.dir
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.dir, resourcesDir, socketName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := podresources.NewPodResourcesListerClient(conn)
	if list, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true)); err != nil || len(list.GetPodResources()) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	// The version before has the same devices, and nothing else.
	const want = `name:"web" namespace:"shop" containers:{name:"side" devices:{resource_name:"x.com/nic" device_ids:"n0"}} ` +
		`containers:{name:"main" devices:{resource_name:"x.com/gpu" device_ids:"g0"} devices:{resource_name:"x.com/gpu" device_ids:"g0"}}`
	old, err := v1alpha1.NewPodResourcesListerClient(conn).List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	if err != nil || len(old.GetPodResources()) != 1 || flat(old.GetPodResources()[0]) != want {
		t.Fatalf("%v, %v, want %s", old, err, want)
	}
	refuse := limited()
	refused := 0
	for range 2 * requestBurst {
		_, err := refuse(ctx, nil, nil, func(context.Context, any) (any, error) { return nil, nil })
		if status.Code(err) == codes.ResourceExhausted {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no request is refused")
	}
}
