package bundle

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// containerdConfig holds the variable values of containerd's configuration.
type containerdConfig struct {
	root, run, bin string // directories: persistent state, sockets, the unpacked bundle
	oomScore       int
	snapshotter    string
	pauseImage     string
	platform       string // OS/ARCH
	handlers       []string
}

// tomlTable is a table of a TOML document.
type tomlTable = map[string]any

// encode returns containerd's configuration, version 4 (containerd 2.3 and later). It sets
// every path that two instances, or a containerd of the system, would share, and disables
// the plugins that pods do not use.
func (c containerdConfig) encode() ([]byte, error) {
	return toml.Marshal(tomlTable{
		"version":   4,
		"root":      c.root + "/root",
		"state":     c.run + "/state",
		"oom_score": c.oomScore,
		"imports":   []string{},
		// Without these, a containerd with a broken CRI plugin would keep running and never
		// answer.
		"required_plugins": []string{"io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"},
		"disabled_plugins": []string{
			"io.containerd.differ.v1.erofs",
			"io.containerd.http.v1.pprof",
			"io.containerd.image-verifier.v1.bindir",
			"io.containerd.internal.v1.opt",
			"io.containerd.metrics.v1.grpc-otel",
			"io.containerd.metrics.v1.grpc-prometheus",
			"io.containerd.monitor.container.v1.restart",
			"io.containerd.monitor.task.v1.cgroups",
			"io.containerd.mount-handler.v1.erofs",
			"io.containerd.server.v1.debug",
			"io.containerd.server.v1.grpc-tcp",
			"io.containerd.server.v1.metrics",
			"io.containerd.snapshotter.v1.blockfile",
			"io.containerd.snapshotter.v1.erofs",
			"io.containerd.ttrpc.v1.otelttrpc",
		},
		"plugins": tomlTable{
			"io.containerd.server.v1.grpc":  tomlTable{"address": c.run + "/containerd.sock"},
			"io.containerd.server.v1.ttrpc": tomlTable{"address": c.run + "/containerd.sock.ttrpc"},
			"io.containerd.shim.v1.manager": tomlTable{"socket_dir": c.run + "/s"},
			"io.containerd.nri.v1.nri":      tomlTable{"disable": true},
			"io.containerd.cri.v1.images": tomlTable{
				"snapshotter":          c.snapshotter,
				"stats_collect_period": 60,
				"pinned_images":        tomlTable{"sandbox": c.pauseImage},
				"registry":             tomlTable{"config_path": c.root + "/certs.d"},
			},
			"io.containerd.transfer.v1.local": tomlTable{
				// This limit would count the layers of all registries together, so that one
				// registry that hangs delays the others (M21). The image manager limits
				// downloads per registry.
				"max_concurrent_downloads": 0,
				"unpack_config":            []tomlTable{{"platform": c.platform, "snapshotter": c.snapshotter}},
			},
			"io.containerd.cri.v1.runtime": tomlTable{
				// If the score may not be lowered (no CAP_SYS_RESOURCE), a container gets
				// the nearest allowed score instead of an error.
				"restrict_oom_score_adj":       true,
				"netns_mounts_under_state_dir": true,
				"stats_collect_period":         "10s",
				"enable_criu":                  false,
				"cdi_spec_dirs":                []string{"/etc/cdi", "/var/run/cdi"},
				"ignore_deprecation_warnings":  []string{"io.containerd.deprecation/cgroup-v1"},
				"cni": tomlTable{
					"bin_dirs":     []string{c.bin + "/cni"},
					"conf_dir":     c.root + "/cni",
					"max_conf_num": 1,
					// containerd sets up the loopback device itself, without the plugin.
					"use_internal_loopback": true,
				},
				"containerd": tomlTable{"default_runtime_name": "runc", "runtimes": c.runtimes()},
			},
			"io.containerd.grpc.v1.cri": tomlTable{
				"disable_tcp_service":   true,
				"stream_server_address": "127.0.0.1",
				"stream_server_port":    "0",
			},
		},
	})
}

// runtimes are the runtime handlers: runc, under each of its names.
func (c containerdConfig) runtimes() tomlTable {
	all := tomlTable{}
	for _, name := range append([]string{"runc"}, c.handlers...) {
		all[name] = tomlTable{
			"runtime_type":             "io.containerd.runc.v2",
			"runtime_path":             c.bin + "/containerd-shim-runc-v2",
			"disable_pause_image_pull": true,
			"options": tomlTable{
				"BinaryName":    c.bin + "/runc",
				"Root":          c.run + "/runc",
				"SystemdCgroup": false,
			},
		}
	}
	return all
}

// configure writes the configuration of containerd and the CNI plugins. bin is the unpacked
// bundle; while pods run, their network is not changed.
func (r *Runtime) configure(bin string, pods bool) error {
	for _, dir := range []string{r.run, filepath.Join(r.root, "cni"), filepath.Join(r.root, "certs.d")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	for dir := r.run; ; dir = filepath.Dir(dir) {
		if err := passable(dir); err != nil {
			return err
		}
		if filepath.Dir(dir) != runDirs { // the directories above it belong to the machine
			break
		}
	}
	m, err := r.manifestAt(bin)
	if err != nil {
		return err
	}
	snapshotter, err := snapshotter(r.root)
	if err != nil {
		return err
	}
	if snapshotter != "overlayfs" {
		r.log.Warn("Image layers are copied, which is slow: overlayfs does not work here", "directory", r.root)
	}
	text, err := containerdConfig{
		root: r.root, run: r.run, bin: bin,
		oomScore: oomScore("/proc"), snapshotter: snapshotter, pauseImage: m.PauseImage, platform: m.OS + "/" + m.Arch,
		handlers: r.handlers,
	}.encode()
	if err != nil {
		return err
	}
	if err := atomicfile.Write(r.configFile(), text, atomicfile.Options{Temp: ".tmp"}); err != nil {
		return err
	}
	list, err := r.networkChange()
	if err != nil || list == nil || pods && exists(r.networkFile()) {
		return err
	}
	return atomicfile.Write(r.networkFile(), list, atomicfile.Options{Temp: ".tmp"})
}

// passable lets every user go through a directory, without listing it: containers in user
// namespaces reach their root file systems below it (C-1.42).
func passable(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o011 == 0o011 {
		return err
	}
	return os.Chmod(dir, info.Mode().Perm()|0o011)
}

func (r *Runtime) networkFile() string { return filepath.Join(r.root, "cni", "10-nodectl.conflist") }

// networkChange returns the pod network's configuration if it differs from the one in use,
// and logs that; else nil.
func (r *Runtime) networkChange() ([]byte, error) {
	want, err := r.cniConfig()
	if err != nil {
		return nil, err
	}
	have, err := os.ReadFile(r.networkFile())
	if err == nil && bytes.Equal(have, want) {
		return nil, nil
	}
	if err == nil && r.Running() {
		r.log.Warn("The new pod network takes effect after the bundled runtime is stopped", "subnet", r.subnet, "bridge", r.bridge)
	}
	return want, nil
}

// oomScore returns the OOM score for containerd: almost never killed if this process may
// set that, else its own score.
func oomScore(proc string) int {
	for _, f := range table(filepath.Join(proc, "self/status")) {
		if len(f) != 2 || f[0] != "CapEff:" {
			continue
		}
		if caps, err := strconv.ParseUint(f[1], 16, 64); err == nil && caps&(1<<unix.CAP_SYS_RESOURCE) != 0 {
			return -999
		}
	}
	return 0
}

// manifestAt reads the manifest of an unpacked bundle; hack/bundle/build writes it beside
// the directory of the programs, not into it.
func (r *Runtime) manifestAt(bin string) (Manifest, error) {
	m, err := manifestOf(bin)
	if errors.Is(err, os.ErrNotExist) && r.programs != "" {
		return manifestOf(filepath.Dir(bin))
	}
	return m, err
}

// cniConfig returns the configuration of the pod network: a bridge, addresses from the
// subnet, host ports. Its MTU is that of the machine's default route.
func (r *Runtime) cniConfig() ([]byte, error) {
	bridge := map[string]any{
		"type": "bridge", "bridge": r.bridge,
		"isGateway": true, "ipMasq": true, "hairpinMode": true,
		"ipam": map[string]any{
			"type":    "host-local",
			"ranges":  [][]map[string]string{{{"subnet": r.subnet}}},
			"routes":  []map[string]string{{"dst": "0.0.0.0/0"}},
			"dataDir": addressesDir,
		},
	}
	if mtu := mtu("/proc", "/sys"); mtu > 0 {
		bridge["mtu"] = mtu
	}
	return json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       r.network(),
		"plugins": []any{
			bridge,
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
}

// mtu returns the MTU of the device of the default route, 0 if there is none.
func mtu(proc, sys string) int {
	best, device := -1, ""
	for _, f := range table(filepath.Join(proc, "net/route")) {
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		metric, err := strconv.Atoi(f[6])
		if err == nil && (best < 0 || metric < best) {
			best, device = metric, f[0]
		}
	}
	if device == "" { // the machine has IPv6 only
		for _, f := range table(filepath.Join(proc, "net/ipv6_route")) {
			if len(f) >= 10 && strings.Trim(f[0], "0") == "" && f[1] == "00" && f[9] != "lo" {
				device = f[9]
				break
			}
		}
	}
	if device == "" {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(sys, "class/net", device, "mtu"))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// table returns the fields of every line of a file; none if it cannot be read.
func table(name string) [][]string {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	var rows [][]string
	for s := bufio.NewScanner(f); s.Scan(); {
		rows = append(rows, strings.Fields(s.Text()))
	}
	return rows
}

// checkSubnet refuses a subnet that is invalid, or too small for a gateway and a pod.
func (r *Runtime) checkSubnet() error {
	p, err := netip.ParsePrefix(r.subnet)
	if err != nil || !p.Addr().Is4() || p.Bits() > 29 {
		return fmt.Errorf("pod network %q: not an IPv4 network of at least 8 addresses, such as %s", r.subnet, DefaultSubnet)
	}
	if p.Masked() != p {
		return fmt.Errorf("pod network %q: did you mean %s?", r.subnet, p.Masked())
	}
	return nil
}

// freeSubnet refuses a subnet that this machine already reaches through another device: one
// of the two networks would be cut off. It also refuses a bridge with an address of another
// network, because the bridge plugin would fail for every pod.
func (r *Runtime) freeSubnet() error {
	want, err := netip.ParsePrefix(r.subnet)
	if err != nil {
		return err
	}
	devices, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, d := range devices {
		addrs, err := d.Addrs()
		if err != nil {
			continue // the device was removed meanwhile
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().Is4() {
				continue
			}
			if d.Name != r.bridge && p.Overlaps(want) {
				return fmt.Errorf("pod network %s: the machine's device %s has %s; choose another", r.subnet, d.Name, p)
			}
			if d.Name == r.bridge && p.Masked() != want {
				return fmt.Errorf("pod network %s: the bridge %s has %s and is in use; choose %s, or stop what uses it", r.subnet, d.Name, p, p.Masked())
			}
		}
	}
	return nil
}

// snapshotter returns containerd's snapshotter for dir: overlayfs if the file system
// supports it, else native (an overlay cannot hold another one, as in a container's own
// root).
func snapshotter(dir string) (string, error) {
	tmp := filepath.Join(dir, ".overlay")
	sub := func(name string) string { return filepath.Join(tmp, name) }
	left, _ := filepath.Glob(tmp + "*")     // of agents that were killed here; the names of older ones had a suffix
	for _, dir := range append(left, tmp) { // tmp, too: the path may have characters of patterns
		_ = unix.Unmount(filepath.Join(dir, "merged"), unix.MNT_DETACH)
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(sub(d), 0o700); err != nil {
			return "", err
		}
	}
	options := "lowerdir=" + escapeOverlay(sub("lower")) + ",upperdir=" + escapeOverlay(sub("upper")) + ",workdir=" + escapeOverlay(sub("work"))
	if err := unix.Mount("overlay", sub("merged"), "overlay", 0, options); err != nil {
		return "native", nil
	}
	return "overlayfs", unix.Unmount(sub("merged"), unix.MNT_DETACH)
}

// escapeOverlay escapes a path for overlayfs's list of options.
func escapeOverlay(path string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`).Replace(path)
}
