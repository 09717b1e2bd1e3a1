package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/test/node"
)

// Dirs are the directories of one agent: where its manifests are written, where it watches
// them, and its root.
type Dirs struct {
	Staging, Manifests, Root string
}

// NewDirs makes directories that no agent has used yet; the agent makes the root.
func (l *Lab) NewDirs(name string) (Dirs, error) {
	d := Dirs{
		Staging:   filepath.Join(l.Dir, name, "staging"),
		Manifests: filepath.Join(l.Dir, name, "manifests"),
		Root:      filepath.Join(l.Dir, name, "root"),
	}
	for _, dir := range []string{d.Staging, d.Manifests} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return d, err
		}
	}
	return d, nil
}

// Stage writes a manifest beside the directory that is watched.
func (d Dirs) Stage(name, manifest string) error {
	return os.WriteFile(filepath.Join(d.Staging, name+".yaml"), []byte(manifest), 0o600)
}

// Drop renames a staged manifest into the directory, as an editor or a deployment tool does,
// and returns the moment before it appeared.
func (d Dirs) Drop(name string) (time.Time, error) {
	t := time.Now()
	return t, os.Rename(filepath.Join(d.Staging, name+".yaml"), filepath.Join(d.Manifests, name+".yaml"))
}

// Remove deletes a manifest, and returns the moment before.
func (d Dirs) Remove(name string) (time.Time, error) {
	t := time.Now()
	return t, os.Remove(filepath.Join(d.Manifests, name+".yaml"))
}

// PodShape is how a pod differs from the other pods that agents start.
type PodShape struct {
	EmptyDir    bool
	Volumes     bool // an emptyDir, a configMap, a secret and a projected volume of both
	HostNetwork bool
	Grace       int    // seconds; 0 is 5
	Args        string // of the container, between commas; "" is "forever"
}

// Manifest returns a pod of one idle container.
func Manifest(name string, s PodShape) string {
	if s.Args == "" {
		s.Args = "forever"
	}
	if s.Grace == 0 {
		s.Grace = 5
	}
	text := `apiVersion: v1
kind: Pod
metadata:
  name: ` + name + `
  namespace: ` + Namespace + `
spec:
`
	if s.HostNetwork {
		text += "  hostNetwork: true\n"
	}
	text += fmt.Sprintf(`  terminationGracePeriodSeconds: %d
  containers:
  - name: `+Container+`
    image: `+node.Stamp+`
    args: [%s]
`, s.Grace, s.Args)
	switch {
	case s.Volumes:
		text += `    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: config, mountPath: /config}
    - {name: secret, mountPath: /secret}
    - {name: all, mountPath: /all}
  volumes:
  - {name: data, emptyDir: {}}
  - {name: config, configMap: {name: ` + name + `}}
  - {name: secret, secret: {secretName: ` + name + `}}
  - name: all
    projected:
      sources:
      - configMap: {name: ` + name + `}
      - secret: {name: ` + name + `}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: ` + name + `, namespace: ` + Namespace + `}
data: {page.html: "` + RawConfig + `"}
---
apiVersion: v1
kind: Secret
metadata: {name: ` + name + `, namespace: ` + Namespace + `}
stringData: {password: "` + RawSecret + `"}
`
	case s.EmptyDir:
		text += `    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`
	}
	return text
}

// Nodectl is the program under test.
type Nodectl struct {
	Binary   string
	LogLevel string // of serve
	KeepLogs string // directory for serve's logs; "" keeps none

	lab    *Lab
	agents int // started so far: names their logs
}

// NewNodectl builds the program from this tree as it is released, unless one is
// given.
func (l *Lab) NewNodectl(ctx context.Context, binary string) (*Nodectl, error) {
	n := &Nodectl{Binary: binary, LogLevel: "info", lab: l}
	if binary != "" {
		var err error
		n.Binary, err = filepath.Abs(binary)
		return n, err
	}
	Say("building nodectl")
	n.Binary = filepath.Join(l.Dir, "nodectl")
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w", "-o", n.Binary, ".")
	cmd.Dir, cmd.Env = node.Repo(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build nodectl: %w\n%s", err, out)
	}
	return n, nil
}

// Args returns a command with the flags that keep it on this node.
func (n *Nodectl) Args(d Dirs, endpoint string, command ...string) []string {
	return append(command,
		"--root-dir", d.Root, "--runtime-endpoint", endpoint, "--pod-logs-dir", n.lab.Node.LogsDir,
		"--cgroup-root", n.lab.Node.CgroupParent, "--node-name", NodeName)
}

// Run runs a command to its end and returns what it printed and the CPU time it
// took.
func (n *Nodectl) Run(ctx context.Context, args ...string) (printed []byte, cpu time.Duration, err error) {
	cmd := Command(n.Binary, args...)
	var out, conversation bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &conversation
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return nil, 0, fmt.Errorf("nodectl %s: %w\n%s", args[0], err, Tail(conversation.String()))
	}
	return out.Bytes(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// Serve starts the agent. The caller ends it.
func (n *Nodectl) Serve(d Dirs, endpoint string) (*Process, error) {
	logFile := ""
	if n.KeepLogs != "" {
		n.agents++
		logFile = filepath.Join(n.KeepLogs, fmt.Sprintf("serve-%d.log", n.agents))
	}
	args := n.Args(d, endpoint, "serve", "-f", d.Manifests, "--log-level", n.LogLevel)
	return StartProcess("nodectl serve", Command(n.Binary, args...), logFile)
}

// Settle returns when an agent that serves has found the runtime and is idle.
func (n *Nodectl) Settle(ctx context.Context, p *Process) error {
	if _, err := p.Await(ctx, "Container runtime is ready"); err != nil {
		return err
	}
	return Pause(ctx, time.Second)
}
