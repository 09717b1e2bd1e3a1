//go:build full

package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// exampleCDI matches the CDI files that the DRA example driver writes: one for all of its devices, and one
// for each prepared claim.
const exampleCDI = "/var/run/cdi/k8s.gpu.example.com-gpu_*"

// exampleDriver starts the DRA example driver, which hack/dra builds, for the node. Its one device sets
// variables.
func (w *world) exampleDriver(dir string) *cluster.Process {
	w.Helper()
	program := filepath.Join(node.Repo(), "bin/dra/dra-example-kubeletplugin")
	if _, err := os.Stat(program); err != nil {
		w.Fatalf("%v: make it with hack/dra/build", err)
	}
	registry := filepath.Join(dir, "plugins_registry")
	if err := os.MkdirAll(registry, 0o750); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		files, err := filepath.Glob(exampleCDI)
		for _, file := range files {
			_ = os.Remove(file)
		}
		if err != nil {
			w.Error(err)
		}
	})
	args := []string{
		"--kubeconfig", w.config, "--num-devices", "1", "--cdi-root", filepath.Dir(exampleCDI),
		"--kubelet-registrar-directory-path", registry, "--kubelet-plugins-directory-path", filepath.Join(dir, "plugins"),
	}
	p := cluster.NewProcess(w, program, w.TempDir(), args, func(context.Context) error {
		_, err := os.Stat(filepath.Join(registry, "gpu.example.com-reg.sock"))
		return err
	})
	p.SetEnv("NODE_NAME=" + w.name)
	p.Start(w)
	w.awaitOutput("gpu-0", "get", "resourceslices", "--field-selector", "spec.nodeName="+w.name, "-o", "jsonpath={.items[0].spec.devices[0].name}")
	return p
}

// awaitExampleClaims waits until the DRA example driver has so many prepared claims.
func (w *world) awaitExampleClaims(want int) {
	w.Helper()
	wait.NoError(w, func() error {
		files, err := filepath.Glob(exampleCDI)
		if err == nil && len(files) != want+1 {
			err = fmt.Errorf("the driver has the CDI files %v, not those of %d claims", files, want)
		}
		return err
	})
}

// TestClaims_DRAExampleDriver_ContainersGetItsDevice: the DRA example driver of Kubernetes on a real node. A
// pod with a claim gets the variables of the device, and so does a pod that requests the extended resource
// of the DeviceClass. Kills of the agent and of the driver do not touch them. Each claim is unprepared with
// its pod.
func TestClaims_DRAExampleDriver_ContainersGetItsDevice(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "ke") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := shared(t).in(t, "example").secondNode(t, "example", "--kubelet-dir", dir)
	w.awaitWipes(1)
	driver := w.exampleDriver(dir)
	w.apply(`apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}], extendedResourceName: example.com/gpu}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpus}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}}
`)
	const hasDevice = `[ "$DRA_RESOURCE_DRIVER_NAME $KUBERNETES_NODE_NAME $GPU_DEVICE_0 $GPU_DEVICE_0_SHARING_STRATEGY" = "gpu.example.com example gpu-0 TimeSlicing" ] && exec sleep 100000`
	place := "spec:\n  nodeSelector: {kubernetes.io/hostname: " + w.name + "}\n  tolerations: [{key: test/only, operator: Exists}]\n"
	for name, replacer := range map[string]*strings.Replacer{
		"claims":   strings.NewReplacer("spec:\n", place+"  resourceClaims: [{name: gpu, resourceClaimTemplateName: gpus}]\n", "    command:", "    resources: {claims: [{name: gpu}]}\n    command:"),
		"requests": strings.NewReplacer("spec:\n", place, "    command:", "    resources: {requests: {example.com/gpu: 1}, limits: {example.com/gpu: 1}}\n    command:"),
	} {
		w.apply(replacer.Replace(shell(name, hasDevice)))
		w.awaitReady(name)
		w.awaitExampleClaims(1)
		health := "Unknown" // the driver does not report it
		if name == "requests" {
			health = "" // as in the kubelet
		}
		w.awaitOutput(health, "get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].allocatedResourcesStatus[0].resources[0].health}")
		w.agent.Restart(w)
		driver.Restart(w)
		w.awaitNode("Ready", "True")
		w.awaitOutput("True 0", "get", "pod", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[0].restartCount}`)
		w.kubectl("delete", "pod", name, "--wait=false")
		w.awaitOutput("", "get", "pods", "-o", "name")
		w.awaitExampleClaims(0)
	}
}
