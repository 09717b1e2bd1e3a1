package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/node"
)

// Domain is the cluster's.
const Domain = "cluster.local"

// MaxPods is the pod limit of both agents.
const MaxPods = 120

// An Agent is one of the two programs that make a node.
type Agent struct {
	Name   string // kubelet or nodectl
	Binary string

	// More is added to a kubelet's configuration, and Flags to nodectl's command line. Both
	// set the same.
	More  string
	Flags []string
	Debug bool // nodectl logs at debug level
}

// Kubelet returns the real kubelet.
func Kubelet(binary string) (*Agent, error) {
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("%w: run make kubelet-bin", err)
	}
	return &Agent{Name: "kubelet", Binary: binary}, nil
}

// Nodectl returns the agent of a binary, or of one built from this tree if binary is "".
func (s *Stage) Nodectl(ctx context.Context, binary string) (*Agent, error) {
	built, err := s.NewNodectl(ctx, binary)
	if err != nil {
		return nil, err
	}
	return &Agent{Name: "nodectl", Binary: built.Binary}, nil
}

// Version returns the agent's version.
func (a *Agent) Version() string {
	if a.Name == "nodectl" {
		out, _ := exec.Command("git", "-C", node.Repo(), "describe", "--always", "--dirty").Output()
		return strings.TrimSpace(string(out))
	}
	version, _ := arm.Version(a.Binary)
	return version
}

// A Turn is a running agent, on its own directories.
type Turn struct {
	*lab.Process
	Agent     *Agent
	NodeName  string
	Root      string
	Manifests string // for static pods

	stage *Stage
}

// Begin starts an agent as a node of that name, on a fresh root directory, and returns when
// the node is ready. It writes the agent's output to logFile, unless that is "".
func (s *Stage) Begin(ctx context.Context, a *Agent, name, logFile string) (_ *Turn, err error) {
	defer func() {
		if said := recover(); said != nil {
			err = fmt.Errorf("%v", said)
		}
	}()
	dir := filepath.Join(s.Dir, "turn", a.Name)
	t := &Turn{Agent: a, NodeName: name, Root: filepath.Join(dir, "root"), Manifests: filepath.Join(dir, "manifests"), stage: s}
	for _, d := range []string{t.Root, t.Manifests} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	args, err := s.arguments(t, dir, s.Cluster.NodeKubeconfig(s.bench, name))
	if err != nil {
		return nil, err
	}
	if t.Process, err = lab.StartProcess(a.Name, lab.Command(a.Binary, args...), logFile); err != nil {
		return nil, err
	}
	if err := s.AwaitNode(ctx, name); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, t.Tail()), t.End(syscall.SIGKILL))
	}
	return t, nil
}

// Finish ends the agent, and removes its node and its pods from the cluster and the machine.
func (t *Turn) Finish() error {
	err := t.End(syscall.SIGTERM)
	if t.Agent.Name == "kubelet" && t.Ended() {
		err = nil // its exit code varies
	}
	ctx := context.Background()
	no := int64(0)
	now := &metav1.DeleteOptions{GracePeriodSeconds: &no}
	admin := t.stage.Admin
	return errors.Join(err,
		admin.Delete().Namespace("default").Resource("pods").Body(now).Do(ctx).Error(),
		admin.Delete().Resource("nodes").Name(t.NodeName).Do(ctx).Error(),
		t.stage.Clean())
}

// arguments are the agent's arguments: the same settings for both.
func (s *Stage) arguments(t *Turn, dir, kubeconfig string) ([]string, error) {
	ports, err := arm.FreePorts(s.Address, 2)
	if err != nil {
		return nil, err
	}
	if t.Agent.Name == "nodectl" {
		level := "info"
		if t.Agent.Debug {
			level = "debug"
		}
		return append([]string{
			"serve", "-f", t.Manifests, "--kubeconfig", kubeconfig, "--root-dir", t.Root,
			"--runtime-endpoint", s.Node.Endpoint, "--pod-logs-dir", s.Node.LogsDir, "--cgroup-root", s.Node.CgroupParent,
			"--node-name", t.NodeName, "--node-ip", s.Address, "--address", s.Address, "--port", strconv.Itoa(ports[0]),
			"--client-ca-file", s.Cluster.Authority.File, "--cluster-domain", Domain,
			"--max-pods", strconv.Itoa(MaxPods), "--log-level", level,
		}, t.Agent.Flags...), nil
	}
	args, err := arm.Kubelet{Name: t.NodeName, Dir: dir, Root: t.Root, Logs: s.Node.LogsDir, Cgroup: s.Node.CgroupParent, Endpoint: s.Node.Endpoint}.Arguments(
		fmt.Sprintf(configuration, t.Manifests, s.Address, ports[0], ports[1], s.Address, s.Cluster.Authority.File, MaxPods, Domain) + t.Agent.More)
	return append(args, "--kubeconfig", kubeconfig, "--node-ip", s.Address), err
}

// configuration is what an agent needs on a machine that it does not own (directories, ports,
// swap), and how its cluster is set up. It also sets the seccomp filter that nodectl's
// containers have by default, so that both start the same container.
const configuration = `staticPodPath: %s
failSwapOn: false
enforceNodeAllocatable: [none]
seccompDefault: true
address: %s
port: %d
healthzPort: %d
healthzBindAddress: %s
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
maxPods: %d
clusterDomain: %s
`
