package server

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodectl/nodectl/pkg/dns"
)

// answers returns the answers of a server to a question about each name.
func answers(t *testing.T, s *Server, names ...string) (all []string) {
	t.Helper()
	for _, name := range names {
		q, code, err := dns.ParseQuery(query(t, 1, name, dnsmessage.TypeA, 0))
		if err != nil || code != 0 {
			t.Fatalf("%s: %v, %v", name, code, err)
		}
		r, later := s.decide(q)
		all = append(all, fmt.Sprint(name, " ", r.answer.RCode, " ", len(r.answer.Answers), " ", later != nil))
	}
	return all
}

// moved returns a State in which another Service has the place of web, and the Services are not known
// to be complete.
func moved() State {
	to := state(netip.MustParseAddrPort("192.0.2.2:53"))
	to.Services = dns.Sort(append(slices.Clone(to.Services[1:]), &dns.Service{Namespace: "default", Name: "new", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.1.1")}}))
	to.Serial, to.Known = 2, false
	return to
}

// After a change, a server answers as one that got the whole State.
func TestServer_Change_AnswersAsTheWholeState(t *testing.T) {
	from, to := state(), moved()
	from.Services = dns.Sort(slices.Clone(from.Services))
	names := []string{"web.default.svc.cluster.local.", "new.default.svc.cluster.local.", "many.default.svc.cluster.local.", "none.default.svc.cluster.local.", "example.com."}
	changed, whole := New(DefaultLimits(), slog.New(slog.DiscardHandler)), New(DefaultLimits(), slog.New(slog.DiscardHandler))
	changed.Set(from)
	before := answers(t, changed, names...)
	c, ok := Difference(&from, &to)
	if !ok || c.Records.Len() != 5 { // two addresses, two PTR records, and the SRV record of web
		t.Fatalf("%t, %+v", ok, c)
	}
	if err := changed.Apply(c); err != nil {
		t.Fatal(err)
	}
	whole.Set(to)
	got, want := answers(t, changed, names...), answers(t, whole, names...)
	if !slices.Equal(got, want) || slices.Equal(got, before) {
		t.Errorf("got  %v\nwant %v, before it %v", got, want, before)
	}
	if servers := changed.forward.servers; len(servers) != 1 || servers[0].at != to.Upstreams[0] {
		t.Errorf("servers for other names: %v", servers)
	}

	// The same change a second time does not fit. The server keeps its State.
	if err := changed.Apply(c); err == nil {
		t.Error("a change is applied twice")
	}
	tooMany := Change{Records: dns.Change{Add: make([]dns.Record, MaxRecords+1)}}
	if err := changed.Apply(tooMany); err == nil {
		t.Error("a change with too many records is applied")
	}
	if got := answers(t, changed, names...); !slices.Equal(got, want) {
		t.Errorf("after changes that do not fit: %v, want %v", got, want)
	}
	if err := New(DefaultLimits(), slog.New(slog.DiscardHandler)).Apply(Change{}); err == nil {
		t.Error("a server without a State applies a change")
	}
}

// A server needs the whole State if more than records of Services differ, and if the records are many.
func TestDifference_OtherZoneOrManyRecords_NeedsTheWholeState(t *testing.T) {
	for name, change := range map[string]func(*State){
		"domain": func(s *State) { s.Domain = "cluster.example" }, "ranges": func(s *State) { s.Ranges = nil }, "address of the server": func(s *State) { s.Servers = nil },
		"many records": func(s *State) {
			for i := range MaxRecords/2 + 1 {
				s.Services = append(s.Services, &dns.Service{Namespace: "many", Name: fmt.Sprintf("s-%d", i), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i / 256), byte(i)})}})
			}
		},
	} {
		from, to := state(), state()
		to.Services = from.Services
		if _, ok := Difference(&from, &to); !ok || !from.Same(&to) {
			t.Errorf("%s: without a difference", name)
		}
		to.Services = slices.Clone(to.Services)
		if change(&to); from.Same(&to) {
			t.Errorf("another %s is the same", name)
		}
		if c, ok := Difference(&from, &to); ok {
			t.Errorf("another %s is a change: %d records", name, c.Records.Len())
		}
	}
}
