package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/bench/lab"
)

// kubelet is the real kubelet, without an API server.
type kubelet struct {
	arm      string
	binary   string
	keepLogs string
	extra    string // lines of its configuration
	dir      string // outlives its turns: certificate, configuration
	cgroup   string
	ports    []int // its API, that without authentication, health
	settings arm.Settings
	client   *http.Client
	starts   *int
}

// configuration is what an agent needs on a machine that it does not own (directories,
// ports), and what a kubelet needs without an API server (authentication). It also sets the
// seccomp filter that nodectl's containers have by default, so that both start the same
// container.
const configuration = `staticPodPath: %s
seccompDefault: true
address: 127.0.0.1
port: %d
readOnlyPort: %d
healthzPort: %d
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
`

// tunedConfig is a common configuration for a faster kubelet.
const tunedConfig = `serializeImagePulls: false
maxParallelImagePulls: 10
syncFrequency: 10m
fileCheckFrequency: 1m
nodeStatusUpdateFrequency: 1m
volumeStatsAggPeriod: -1s
`

// newKubelet prepares a kubelet's turns. close restores the machine's settings.
func newKubelet(l *lab.Lab, binary, keepLogs string) (*kubelet, error) {
	ports, err := arm.FreePorts("127.0.0.1", 3)
	if err != nil {
		return nil, err
	}
	k := &kubelet{
		arm: "kubelet", binary: binary, keepLogs: keepLogs, starts: new(int), ports: ports, settings: arm.ReadSettings(),
		dir: filepath.Join(l.Dir, "kubelet"), cgroup: l.Node.CgroupParent + "/kubelet", client: &http.Client{Timeout: 2 * time.Second},
	}
	return k, os.MkdirAll(k.dir, 0o700)
}

// close restores the machine's settings.
func (k *kubelet) close() error {
	k.client.CloseIdleConnections()
	return k.settings.Restore()
}

func (k *kubelet) name() string { return k.arm }

func (k *kubelet) logsDir(d lab.Dirs) string { return d.Root + "-logs" }

func (k *kubelet) start(d lab.Dirs, endpoint string) (*lab.Process, error) {
	args, err := arm.Kubelet{Name: lab.NodeName, Dir: k.dir, Root: d.Root, Logs: k.logsDir(d), Cgroup: k.cgroup, Endpoint: endpoint}.Arguments(
		fmt.Sprintf(configuration, d.Manifests, k.ports[0], k.ports[1], k.ports[2]) + k.extra)
	if err != nil {
		return nil, err
	}
	logFile := ""
	if k.keepLogs != "" {
		*k.starts++
		logFile = filepath.Join(k.keepLogs, fmt.Sprintf("kubelet-%d.log", *k.starts))
	}
	return lab.StartProcess(k.arm, lab.Command(k.binary, args...), logFile)
}

func (k *kubelet) ready(ctx context.Context, p *lab.Process) error {
	return k.ask(ctx, p, k.ports[2], "/healthz", 10*time.Millisecond, func(_ *json.Decoder) bool { return true })
}

// reported polls until the kubelet is healthy and its list of pods is complete.
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

// ask polls until the answer is 200 and done accepts it.
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
