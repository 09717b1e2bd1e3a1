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
	"github.com/nodectl/nodectl/pkg/service"
)

// resolverCheck is how often the node's resolver file is read again.
const resolverCheck = 10 * time.Second

// dnsServer manages the DNS server of this node. The server runs from the first Service until --down or
// the end of the machine, because pods keep the address of their DNS server.
type dnsServer struct {
	cfg        Config
	supervisor *process.Supervisor // nil: this node has no DNS server of its own
	bundled    bool                // the runtime is the bundled one: pods have addresses of --pod-cidr

	// retiring says that the configuration turns the server off. The server of an earlier agent then
	// continues for the pods in users, by UID, because the resolver of a running pod does not change.
	retiring bool
	users    map[string]bool
	records  func() ([]pod.Record, error)

	mu       sync.Mutex // guards the fields below
	names    serviceNames
	services []*dns.Service
	read     bool          // setServices was called
	known    bool          // no Service is missing in services
	resolver []byte        // the content of the node's resolver file
	serial   uint32        // of the zone
	pushed   *server.State // the last one of push; nil: none since the first setServices
}

// newDNSServer returns the manager of the DNS server of a node without a cluster. It starts nothing.
func newDNSServer(cfg Config) *dnsServer {
	n := &dnsServer{cfg: cfg}
	n.readResolver()
	settings, ok := dnsProcess(cfg)
	on := cfg.OwnDNS() && ok
	if supervisor := process.New(settings); on || supervisor.HasRun() {
		n.supervisor, n.retiring = supervisor, !on
	}
	return n
}

// dnsProcess returns the configuration of the DNS server's process. ok is false if the range of
// Services has no address for the server.
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

// need starts the server, and keeps it running. It does not wait.
func (n *dnsServer) need() {
	if n.supervisor != nil {
		n.supervisor.Enable()
	}
}

// dnsStartTimeout is how long a new pod waits for the server to start.
const dnsStartTimeout = 10 * time.Second

// servers returns the address of the server and the domain for new pods; nothing if no server runs. It
// waits for a server that starts. It implements cri.Config.OwnDNS.
func (n *dnsServer) servers() (servers []string, domain string) {
	if n.supervisor == nil || n.retiring {
		return nil, ""
	}
	ctx, stop := context.WithTimeout(context.Background(), dnsStartTimeout) // the caller has no context
	defer stop()
	_ = n.supervisor.Ensure(ctx) // the Supervisor logs a failure, and retries
	return n.supervisor.Servers(), n.domain()
}

func (n *dnsServer) domain() string { return cmp.Or(n.cfg.ClusterDomain, config.DefaultDomain) }

// setServices replaces the Services with DNS names. complete says that no Service can be missing.
func (n *dnsServer) setServices(views []*service.View, complete bool) {
	if n.supervisor == nil {
		return
	}
	n.mu.Lock()
	all := n.names.of(views)
	if !n.read {
		n.pushed = nil
	}
	n.services, n.read, n.known = all, true, complete
	n.mu.Unlock()
	n.push()
	if len(all) > 0 {
		n.need()
	}
}

// push sends the newest state to the process, unless its answers are those of the last one. Until
// setServices was called, only a process without names uses the state, and forwards other names. A
// process of an earlier agent keeps its names.
func (n *dnsServer) push() {
	n.mu.Lock()
	defer n.mu.Unlock()
	settings, _ := dnsProcess(n.cfg)
	own := []netip.Addr{settings.Address}
	var others []netip.AddrPort
	if n.cfg.ResolvConf != "" { // with "", pods do not use name servers of the node
		others = withIndexes(dns.Upstreams(string(n.resolver), own))
	}
	next := server.State{
		Config: dns.Config{Domain: n.domain(), Ranges: n.ranges(), Servers: own},
		Known:  n.known, Services: n.services, Upstreams: others,
	}
	if n.pushed != nil && n.pushed.Same(&next) {
		return
	}
	n.serial = max(n.serial+1, uint32(time.Now().Unix()))
	next.Serial, n.pushed = n.serial, &next
	if n.read {
		n.supervisor.SetState(next)
	} else {
		n.supervisor.SetFirst(next)
	}
}

// withIndexes replaces the names of interfaces in link-local addresses by their indexes: the
// process cannot resolve these names.
func withIndexes(all []netip.AddrPort) []netip.AddrPort {
	for i, at := range all {
		if device, err := net.InterfaceByName(at.Addr().Zone()); err == nil {
			all[i] = netip.AddrPortFrom(at.Addr().WithZone(strconv.Itoa(device.Index)), at.Port())
		}
	}
	return all
}

// ranges returns the networks whose reverse names only this server resolves.
func (n *dnsServer) ranges() []netip.Prefix {
	all := slices.Clone(n.cfg.ServiceNetworks())
	if pods, err := netip.ParsePrefix(n.cfg.PodCIDR); err == nil && n.bundled {
		all = append(all, pods)
	}
	return all
}

// resume starts the server if an earlier agent ran it, because pods have its address. The server
// forwards other names at once, also if this agent reads no Services, as in runonce. records returns
// the pods of this node. If the configuration turns the server off, it continues until these pods are
// gone.
func (n *dnsServer) resume(records func() ([]pod.Record, error)) {
	if n.supervisor == nil {
		return
	}
	if !n.supervisor.HasRun() {
		if n.retiring { // it ended after newDNSServer
			n.supervisor = nil
		}
		return
	}
	if n.retiring {
		n.records = records
		if n.supervisor.HasMoved() || !n.findUsers() {
			n.retire()
			n.supervisor = nil
			return
		}
		n.cfg.Log.Warn("The DNS server is turned off; the server of an earlier agent continues until the pods that may use it are gone", "pods", len(n.users))
	}
	n.push()
	n.need()
}

// findUsers records the pods that may use the server, and reports whether there may be any. If the
// pods cannot be read, there may be.
func (n *dnsServer) findUsers() bool {
	all, err := n.records()
	n.users = make(map[string]bool)
	for i := range all {
		n.users[all[i].UID] = true
	}
	return err != nil || len(all) > 0
}

// isUsed reports whether a pod is left that may use the server.
func (n *dnsServer) isUsed() bool {
	all, err := n.records()
	return err != nil || slices.ContainsFunc(all, func(r pod.Record) bool { return n.users[r.UID] })
}

// retire stops a server that is turned off.
func (n *dnsServer) retire() {
	if err := process.Stop(process.Config{Dir: filepath.Dir(n.cfg.ListenPath())}); err != nil {
		n.cfg.Log.Error("Failed to stop the DNS server, which is turned off", "error", err)
		return
	}
	n.cfg.Log.Info("Stopped the DNS server of an earlier agent: it is turned off, and no pod uses it")
}

// run keeps the process running until ctx ends. The process then continues, unless it is turned off
// and no pod is left that may use it.
func (n *dnsServer) run(ctx context.Context) {
	if n.supervisor == nil {
		return
	}
	keeping, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { n.supervisor.Run(keeping) })
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

// readResolver reads the node's resolver file, and reports whether it has changed. The DNS server
// forwards other names to the servers in it. If the file cannot be read, the servers do not change.
func (n *dnsServer) readResolver() (changed bool) {
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
func (n *dnsServer) counts() map[string]uint64 {
	c := n.supervisor.Counts()
	return map[string]uint64{
		"zone": c.Zone, "forwarded": c.Forwarded, "cached": c.Cached, "failed": c.Failed, "refused": c.Refused, "malformed": c.Malformed,
	}
}

// removeDNS stops the process, and removes its address, if no pod of this node is left that may
// use it.
func (a *Agent) removeDNS() error {
	left, err := a.state.records.All()
	if err != nil || len(left) > 0 {
		return err
	}
	return process.Stop(process.Config{Dir: filepath.Dir(a.cfg.ListenPath())}) // also if there is no range of Services now
}

// reserved returns the address of the DNS server, which no Service gets. It does so even while the
// server is turned off, so that it can be turned on later.
func (n *dnsServer) reserved() []netip.Addr {
	settings, ok := dnsProcess(n.cfg)
	if !ok {
		return nil
	}
	return []netip.Addr{settings.Address}
}
