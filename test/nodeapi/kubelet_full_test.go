//go:build full

package nodeapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/node/apiserver"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/wait"
)

// kubeletProgram is the real kubelet, built by hack/kubelet.
const kubeletProgram = "../../bin/kubelet/kubelet"

// thresholds are the kubelet's own.
var thresholds = []string{"memory.available<100Mi", "nodefs.available<10%", "nodefs.inodesFree<5%", "imagefs.available<15%", "imagefs.inodesFree<5%"}

// TestC_1_25_SideBySide: a kubelet and this node, on one machine with one runtime, register
// equal Nodes except for their names.
//
// Shows: C-1.25
func TestC_1_25_SideBySide(t *testing.T) {
	a := server(t)
	rt := critest.New()
	rt.SetHandlers(critest.Handler{Name: "runsc"}, critest.Handler{Name: "", UserNamespaces: true, RecursiveReadOnly: true})
	for _, image := range []string{"example.com/a:1", "example.com/b:2"} {
		rt.SetImage(image, true)
	}
	a.kubelet(t, "kube", critest.Serve(t, rt))
	theirs := a.until(t, "kube", "ready with its images", func(n *v1.Node) bool { return ready(n) && len(n.Status.Images) == 2 })

	m := a.join(t, "ours", func(c *apiserver.Config, o *node.ObserverConfig) {
		labels := map[string]string{"disk": "ssd"}
		ts, err := pod.ParseThresholds(thresholds)
		if err != nil {
			t.Fatal(err)
		}
		allocatable, err := o.Facts.Allocatable(o.Facts.HardEvictionReservation(ts))
		if err != nil {
			t.Fatal(err)
		}
		c.Labels, o.Labels = labels, o.Facts.Labels("ours", labels)
		c.LeaseDuration = 40 * time.Second // the kubelet's: a shorter one is checked more often until the node exists
		o.Allocatable, o.ProviderID = allocatable, ""
		o.Runtime = rt.CRI(cri.Config{Node: "ours"})
		o.HostIPs = nil
	})
	ours := a.until(t, "ours", "ready with its images", func(n *v1.Node) bool { return ready(n) && len(n.Status.Images) == 2 })
	kl, l := a.lease(t, "kube", "there", anyLease), a.lease(t, "ours", "there", anyLease)
	m.stop()
	if diff := cmp.Diff(plain(t, theirs, "kube"), plain(t, ours, "ours")); diff != "" {
		t.Errorf("- the kubelet's, + ours:\n%s", diff)
	}
	if len(kl.OwnerReferences) != 1 || len(l.OwnerReferences) != 1 || kl.OwnerReferences[0].Kind != l.OwnerReferences[0].Kind {
		t.Errorf("leases %+v, %+v", kl, l)
	}
	var theirEvents []string
	events, err := a.admin.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=kube"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		theirEvents = append(theirEvents, e.Reason)
	}
	t.Logf("requests: the kubelet's %v, ours %v", countAll(a.asked(t, "kube")), countAll(a.asked(t, "ours")))
	t.Logf("events: the kubelet's %v, ours %v", theirEvents, m.said())
	for what, n := range countAll(a.asked(t, "ours")) {
		if most := countAll(a.asked(t, "kube"))[what]; n > most+1 && what != "update leases" { // their number depends on the time
			t.Errorf("%s %d times, the kubelet %d times", what, n, most)
		}
	}
	a.nobodyRefused(t, "ours")
	for _, reason := range m.said() {
		if !slices.Contains(theirEvents, reason) {
			t.Errorf("the kubelet says %v and no %s", theirEvents, reason)
		}
	}
}

// countAll counts requests by verb and object.
func countAll(all []request) map[string]int {
	n := map[string]int{}
	for _, r := range all {
		n[r.Verb+" "+r.Ref.Resource]++
	}
	return n
}

// plain returns the part of a Node that two agents on one machine should have in common.
func plain(t *testing.T, n *v1.Node, name string) map[string]any {
	t.Helper()
	n = n.DeepCopy()
	n.ObjectMeta = metav1.ObjectMeta{Labels: n.Labels, Annotations: n.Annotations}
	n.Status.DaemonEndpoints = v1.NodeDaemonEndpoints{}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.Time{}, metav1.Time{}
	}
	text, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(bytes.ReplaceAll(text, []byte(`"`+name+`"`), []byte(`"the-node"`)), &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

// kubelet runs a real kubelet until the test ends.
func (a audited) kubelet(t *testing.T, name, endpoint string) {
	t.Helper()
	if _, err := os.Stat(kubeletProgram); err != nil {
		t.Fatalf("%v: make it with hack/kubelet/build", err)
	}
	machine := arm.ReadSettings()
	t.Cleanup(func() {
		if err := machine.Restore(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podLogsDir: %s
volumePluginDir: %s
containerRuntimeEndpoint: %s
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: [none]
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
address: 127.0.0.1
port: %d
healthzPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
nodeStatusUpdateFrequency: 1s
registerWithTaints: [{key: new, value: "yes", effect: NoSchedule}]
`, filepath.Join(dir, "logs"), filepath.Join(dir, "plugins"), endpoint, free(t))
	file := filepath.Join(dir, "kubelet.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	// Without --node-ip it takes the address of the default route, which may not exist here.
	ips, err := node.HostIPs(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	log, root := &strings.Builder{}, filepath.Join(dir, "root")
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) }) // the kubelet mounts it on itself
	c := exec.Command(kubeletProgram, "--config", file, "--root-dir", root, "--cert-dir", filepath.Join(dir, "pki"),
		"--kubeconfig", a.NodeKubeconfig(t, name), "--hostname-override", name, "--node-labels", "disk=ssd", "--node-ip", ips[0])
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		stop := time.AfterFunc(wait.Limit, func() { _ = c.Process.Kill() })
		_ = c.Wait()
		stop.Stop()
		if t.Failed() {
			lines := strings.Split(log.String(), "\n")
			t.Logf("kubelet:\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
}

func free(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
