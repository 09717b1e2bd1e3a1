package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/bootid"
)

// claimsFile records the devices, chains and directories that bundled runtimes share on
// this machine and that outlive their pods. If it is lost, they are never removed; those
// that existed before are never removed in any case.
const claimsFile = "/run/nodectl/network.json"

// addressesDir is where the host-local plugin records the assigned addresses. All bundled
// runtimes share it, and it does not survive a reboot.
const addressesDir = "/run/nodectl/addresses"

// claims maps each shared thing that a bundled runtime made to the runtimes that use it.
type claims struct {
	Boot string             `json:"boot"` // claims of another boot are void
	Made map[string][]owner `json:"made"`
}

// An owner is a runtime, and the process that started it: until containerd runs, that
// process keeps the claim alive.
type owner struct {
	Run string `json:"run"`
	PID int    `json:"pid"`
}

// A shared thing is a device, a chain or a directory that containerd or a CNI plugin makes
// for the first pod.
type shared struct {
	name   string
	exists func() bool
	remove func() error
}

// sharedThings lists the shared things of this runtime's pods.
func (r *Runtime) sharedThings() []shared {
	directory := func(name string) shared {
		return shared{name, func() bool { return exists(name) }, func() error { return removeEmpty(name) }}
	}
	addresses := filepath.Join(addressesDir, r.network())
	things := []shared{
		{"bridge " + r.bridge, func() bool { return exists("/sys/class/net/" + r.bridge) }, func() error { return removeBridge(r.bridge) }},
		{"chains CNI-HOSTPORT", hostPortChains, removeHostPortChains},
		{"chains of " + r.network(), func() bool { return r.podChains() != "" }, func() error { return restoreNAT(r.podChains()) }},
		{"addresses " + r.network(), func() bool { return exists(addresses) }, func() error { return os.RemoveAll(addresses) }},
		directory(addressesDir),
		directory("/var/lib/cni/results"), // libcni's cache of plugin results
		directory("/var/lib/cni"),
	}
	for _, name := range []string{"cni_hostport", "cni_plugins_masquerade"} { // on a machine without iptables
		things = append(things, shared{"table " + name, func() bool { return nftTable(name) }, func() error { return removeNFTTable(name) }})
	}
	return things
}

// claimNetwork records, before the first pod, the shared things that exist only because of
// us, and checks that the pod network is free. While pods run, the network is in use and is
// not checked.
func (r *Runtime) claimNetwork(pods bool) error {
	return r.withClaims(func(c *claims) error {
		bridge := "bridge " + r.bridge
		if by, made := c.Made[bridge]; made && len(by) == 0 && !pods {
			// A killed runtime left the bridge, perhaps with another network.
			if err := removeBridge(r.bridge); err != nil {
				r.log.Warn("Failed to remove the bridge of a previous runtime", "error", err)
			}
		}
		if !pods {
			if err := r.freeSubnet(); err != nil {
				return err
			}
		}
		for _, s := range r.sharedThings() {
			by, made := c.Made[s.name]
			if made || !s.exists() {
				c.Made[s.name] = append(by, owner{Run: r.run, PID: os.Getpid()})
			} else if s.name == bridge {
				r.log.Warn("Another program made the pods' bridge and may assign the same addresses", "bridge", r.bridge)
			}
		}
		return nil
	})
}

// releaseNetwork removes the shared things that no other running runtime claims.
func (r *Runtime) releaseNetwork() error {
	return r.withClaims(func(c *claims) error {
		var errs []error
		for _, s := range r.sharedThings() {
			if by, made := c.Made[s.name]; !made || len(by) > 0 {
				continue
			}
			delete(c.Made, s.name)
			if s.exists() {
				errs = append(errs, s.remove())
			}
		}
		return errors.Join(errs...)
	})
}

// withClaims lets f change the claims, from which it has removed our own and those of
// runtimes that have ended. If no claim is left it removes file and directory.
func (r *Runtime) withClaims(f func(*claims) error) error {
	unlock, err := lockClaims()
	if err != nil {
		return err
	}
	defer unlock()
	boot, err := bootid.Read()
	if err != nil {
		return err
	}
	var c claims
	if js, err := os.ReadFile(claimsFile); err == nil {
		_ = json.Unmarshal(js, &c) // a damaged file has no claims
	}
	if c.Boot != boot || c.Made == nil {
		c = claims{Boot: boot, Made: map[string][]owner{}}
	}
	for name, by := range c.Made {
		c.Made[name] = slices.DeleteFunc(by, func(o owner) bool {
			return o.Run == r.run || !o.alive()
		})
	}
	ferr := f(&c)
	if len(c.Made) == 0 {
		return errors.Join(ferr, removeFile(claimsFile), removeEmpty(filepath.Dir(claimsFile)))
	}
	js, err := json.Marshal(c)
	if err != nil {
		return errors.Join(ferr, err)
	}
	return errors.Join(ferr, atomicfile.Write(claimsFile, js, atomicfile.Options{Temp: ".tmp"}))
}

// lockClaims makes the claims' directory and locks it. Only the holder of the lock removes
// the directory, so that the locked directory is always the current one.
func lockClaims() (unlock func(), err error) {
	dir := filepath.Dir(claimsFile)
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		f, err := os.Open(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		locked, err1 := f.Stat()
		there, err2 := os.Stat(dir)
		if err1 == nil && err2 == nil && os.SameFile(locked, there) {
			return func() { f.Close() }, nil
		}
		f.Close()
	}
}

// alive reports whether the owner's containerd, a pod of it, or the process that
// starts it exists.
func (o owner) alive() bool {
	r := &Runtime{run: o.Run}
	return r.Running() || unix.Kill(o.PID, 0) == nil
}

// removeBridge removes a bridge, unless it still has ports.
func removeBridge(name string) error {
	ports, err := os.ReadDir("/sys/class/net/" + name + "/brif")
	if errors.Is(err, os.ErrNotExist) {
		return nil // it does not exist, or is not a bridge
	}
	if err != nil || len(ports) > 0 {
		return errors.Join(err, fmt.Errorf("bridge %s stays: %d devices use it", name, len(ports)))
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	down, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	down.SetUint16(0)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, down); err != nil {
		return fmt.Errorf("take bridge %s down: %w", name, err)
	}
	raw, err := unix.ByteSliceFromString(name)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCBRDELBR, uintptr(unsafe.Pointer(&raw[0]))); errno != 0 {
		return fmt.Errorf("remove bridge %s: %w", name, errno)
	}
	return nil
}

// hostPortPrefix is the prefix of the chains that the portmap plugin makes once for all
// pods.
const hostPortPrefix = "CNI-HOSTPORT-"

func hostPortChains() bool {
	return strings.Contains(natTable(), "\n:"+hostPortPrefix)
}

// removeHostPortChains removes the portmap plugin's common chains, in one
// transaction, unless a port is still mapped.
func removeHostPortChains() error {
	nat := natTable()
	if strings.Contains(nat, "\n-A "+hostPortPrefix+"DNAT ") {
		return errors.New("the host port chains stay: a port is still mapped")
	}
	return restoreNAT(removal(nat, func(chain string) bool { return strings.HasPrefix(chain, hostPortPrefix) }))
}

// removePodTraces removes the addresses and the packet filter chains that the network
// plugins left of killed sandboxes.
func (r *Runtime) removePodTraces(sandboxes []string) error {
	if len(sandboxes) == 0 {
		return nil
	}
	leases, _ := filepath.Glob(filepath.Join(addressesDir, r.network(), "*.*.*.*"))
	var errs []error
	for _, l := range leases {
		text, err := os.ReadFile(l)
		if id, _, _ := strings.Cut(string(text), "\n"); err == nil && slices.Contains(sandboxes, strings.TrimSpace(id)) {
			errs = append(errs, removeFile(l))
		}
	}
	gone := func(_, sandbox string) bool { return slices.Contains(sandboxes, sandbox) }
	return errors.Join(append(errs, restoreNAT(podChainRemoval(natTable(), gone)))...)
}

// podChains returns the input for iptables-restore that removes the leftover chains of the
// network's pods; "" if there are none. If containerd is killed while a plugin works, the
// plugin goes on without it, and may add chains after the DEL that follows the restart.
func (r *Runtime) podChains() string {
	return podChainRemoval(natTable(), func(network, _ string) bool { return network == r.network() })
}

// podChainRemoval returns the input for iptables-restore that removes the chains of the
// sandboxes that gone picks by network and ID, and the rules that jump to them. The bridge
// and portmap plugins write both into the comment of every rule of a pod.
func podChainRemoval(nat string, gone func(network, sandbox string) bool) string {
	ours := map[string]bool{}
	for line := range strings.Lines(nat) {
		rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A ")
		_, comment, named := strings.Cut(rule, `name: \"`)
		network, rest, _ := strings.Cut(comment, `\" id: \"`)
		if id, _, _ := strings.Cut(rest, `\"`); !ok || !named || !gone(network, id) {
			continue
		}
		chain, _, _ := strings.Cut(rule, " ")
		_, target, _ := strings.Cut(rule, " -j ")
		for _, name := range []string{chain, target} {
			if strings.HasPrefix(name, "CNI-") && !strings.HasPrefix(name, hostPortPrefix) {
				ours[name] = true
			}
		}
	}
	return removal(nat, func(chain string) bool { return ours[chain] })
}

// removal returns the input for iptables-restore that removes the chains that gone picks
// from the output of iptables-save, and every rule that jumps to one; "" if there is
// nothing to remove.
func removal(nat string, gone func(chain string) bool) string {
	var rules, flush, remove strings.Builder
	for line := range strings.Lines(nat) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, ":"); ok {
			if chain, _, _ := strings.Cut(name, " "); gone(chain) {
				fmt.Fprintf(&flush, "-F %s\n", chain)
				fmt.Fprintf(&remove, "-X %s\n", chain)
			}
			continue
		}
		rule, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			continue
		}
		from, _, _ := strings.Cut(rule, " ")
		if i := strings.LastIndex(rule, " -j "); i >= 0 && gone(rule[i+4:]) && !gone(from) {
			fmt.Fprintf(&rules, "-D %s\n", rule)
		}
	}
	if remove.Len() == 0 && rules.Len() == 0 {
		return ""
	}
	return "*nat\n" + rules.String() + flush.String() + remove.String() + "COMMIT\n"
}

// natTable returns the nat table as iptables-save prints it; "" without iptables.
func natTable() string {
	out, err := command("iptables-save", "-t", "nat").Output()
	if err != nil {
		return ""
	}
	return string(out)
}

func restoreNAT(script string) error {
	if script == "" {
		return nil
	}
	cmd := command("iptables-restore", "--noflush", "-w", "5")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s", err, firstLine(out))
	}
	return nil
}

func nftTable(name string) bool {
	return command("nft", "list", "table", "inet", name).Run() == nil
}

func removeNFTTable(name string) error {
	if out, err := command("nft", "delete", "table", "inet", name).CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, firstLine(out))
	}
	return nil
}

// command runs one of the machine's network tools, with the PATH of the CNI plugins.
func command(name string, args ...string) *exec.Cmd {
	env := environment("/nonexistent")
	for _, dir := range strings.Split(strings.TrimPrefix(env[0], "PATH="), ":") {
		if exists(filepath.Join(dir, name)) {
			name = filepath.Join(dir, name)
			break
		}
	}
	cmd := exec.Command(name, args...)
	cmd.Env = env
	return cmd
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	return string(line)
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// removeEmpty removes a directory if it is empty.
func removeEmpty(dir string) error {
	err := unix.Rmdir(dir)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func removeFile(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
