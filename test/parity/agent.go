package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
)

// nodeName is the node name of both agents.
const nodeName = "parity"

// Settings of both agents, so that the cases need not wait for the defaults.
const (
	logSize     = "100Ki" // of a log that is not rotated yet
	keptLogs    = 3
	longestWait = 30 * time.Second // before a container that crashes is started again
	taint       = "parity.example"
	pidsLimit   = 4096 // of one pod
	domain      = "parity.test"
)

// place is where one agent runs; it shares nothing with the other.
type place struct {
	arm.Place
	node     *node.Node
	registry string            // images can be pulled from it
	digests  map[string]string // of those images
	server   *server           // nil: pods come from files
}

// configuration is a kubelet's that has no API server, but for its taints.
const configuration = `failSwapOn: false
enforceNodeAllocatable: [none]
localStorageCapacityIsolation: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 0%%, nodefs.available: 0%%, imagefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.inodesFree: 0%%}
imageGCHighThresholdPercent: 100
containerLogMaxSize: %s
containerLogMaxFiles: %d
containerLogMonitorInterval: 3s
crashLoopBackOff: {maxContainerRestartPeriod: %s}
podPidsLimit: %d
clusterDomain: %s
featureGates: {ContainerStopSignals: true}
`

// newKubelet returns the real kubelet, with an API server's kubeconfig or without.
func newKubelet(binary, kubeconfig string) (*arm.Agent, error) {
	k, err := arm.NewKubelet(binary, fmt.Sprintf(configuration, logSize, keptLogs, longestWait, pidsLimit, domain))
	if err != nil {
		return nil, err
	}
	k.Args = []string{"--v", "2"}
	if kubeconfig == "" {
		k.Config += fmt.Sprintf("registerWithTaints: [{key: %s, effect: NoSchedule}, {key: %[1]s, effect: NoExecute}]\n", taint)
		return k, nil
	}
	// A watch reads an object in a moment; its mounted files follow when the agent looks at the pod
	// again.
	k.Name, k.Config = "kubelet-api", k.Config+"syncFrequency: 2s\nregisterNode: true\n"
	k.Args = append(k.Args, "--kubeconfig", kubeconfig)
	return k, nil
}

// nodectlFlags give nodectl the same settings.
var nodectlFlags = []string{
	"--container-log-max-size", logSize, "--container-log-max-files", strconv.Itoa(keptLogs),
	"--max-container-restart-period", longestWait.String(), "--register-with-taints", taint + ":NoSchedule," + taint + ":NoExecute",
	"--pod-pids-limit", strconv.Itoa(pidsLimit), "--cluster-domain", domain,
}
