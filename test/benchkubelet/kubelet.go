package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/bench/lab"
)

// kubelet is the real one, without an API server.
type kubelet struct {
	arm      string
	binary   string
	keepLogs string
	extra    string // lines of its configuration
	lab      *lab.Lab
	dir      string // what outlives its turns: certificate, configuration
	cgroup   string
	ports    [3]int // its API, that without authentication, health
	sysctls  map[string][]byte
	client   *http.Client
	starts   *int
}

// configuration is the kubelet's default, but for what a machine needs that it
// does not own (directories, cgroups, ports, the packet filter), what it needs
// without an API server (whom to let in), cgroup v1, and the seccomp filter,
// which nodectl's containers have by default: with it both start the same
// container.
const configuration = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: %s
podLogsDir: %s
volumePluginDir: %s
containerRuntimeEndpoint: %s
cgroupRoot: %s
cgroupDriver: cgroupfs
failCgroupV1: false
makeIPTablesUtilChains: false
seccompDefault: true
address: 127.0.0.1
port: %d
readOnlyPort: %d
healthzPort: %d
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
`

// tunedConfig is what people set who want a faster kubelet.
const tunedConfig = `serializeImagePulls: false
maxParallelImagePulls: 10
syncFrequency: 10m
fileCheckFrequency: 1m
nodeStatusUpdateFrequency: 1m
volumeStatsAggPeriod: -1s
`

// changed are the settings of the machine that a kubelet changes.
var changed = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// newKubelet prepares a kubelet's turns. close restores the machine's settings.
func newKubelet(l *lab.Lab, binary, keepLogs string) (*kubelet, error) {
	k := &kubelet{
		arm: "kubelet", binary: binary, keepLogs: keepLogs, lab: l, starts: new(int),
		dir: filepath.Join(l.Dir, "kubelet"), cgroup: l.Node.CgroupParent + "/kubelet",
		sysctls: map[string][]byte{}, client: &http.Client{Timeout: 2 * time.Second},
	}
	for _, name := range changed {
		text, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return nil, err
		}
		k.sysctls[name] = text
	}
	for i := range k.ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // all are open at once, so that they differ
		k.ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return k, os.MkdirAll(k.dir, 0o700)
}

// close restores the machine's settings.
func (k *kubelet) close() error {
	k.client.CloseIdleConnections()
	var errs []error
	for name, text := range k.sysctls {
		file := filepath.Join("/proc/sys", name)
		if now, err := os.ReadFile(file); err != nil || string(now) != string(text) {
			errs = append(errs, os.WriteFile(file, text, 0))
		}
	}
	return errors.Join(errs...)
}

func kubeletVersion(ctx context.Context, binary string) string {
	out, _ := exec.CommandContext(ctx, binary, "--version").Output()
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "Kubernetes ")
}

func (k *kubelet) name() string { return k.arm }

func (k *kubelet) logsDir(d lab.Dirs) string { return d.Root + "-logs" }

func (k *kubelet) start(d lab.Dirs, endpoint string) (*lab.Process, error) {
	for _, root := range cgroupRoots() {
		if err := os.MkdirAll(filepath.Join(root, k.cgroup), 0o755); err != nil {
			return nil, err
		}
	}
	file := filepath.Join(k.dir, "config.yaml")
	text := fmt.Sprintf(configuration, d.Manifests, k.logsDir(d), filepath.Join(k.dir, "plugins"), endpoint, k.cgroup,
		k.ports[0], k.ports[1], k.ports[2]) + k.extra
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	logFile := ""
	if k.keepLogs != "" {
		*k.starts++
		logFile = filepath.Join(k.keepLogs, fmt.Sprintf("kubelet-%d.log", *k.starts))
	}
	return lab.StartProcess(k.arm, lab.Command(k.binary,
		"--config", file, "--root-dir", d.Root, "--cert-dir", filepath.Join(k.dir, "pki"), "--hostname-override", lab.NodeName,
	), logFile)
}

func (k *kubelet) ready(ctx context.Context, p *lab.Process) error {
	return k.ask(ctx, p, k.ports[2], "/healthz", 10*time.Millisecond, func(_ *json.Decoder) bool { return true })
}

// reported asks until the kubelet is healthy and its list of pods is complete.
func (k *kubelet) reported(ctx context.Context, p *lab.Process, _ lab.Dirs, pods int) (time.Time, int, error) {
	if err := k.ready(ctx, p); err != nil {
		return time.Time{}, 0, err
	}
	flipped := map[string]bool{}
	err := k.ask(ctx, p, k.ports[1], "/pods", 100*time.Millisecond, func(d *json.Decoder) bool {
		var list podList
		if d.Decode(&list) != nil {
			return false
		}
		for _, i := range list.Items {
			if i.unready() {
				flipped[i.Metadata.Name] = true
			}
		}
		return len(list.Items) == pods && list.running() == pods
	})
	return time.Now(), len(flipped), err
}

// ask asks every so often until the answer is well and done accepts it.
func (k *kubelet) ask(ctx context.Context, p *lab.Process, port int, path string, every time.Duration, done func(*json.Decoder) bool) error {
	const limit = time.Minute
	url := fmt.Sprintf("http://127.0.0.1:%d%s", port, path)
	for deadline := time.Now().Add(limit); ; {
		r, err := k.client.Get(url)
		if err == nil {
			well := r.StatusCode == http.StatusOK && done(json.NewDecoder(r.Body))
			r.Body.Close()
			if well {
				return nil
			}
		}
		if p.Ended() {
			return fmt.Errorf("%s ended:\n%s", k.arm, p.Tail())
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer %s as it should within %s: %w\n%s", k.arm, path, limit, err, p.Tail())
		}
		if err := lab.Pause(ctx, every); err != nil {
			return err
		}
	}
}
