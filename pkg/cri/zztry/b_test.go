package critry

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestVariants(t *testing.T) {
	ctx := context.Background()
	conn, err := grpc.NewClient("unix:///tmp/ctrdcri/containerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil { t.Fatal(err) }
	raw := api.NewRuntimeServiceClient(conn)
	names := []string{"min", "seccomp-sandbox", "seccomp-container", "masked", "resources", "all", "all-host-ns"}
	sum := map[string][4][]time.Duration{}
	sec := &api.SecurityProfile{ProfileType: api.SecurityProfile_RuntimeDefault}
	for i := range 15 {
		for _, n := range names {
			ns := &api.NamespaceOption{Network: api.NamespaceMode_NODE, Pid: api.NamespaceMode_CONTAINER}
			sb := &api.LinuxSandboxSecurityContext{NamespaceOptions: ns}
			cc := &api.LinuxContainerSecurityContext{NamespaceOptions: ns}
			lc := &api.LinuxContainerConfig{SecurityContext: cc}
			if n == "min" { ns.Pid = api.NamespaceMode_POD }
			if n == "seccomp-sandbox" || n[:3] == "all" { sb.Seccomp = sec }
			if n == "seccomp-container" || n[:3] == "all" { cc.Seccomp = sec }
			if n == "masked" || n[:3] == "all" {
				cc.MaskedPaths = []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware"}
				cc.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
			}
			if n == "resources" || n[:3] == "all" { lc.Resources = &api.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 1000} }
			box := &api.PodSandboxConfig{Metadata: &api.PodSandboxMetadata{Name: fmt.Sprint(n, i), Namespace: "critry", Uid: "u"}, LogDirectory: "/tmp/critry/logs/raw",
				Linux: &api.LinuxPodSandboxConfig{SecurityContext: sb}}
			t0 := time.Now()
			s, err := raw.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Config: box})
			if err != nil { t.Fatal(err) }
			t1 := time.Now()
			c, err := raw.CreateContainer(ctx, &api.CreateContainerRequest{PodSandboxId: s.PodSandboxId, SandboxConfig: box, Config: &api.ContainerConfig{
				Metadata: &api.ContainerMetadata{Name: "main"}, Image: &api.ImageSpec{Image: "nodectl.dev/test/busybox:1"}, Command: []string{"sleep", "1000"}, LogPath: fmt.Sprint(n, i, ".log"), Linux: lc}})
			if err != nil { t.Fatal(err) }
			t2 := time.Now()
			if _, err := raw.StartContainer(ctx, &api.StartContainerRequest{ContainerId: c.ContainerId}); err != nil { t.Fatal(err) }
			t3 := time.Now()
			v := sum[n]
			for k, d := range []time.Duration{t1.Sub(t0), t2.Sub(t1), t3.Sub(t2), t3.Sub(t0)} { v[k] = append(v[k], d) }
			sum[n] = v
			raw.StopPodSandbox(ctx, &api.StopPodSandboxRequest{PodSandboxId: s.PodSandboxId})
			raw.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{PodSandboxId: s.PodSandboxId})
		}
	}
	for _, n := range names {
		fmt.Printf("%-20s", n)
		for k := range 4 { slices.Sort(sum[n][k]); fmt.Printf(" %8s(min %s)", sum[n][k][7].Round(100*time.Microsecond), sum[n][k][0].Round(100*time.Microsecond)) }
		fmt.Println()
	}
}
