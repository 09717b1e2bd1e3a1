package agent

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/dns"
	"github.com/nodectl/nodectl/pkg/dns/process"
	"github.com/nodectl/nodectl/pkg/dns/server"
	"github.com/nodectl/nodectl/pkg/pod"
)

// resolverCheck is how often the node's resolver file is read again.
const resolverCheck = 10 * time.Second

// names is the DNS server of the Services of this node. It runs from the first Service on, until
// --down or the machine ends it: pods keep the address of their server.
type names struct {
	cfg     Config
	keeper  *process.Keeper // nil: this node has no DNS server of its own
	bundled bool            // pods have addresses of --pod-cidr

	// retiring says that the server is off, and one of an agent before runs on for the pods users,
	// by UID, as running pods keep their resolver.
	retiring bool
	users    map[string]bool
	records  func() ([]pod.Record, error)

	mu       sync.Mutex
	services []dns.Service
	read     bool // Services have been read
	known    bool // and none is missing
	resolver []byte
	serial   uint32
}

// newNames returns the DNS server of a node without a cluster. It does nothing yet.
func newNames(cfg Config) *names {
	n := &names{cfg: cfg}
	n.readResolver()
	settings, ok := dnsProcess(cfg)
	on := cfg.OwnDNS() && ok
	if keeper := process.New(settings); on || keeper.Used() {
		n.keeper, n.retiring = keeper, !on
	}
	return n
}

// dnsProcess returns the configuration of the process that answers. ok is false if the range of
// Services has no address for it.
func dnsProcess(cfg Config) (c process.Config, ok bool) {
	c = process.Config{Dir: filepath.Dir(cfg.ListenPath()), LogFile: filepath.Join(cfg.RootDir, "dns.log"), Log: cfg.Log}
	ranges := cfg.ServiceNetworks()
	if len(ranges) == 0 {
		return c, false
	}
	c.Range = ranges[0]
	c.Address, ok = dns.DefaultServer(c.Range)
	return c, ok
}

// need makes the server run from now on. It does not wait.
func (n *names) need() {
	if n.keeper != nil {
		n.keeper.Want()
	}
}

// serverPatience is how long a new pod waits for the server to start.
const serverPatience = 10 * time.Second

// servers returns the server that new pods get, none unless it runs. It waits for one that is
// starting. It implements cri.Config.OwnDNS.
func (n *names) servers() (servers []string, domain string) {
	if n.keeper == nil || n.retiring {
		return nil, ""
	}
	ctx, stop := context.WithTimeout(context.Background(), serverPatience) // the caller has no context
	defer stop()
	_ = n.keeper.Ensure(ctx) // it logs its failure, and tries again
	return n.keeper.Servers(), n.domain()
}

func (n *names) domain() string { return cmp.Or(n.cfg.ClusterDomain, config.DefaultDomain) }

// setServices replaces the Services that have names. complete says that no others may be missing.
func (n *names) setServices(all []dns.Service, complete bool) {
	if n.keeper == nil {
		return
	}
	n.mu.Lock()
	n.services, n.read, n.known = all, true, complete
	n.mu.Unlock()
	n.push()
	if len(all) > 0 {
		n.need()
	}
}

// push gives the process its newest state. Until Services have been read, only a process without
// names gets one, to answer other names; a process of the agent before keeps its names.
func (n *names) push() {
	n.mu.Lock()
	defer n.mu.Unlock()
	settings, _ := dnsProcess(n.cfg)
	n.serial = max(n.serial+1, uint32(time.Now().Unix()))
	own := []netip.Addr{settings.Address}
	var others []netip.AddrPort
	if n.cfg.ResolvConf != "" { // else pods get no servers of the node
		others = withIndexes(dns.Upstreams(string(n.resolver), own))
	}
	set := n.keeper.SetFirst
	if n.read {
		set = n.keeper.SetState
	}
	set(server.State{
		Config: dns.Config{Domain: n.domain(), Ranges: n.ranges(), Servers: own, Serial: n.serial},
		Known:  n.known, Services: n.services, Upstreams: others,
	})
}

// withIndexes replaces the names of interfaces in link-local addresses by their numbers: the process
// cannot look names up.
func withIndexes(all []netip.AddrPort) []netip.AddrPort {
	for i, at := range all {
		if device, err := net.InterfaceByName(at.Addr().Zone()); err == nil {
			all[i] = netip.AddrPortFrom(at.Addr().WithZone(strconv.Itoa(device.Index)), at.Port())
		}
	}
	return all
}

// ranges returns the networks whose addresses only this server has names for.
func (n *names) ranges() []netip.Prefix {
	all := slices.Clone(n.cfg.ServiceNetworks())
	if pods, err := netip.ParsePrefix(n.cfg.PodCIDR); err == nil && n.bundled {
		all = append(all, pods)
	}
	return all
}

// resume makes the server run if an agent before has used it: pods have its address. It answers
// names of others at once, also if it has to be started and no Services are read, as by runonce.
// records returns the pods of this node. A server that is off runs on while one of them is left.
func (n *names) resume(records func() ([]pod.Record, error)) {
	if n.keeper == nil || !n.keeper.Used() {
		return
	}
	if n.retiring {
		n.records = records
		if n.keeper.Moved() || !n.findUsers() {
			n.retire()
			n.keeper = nil
			return
		}
		n.cfg.Log.Warn("The DNS server is off. The one of an earlier agent runs until the pods that may use it are gone", "pods", len(n.users))
	}
	n.push()
	n.need()
}

// findUsers remembers which pods may use the server, and reports whether there are any. A list that
// cannot be read may have one.
func (n *names) findUsers() bool {
	all, err := n.records()
	n.users = make(map[string]bool)
	for i := range all {
		n.users[all[i].UID] = true
	}
	return err != nil || len(all) > 0
}

// isUsed reports whether a pod that may use the server is left.
func (n *names) isUsed() bool {
	all, err := n.records()
	return err != nil || slices.ContainsFunc(all, func(r pod.Record) bool { return n.users[r.UID] })
}

// retire ends a server that is off.
func (n *names) retire() {
	if err := process.Stop(process.Config{Dir: filepath.Dir(n.cfg.ListenPath())}); err != nil {
		n.cfg.Log.Error("Failed to stop the DNS server, which is off", "error", err)
		return
	}
	n.cfg.Log.Info("Stopped the DNS server of an earlier agent: it is off, and no pod uses it")
}

// run keeps the process running until ctx ends. The process stays, unless it is off and no pod that
// may use it is left.
func (n *names) run(ctx context.Context) {
	if n.keeper == nil {
		return
	}
	keeping, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { n.keeper.Run(keeping) })
	for {
		select {
		case <-time.After(resolverCheck):
			if n.retiring && !n.isUsed() {
				stop()
				wg.Wait()
				n.retire()
				return
			}
			if n.readResolver() {
				n.push()
			}
		case <-ctx.Done():
			return
		}
	}
}

// readResolver reads the node's resolver file, and reports whether it has changed. Other names are
// asked of the servers in it. A file that cannot be read leaves the servers as they are.
func (n *names) readResolver() (changed bool) {
	text, err := os.ReadFile(n.cfg.ResolvConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	changed = string(text) != string(n.resolver)
	n.resolver = text
	return changed
}

// counts returns the newest counters of the process, by the kind of answer.
func (n *names) counts() map[string]uint64 {
	c := n.keeper.Counts()
	return map[string]uint64{
		"zone": c.Zone, "forwarded": c.Forwarded, "cached": c.Cached, "failed": c.Failed, "refused": c.Refused, "malformed": c.Malformed,
	}
}

// withoutNames ends the process, and removes its address, if no pod of this node is left that may
// ask it.
func (a *Agent) withoutNames() error {
	left, err := a.state.records.All()
	if err != nil || len(left) > 0 {
		return err
	}
	return process.Stop(process.Config{Dir: filepath.Dir(a.cfg.ListenPath())}) // also without a range now
}

// reserved are the addresses that no Service gets: that of the server, also while it is off, so that it
// can be turned on later.
func (n *names) reserved() []netip.Addr {
	settings, ok := dnsProcess(n.cfg)
	if !ok {
		return nil
	}
	return []netip.Addr{settings.Address}
}
