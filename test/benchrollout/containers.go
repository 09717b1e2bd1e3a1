package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
)

// hostPort is the port of the node that stands for the Service where there are none.
const hostPort = 8080

// engine is a program that has one container with the host port. It has no notion of readiness: a
// version that does not serve is failed once the command says so, or after the deadline.
type engine struct {
	settings
	at    string // the URL of the host port
	up    func(ctx context.Context, v version, s settings) error
	down  func(ctx context.Context) error
	asked version
	since time.Time
	fault error // of the last command
}

func newEngine() *engine {
	return &engine{at: "http://" + net.JoinHostPort(nodeAddress, strconv.Itoa(hostPort)) + "/"}
}

func (e *engine) url() string { return e.at }

// apply runs the command. If it fails, the version has failed, and not the bench.
func (e *engine) apply(ctx context.Context, v version, s settings) error {
	e.asked, e.settings, e.since = v, s, time.Now()
	e.fault = e.up(ctx, v, s)
	return ctx.Err()
}

func (e *engine) undo(ctx context.Context, v version, s settings) error {
	err := e.apply(ctx, v, s)
	return errors.Join(err, e.fault)
}

func (e *engine) clear(ctx context.Context) error { return e.down(ctx) }

func (e *engine) state(ctx context.Context) (state, error) {
	s := state{available: unknown, text: fmt.Sprintf("version %s does not answer", e.asked.name)}
	if e.fault != nil {
		s.text = e.fault.Error()
	}
	if e.fault != nil || time.Since(e.since) >= e.deadline {
		s.failed = []string{e.asked.name}
	}
	if served(ctx, e.at) == e.asked.name && e.asked.kind == good(0).kind {
		s.complete = e.asked.name
	}
	return s, nil
}

// served returns the version of the web server that is ready at an address; "" for none. It is the
// first line of its page.
func served(ctx context.Context, url string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"ready", ""} {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			return ""
		}
		r, err := c.Do(q)
		if err != nil {
			return ""
		}
		text, err := io.ReadAll(io.LimitReader(r.Body, 4096))
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK {
			return ""
		}
		if first, _, _ := strings.Cut(string(text), "\n"); path == "" {
			return first
		}
	}
	return ""
}

const podman = "/usr/bin/podman"

// podmanCgroup is above the cgroups of podman's pods; no flag of kube play changes it.
const podmanCgroup = "libpod_parent"

// withPodman runs the manifest by podman kube play. It has no daemon.
func withPodman(ctx context.Context, b *bench, do func(system) error) (err error) {
	r, err := openRoot(b.Lab, "podman")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, r.close())
		removeEmptyCgroups(podmanCgroup)
	}()
	if err := r.load(ctx, podman); err != nil {
		return err
	}
	e := newEngine()
	e.up = func(ctx context.Context, v version, s settings) error {
		return r.run(ctx, manifest(v, s, where{clusterIP: address, hostPort: hostPort}), podman, "kube", "play", "--replace", "-")
	}
	e.down = func(ctx context.Context) error { return r.run(ctx, "", podman, "pod", "rm", "--all", "--force") }
	return do(e)
}

// removeEmptyCgroups removes a cgroup and those below it. Cgroups with processes stay: they are of
// another podman.
func removeEmptyCgroups(name string) {
	for _, hierarchy := range node.CgroupRoots() {
		var all []string
		_ = filepath.WalkDir(filepath.Join(hierarchy, name), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(all) {
			_ = os.Remove(dir)
		}
	}
}

const dockerSocket = "unix:///run/docker.sock"

// withCompose runs a file of compose by docker-compose, with a dockerd of its own.
func withCompose(ctx context.Context, b *bench, do func(system) error) (err error) {
	r, err := openRoot(b.Lab, "compose")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	daemon := r.command("/usr/sbin/dockerd", "--host", dockerSocket, "--exec-root", "/run/docker", "--pidfile", "/run/docker.pid",
		"--data-root", "/var/lib/docker", "--oom-score-adjust", "0", "--cgroup-parent", b.Node.CgroupParent+"/docker")
	p, err := arm.StartProcess("dockerd", daemon, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.End(syscall.SIGTERM)) }()
	if _, err := p.Await(ctx, "API listen on"); err != nil {
		return err
	}
	if err := r.load(ctx, "/usr/bin/docker"); err != nil {
		return err
	}
	e := newEngine()
	compose := func(ctx context.Context, text string, args ...string) error {
		return r.run(ctx, text, "/usr/bin/docker-compose", append([]string{"--file", "-", "--project-name", "web"}, args...)...)
	}
	last := composeFile(good(0))
	e.up = func(ctx context.Context, v version, _ settings) error {
		last = composeFile(v)
		return compose(ctx, last, "up", "--detach")
	}
	e.down = func(ctx context.Context) error { return compose(ctx, last, "down") }
	return do(e)
}

// composeFile is the same pod for compose. The image has no program for a health check.
func composeFile(v version) string {
	text := fmt.Sprintf(`version: "3.8"
services:
  web:
    image: %s
    labels: {version: %s}
    environment: {TITLE: %s}
    ports: ["%d:8080"]
    restart: always
    stop_grace_period: 10s
`, v.image, v.name, v.name, hostPort)
	if command, ok := strings.CutPrefix(v.args, "args: "); ok {
		text += "    command: " + command + "\n"
	}
	return text
}
