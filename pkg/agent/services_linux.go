package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/balancer"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/service"
	"github.com/nodectl/nodectl/pkg/service/nft"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// newBalancer makes the Balancer. In a cluster it is nil: the cluster's proxy serves Services.
func (a *Agent) newBalancer() *balancer.Balancer {
	if a.cfg.Kubeconfig != "" {
		return nil
	}
	cfg := balancer.Config{
		CIDRs: a.cfg.ServiceNetworks(), Reserved: a.dns.reserved(), NodePorts: service.DefaultNodePorts(), Nodes: parseAddrs(a.host.ips),
		Local: localAddresses(), Listeners: a.listeners(),
		Store: serviceStore{record.NewServices(a.cfg.RootDir)}, Filter: a.newPacketFilter(), Log: a.log,
		Refused: func(o *pod.Object, p pod.Problem) {
			a.log.Warn("Service has a problem", "service", o.Key.String(), "file", p.File, "path", p.Path, "problem", p.Msg)
			a.events.ObjectEvent(v1.ObjectReference{Kind: pod.KindService, APIVersion: "v1", Namespace: o.Namespace, Name: o.Name}, v1.EventTypeWarning, "ServiceRefused", p.Path+": "+p.Msg)
		},
		Views:   a.dns.setServices,
		Trouble: func(reason, message string) { a.events.NodeEvent(reason, v1.EventTypeWarning, message) },
	}
	for _, r := range a.state.kept {
		if last := a.state.reported[r.Key]; r.Want != nil && last != nil && last.UID == r.Want.Pod.UID {
			cfg.Recorded = append(cfg.Recorded, balancer.RecordedPod{Pod: r.Want.Pod, Status: &last.Status})
		}
	}
	return balancer.New(cfg)
}

// serveServices serves Services until ctx ends. In a cluster it only protects the loopback
// addresses of the node, as the kubelet does.
func (a *Agent) serveServices(ctx context.Context, b *balancer.Balancer) {
	if b != nil {
		b.Run(ctx)
		return
	}
	balancer.Protect(ctx, a.newPacketFilter(), a.log)
}

// localAddresses returns the addresses of the node's network interfaces.
func localAddresses() (out []netip.Addr) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out
}

// listeners returns the ports on which this agent listens.
func (a *Agent) listeners() (out []uint16) {
	for _, port := range []int{a.cfg.ServerPort(), a.cfg.HealthzPort} {
		if port > 0 && port <= math.MaxUint16 {
			out = append(out, uint16(port))
		}
	}
	return out
}

func parseAddrs(ips []string) (out []netip.Addr) {
	for _, text := range ips {
		if ip, err := netip.ParseAddr(text); err == nil {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// withServices adds the Balancer and the DNS server to the receivers. b is nil in a cluster.
func (to receivers) withServices(b *balancer.Balancer, n *dnsServer) receivers {
	if b == nil {
		return to
	}
	to.listeners = append(slices.Clone(to.listeners), b)
	to.desired, to.services = desiredServices(b, n), b.Services
	return to
}

// desiredServices returns a function that passes the Services of each desired set to b. It starts the
// DNS server with the first Service, before the pods of the set get their name servers.
func desiredServices(b *balancer.Balancer, n *dnsServer) func(*podconfig.Merged) {
	return func(m *podconfig.Merged) {
		services := servicesIn(m)
		if len(services) > 0 {
			n.need()
		}
		b.Set(services, m.Pod, answersOf(m.Layers))
	}
}

// answersOf returns the balancer.Answers of these layers.
func answersOf(layers []podconfig.LayerState) balancer.Answers {
	answers := balancer.Complete
	for _, l := range layers {
		switch {
		case l.Ready || l.Restored || l.Ended:
		case l.Error != "":
			answers = balancer.Partial
		default:
			return balancer.Waiting
		}
	}
	return answers
}

// servicesIn returns the Services of a set, by key.
func servicesIn(m *podconfig.Merged) []*pod.Object {
	return sorted.Run(m.Objects, pod.KindService, func(o *pod.Object, kind string) int { return strings.Compare(o.Kind, kind) })
}

// serviceStore implements balancer.Store.
type serviceStore struct{ record.Services }

// Load implements balancer.Store.
func (s serviceStore) Load() (service.Allocations, error) {
	var a service.Allocations
	err := s.Services.Load(&a)
	return a, err
}

// Save implements balancer.Store.
func (s serviceStore) Save(a service.Allocations) error { return s.Services.Save(a) }

// packetFilter implements balancer.Filter.
type packetFilter struct {
	*nft.Filter
	ranges []netip.Prefix
	log    *slog.Logger
	lock   *os.File // held while this agent serves Services
}

func (a *Agent) newPacketFilter() *packetFilter {
	return &packetFilter{Filter: nft.New(), ranges: a.cfg.ServiceNetworks(), log: a.log}
}

// servicesLock is a lock file: one agent of a machine serves Services, because all agents use the
// same tables of the packet filter. The file lists the devices whose sysctls an agent has set. Like
// these sysctls, it does not outlive a reboot.
const servicesLock = "/run/nodectl-services.lock"

// claim takes the lock, so that this agent serves Services.
func (f *packetFilter) claim() error {
	if f.lock != nil {
		return nil
	}
	file, err := os.OpenFile(servicesLock, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return errors.New("another agent serves Services on this machine")
		}
		return fmt.Errorf("lock %s: %w", servicesLock, err)
	}
	f.lock = file
	return nil
}

// Close closes the connection to the kernel, and lets another agent serve Services.
func (f *packetFilter) Close() {
	f.Filter.Close()
	if f.lock != nil {
		f.lock.Close()
		f.lock = nil
	}
}

// Remove implements balancer.Filter.
func (f *packetFilter) Remove() error {
	if err := f.claim(); err != nil {
		return err
	}
	return f.Filter.Remove()
}

// Links implements balancer.Filter.
func (*packetFilter) Links(backends []netip.Addr) ([]netip.Prefix, error) {
	routes, err := nft.Routes()
	if err != nil {
		return nil, err
	}
	return nft.Links(routes, withoutOwn(backends)), nil
}

// Prepare implements balancer.Filter.
func (f *packetFilter) Prepare(backends []netip.Addr) (loopback6 bool, err error) {
	if err := f.claim(); err != nil {
		return false, err
	}
	routes, err := nft.Routes()
	if err != nil {
		return false, err
	}
	backends = withoutOwn(backends)
	changed, err := nft.Prepare(routes, backends)
	loopback6, err6 := nft.Loopback6(routes, backends)
	return loopback6, errors.Join(err, saveDevices(f.lock, changed), err6)
}

// Restore implements balancer.Filter. It includes devices that an earlier agent has prepared.
func (f *packetFilter) Restore() error {
	if err := f.claim(); err != nil {
		return err
	}
	routes, err := nft.Routes()
	if err != nil {
		return err
	}
	devices, err := savedDevices(f.lock)
	if err == nil {
		err = errors.Join(nft.Restore(devices), nft.RestoreLoopback6(routes))
	}
	if err != nil {
		return err
	}
	return f.lock.Truncate(0)
}

// withoutOwn returns the endpoints without addresses of the node: pods with hostNetwork have these.
func withoutOwn(backends []netip.Addr) []netip.Addr {
	own := localAddresses()
	return slices.DeleteFunc(slices.Clone(backends), func(b netip.Addr) bool { return slices.Contains(own, b) })
}

// maxDeviceList limits the bytes that are read of a list of devices.
const maxDeviceList = 1 << 20

// saveDevices adds names of devices to the list in a file.
func saveDevices(file *os.File, names []string) error {
	if len(names) == 0 {
		return nil
	}
	all, err := savedDevices(file)
	if err != nil {
		return err
	}
	all = slices.Compact(slices.Sorted(slices.Values(append(all, names...))))
	_, err = file.WriteAt([]byte(strings.Join(all, "\n")+"\n"), 0) // the list only grows
	return err
}

// savedDevices returns the names of devices in a file.
func savedDevices(file *os.File) ([]string, error) {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, maxDeviceList))
	return strings.Fields(string(text)), err
}

// Route implements balancer.Filter. It returns an error for a range that another route uses.
func (f *packetFilter) Route(cidr netip.Prefix, on bool) error {
	if err := f.claim(); err != nil {
		return err
	}
	routes, err := nft.Routes()
	if err != nil {
		return err
	}
	for _, old := range nft.Stale(routes, f.ranges) { // of an earlier --service-cidr
		if err := nft.Serve(old, false); err != nil {
			return err
		}
	}
	if !on {
		return nft.Serve(cidr, false)
	}
	if r, wider := nft.Wider(routes, cidr); wider {
		f.log.Warn("Range of Services is part of a wider route, whose hosts in the range are not reachable any more", "serviceCIDR", cidr.String(), "route", r.To.String(), "device", r.Device)
	}
	if r, overlaps := nft.Overlap(routes, cidr); overlaps {
		return fmt.Errorf("--service-cidr %s: overlaps the route to %s by %s: set a range that no network uses", cidr, r.To, r.Device)
	}
	return nft.Serve(cidr, true)
}

// serviceList returns the function that lists Services for the server.
func serviceList(b *balancer.Balancer) func() []server.Service {
	if b == nil {
		return nil
	}
	return func() []server.Service {
		d := b.State()
		index := make(map[pod.Key]int, len(d.Services))
		var out []server.Service
		for i := range d.Services {
			s := &d.Services[i]
			index[s.Object.Key] = len(out)
			out = append(out, server.Service{Service: *s.Service, Endpoints: shownEndpoints(s.View)})
		}
		for _, r := range d.Refused {
			at, served := index[r.Key]
			if !served {
				at = len(out)
				index[r.Key] = at
				out = append(out, server.Service{Service: refusedService(b, r.Key)})
			}
			out[at].Problems = append(out[at].Problems, r.Problem.Path+": "+r.Problem.Msg)
		}
		slices.SortFunc(out, func(x, y server.Service) int {
			return cmp.Or(strings.Compare(x.Service.Namespace, y.Service.Namespace), strings.Compare(x.Service.Name, y.Service.Name))
		})
		return out
	}
}

// refusedService returns the source's version of a Service that is not served.
func refusedService(b *balancer.Balancer, key pod.Key) v1.Service {
	if o := b.Object(key); o != nil {
		if s, is := o.Object.(*v1.Service); is {
			return *s.DeepCopy()
		}
	}
	s := v1.Service{}
	s.Namespace, s.Name = key.Namespace, key.Name
	return s
}

func shownEndpoints(v *service.View) []server.ServiceEndpoint {
	out := []server.ServiceEndpoint{}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		for _, p := range e.Ports {
			out = append(out, server.ServiceEndpoint{Port: p.Name, Address: e.Addr.String(), Target: int32(p.Port), Pod: e.Pod, Ready: e.Ready})
		}
	}
	return out
}

// removeServices removes the addresses of the Services of a set that runonce --down removes. If no
// pod of this node is left, it removes all rules, routes and addresses of Services.
func (a *Agent) removeServices(set *podconfig.Merged) error {
	services, store := servicesIn(set), serviceStore{record.NewServices(a.cfg.RootDir)}
	if len(services) == 0 && !store.Exists() {
		return nil
	}
	left, err := a.state.records.All()
	if err != nil {
		return err
	}
	all, err := store.Load()
	if len(left) == 0 && (len(services) > 0 || err == nil && len(all) == 0) {
		return a.clearServices()
	}
	if err != nil || len(services) == 0 {
		return err
	}
	for _, o := range services {
		delete(all, o.Key)
	}
	return store.Save(all)
}

// clearServices removes all rules, routes and addresses of Services.
func (a *Agent) clearServices() error {
	f := a.newPacketFilter()
	defer f.Close()
	err := errors.Join(f.Restore(), f.Remove())
	for _, p := range a.cfg.ServiceNetworks() {
		err = errors.Join(err, f.Route(p, false))
	}
	if err != nil {
		return readonly.Fail(readonly.Failure, err)
	}
	return record.NewServices(a.cfg.RootDir).Remove()
}

// joinWithoutServices removes all rules, routes and addresses of Services on a machine that joins a
// cluster, whose proxy then serves Services. After a failure, the next agent tries again.
func (a *Agent) joinWithoutServices(remove func() error) {
	if a.cfg.Kubeconfig == "" || !record.NewServices(a.cfg.RootDir).Exists() {
		return
	}
	if err := errors.Join(a.removeDNS(), remove()); err != nil {
		a.log.Error("Failed to remove the rules of Services, which the proxy of the cluster serves now", "error", err)
		return
	}
	a.log.Info("Removed the rules of Services: the proxy of the cluster serves Services")
}

var _ engine.Sink = (*balancer.Balancer)(nil)
