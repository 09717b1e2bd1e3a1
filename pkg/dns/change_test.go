package dns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"pgregory.net/rapid"
)

// drawService draws a Service. Several Services may have endpoints with one address.
func drawService(t *rapid.T, name string) *Service {
	s := &Service{Namespace: name[:1], Name: name[2:]}
	port := func() []Port {
		return rapid.SliceOfN(rapid.SampledFrom([]Port{
			{Name: "http", Protocol: "TCP", Number: 80}, {Name: "http", Protocol: "TCP", Number: 81}, {Name: "dns", Protocol: "UDP", Number: 53}, {Protocol: "TCP", Number: 82},
			{Name: strings.Repeat("x", 63), Protocol: "TCP", Number: 83},
		}), 0, 3).Draw(t, "ports")
	}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		s.ExternalName = rapid.SampledFrom([]string{"example.com", "a.b.svc.cluster.local", "x..y", "."}).Draw(t, "external")
	case 1:
		s.ClusterIPs, s.Ports = ips(fmt.Sprintf("10.96.0.%d", rapid.IntRange(1, 3).Draw(t, "ip")), "fd00:96::1"), port()
	default:
		s.Ports = port()
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			e := Endpoint{
				Address:  rapid.SampledFrom(ips("10.88.0.1", "10.88.0.2", "::ffff:10.88.0.2", "10.88.1.1", "fd00:88::1", "fd00:89::1")).Draw(t, "address"),
				Hostname: rapid.SampledFrom([]string{"", "", "host", "Host", "other", "with.dot", strings.Repeat("x", 64)}).Draw(t, "host"),
			}
			if rapid.Bool().Draw(t, "own ports") {
				e.Ports = append([]Port{}, port()...)
			}
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s
}

// recordsIn returns the records of the nodes of a zone that are there because of Services.
func recordsIn(z *Zone) map[Record]bool {
	all := make(map[Record]bool)
	for name, at := range z.nodes {
		if at.fixed {
			continue
		}
		for _, a := range at.addresses {
			all[Record{Owner: name, Address: a}] = true
		}
		for _, to := range at.targets {
			all[Record{Owner: name, Host: to.name, Port: to.port}] = true
		}
		for _, p := range at.pointers {
			all[Record{Owner: name, Pointer: p}] = true
		}
		if at.alias != "" {
			all[Record{Owner: name, Alias: at.alias}] = true
		}
	}
	return all
}

// missing returns how many records of one set another one lacks.
func missing(all, others map[Record]bool) (n int) {
	for r := range all {
		if !others[r] {
			n++
		}
	}
	return n
}

func asSet(all []Record) map[Record]bool {
	set := make(map[Record]bool)
	for _, r := range all {
		set[r] = true
	}
	return set
}

// Services come, go and change. After each step, the zone that the difference makes is the zone that
// NewZone makes of all Services, and the zone before has not changed. The difference has no record
// that both zones have, is the same after its transport, and leads back to the zone before.
func TestDifference_Story_IsAZoneFromNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a/web", "a/db", "b/web", "b/db", "b/cache"}
		config, _ := shop()
		current := make(map[string]*Service)
		var before []*Service
		zone := NewZone(config, nil)
		for step := range rapid.IntRange(1, 8).Draw(t, "steps") {
			for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 1, 3).Draw(t, "changed") {
				delete(current, name)
				if rapid.IntRange(0, 3).Draw(t, "there") > 0 {
					current[name] = drawService(t, name)
				}
			}
			var after []*Service
			for _, s := range current {
				after = append(after, s)
			}
			after = Sort(after)
			change := Difference(config.Domain, before, after)
			js, err := json.Marshal(change)
			var sent Change
			if err != nil || json.Unmarshal(js, &sent) != nil || !reflect.DeepEqual(sent, change) {
				t.Fatalf("%v: %s is %+v", err, js, sent)
			}
			from := NewZone(config, before)
			config.Serial = uint32(100 + step)
			want := NewZone(config, after)
			next, err := zone.Apply(sent, config.Serial)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(next, want) {
				t.Fatalf("%s\ngot  %v\nwant %v", js, shown(next), shown(want))
			}
			if !reflect.DeepEqual(zone, from) {
				t.Fatalf("%s has changed the zone before:\ngot  %v\nwant %v", js, shown(zone), shown(from))
			}
			had, has := recordsIn(from), recordsIn(want)
			if len(change.Remove) != missing(had, has) || len(change.Add) != missing(has, had) ||
				missing(asSet(change.Remove), had) > 0 || missing(asSet(change.Add), has) > 0 {
				t.Fatalf("%s is not the difference of\n%v\n%v", js, shown(from), shown(want))
			}
			back, err := next.Apply(Change{Remove: change.Add, Add: change.Remove}, from.config.Serial)
			if err != nil || !reflect.DeepEqual(back, from) {
				t.Fatalf("%v: the way back from %s\ngot  %v\nwant %v", err, js, shown(back), shown(from))
			}
			zone, before = next, after
		}
	})
}

// shown shows the nodes of a zone.
func shown(z *Zone) string {
	if z == nil {
		return "no zone"
	}
	var lines []string
	for name, at := range z.nodes {
		lines = append(lines, fmt.Sprintf("%s %+v", name, *at))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// headless returns headless Services with a named port and endpoints with addresses of their own.
func headless(services, endpoints int) (all []*Service) {
	for i := range services {
		s := &Service{Namespace: "default", Name: fmt.Sprintf("db-%d", i), Ports: []Port{{Name: "sql", Protocol: "TCP", Number: 5432}}}
		for j := range endpoints {
			s.Endpoints = append(s.Endpoints, Endpoint{Address: netip.AddrFrom4([4]byte{10, 88, byte(i), byte(j)})})
		}
		all = append(all, s)
	}
	return Sort(all)
}

// The pod of an endpoint is not ready any more, or is ready again. The change has the four records of
// the endpoint, whatever the number of Services and of their endpoints: an address of the Service, an
// address, an SRV record and a PTR record of the endpoint.
func TestDifference_OneEndpoint_HasFourRecords(t *testing.T) {
	for _, size := range [][2]int{{1, 5}, {200, 5}, {2, 200}} {
		before := headless(size[0], size[1])
		after := slices.Clone(before)
		changed := *after[size[0]/2]
		changed.Endpoints = changed.Endpoints[1:]
		after[size[0]/2] = &changed
		if c := Difference("cluster.local", before, after); len(c.Remove) != 4 || len(c.Add) != 0 {
			t.Errorf("%v: an endpoint leaves: %+v", size, c)
		}
		if c := Difference("cluster.local", after, before); len(c.Remove) != 0 || len(c.Add) != 4 {
			t.Errorf("%v: an endpoint comes: %+v", size, c)
		}
	}
}

// A change that does not fit a zone fails as a whole: also its records that fit are not in the zone.
func TestApply_ChangeOfAnotherZone_ChangesNothing(t *testing.T) {
	config, services := shop()
	zone := NewZone(config, services)
	fits := Record{Owner: "new.default.svc.cluster.local.", Address: ips("10.96.9.9")[0]}
	for name, c := range map[string]Change{
		"removes a record that is not there":         {Remove: []Record{fits}},
		"removes a record of a name that is there":   {Remove: []Record{{Owner: "web.default.svc.cluster.local.", Address: ips("10.96.9.9")[0]}}},
		"removes an alias that is another one":       {Remove: []Record{{Owner: "mail.default.svc.cluster.local.", Alias: "example.com."}}},
		"removes the address of the server":          {Remove: []Record{{Owner: "ns.dns.cluster.local.", Address: ips("10.96.0.10")[0]}}},
		"adds a record twice":                        {Add: []Record{fits, fits}},
		"adds a record that is there":                {Add: []Record{fits, {Owner: "web.default.svc.cluster.local.", Address: ips("10.96.12.34")[0]}}},
		"adds an alias beside another one":           {Add: []Record{fits, {Owner: "mail.default.svc.cluster.local.", Alias: "example.com."}}},
		"adds a name of another domain":              {Add: []Record{fits, {Owner: "example.com.", Address: ips("10.96.9.9")[0]}}},
		"adds an address to the name of the server":  {Add: []Record{fits, {Owner: "ns.dns.cluster.local.", Address: ips("10.96.9.9")[0]}}},
		"adds a pointer to a name that is no number": {Add: []Record{fits, {Owner: "web.default.svc.cluster.local.", Pointer: "a."}}},
		"adds a record of two types":                 {Add: []Record{fits, {Owner: "x.default.svc.cluster.local.", Alias: "a.", Host: "b."}}},
		"adds a record of no type":                   {Add: []Record{fits, {Owner: "x.default.svc.cluster.local."}}},
		"adds an invalid name":                       {Add: []Record{fits, {Owner: strings.Repeat("x", 64) + ".default.svc.cluster.local.", Alias: "a."}}},
		"adds an invalid target":                     {Add: []Record{fits, {Owner: "x.default.svc.cluster.local.", Alias: "a..b."}}},
	} {
		if _, err := zone.Apply(c, 8); err == nil {
			t.Errorf("a change that %s is applied", name)
		}
		if want := NewZone(config, services); !reflect.DeepEqual(zone, want) {
			t.Fatalf("a change that %s has changed the zone:\ngot  %v\nwant %v", name, shown(zone), shown(want))
		}
	}
	if next, err := zone.Apply(Change{Add: []Record{fits}}, 8); err != nil || next.nodes[fits.Owner] == nil {
		t.Errorf("the record that fits: %v", err)
	}
}

// Sort keeps the first Service of each name, in whatever letter case, so that no two Services have a
// record in common.
func TestSort_NamesTwice_FirstIsKept(t *testing.T) {
	all := []*Service{{Namespace: "b", Name: "x"}, {Namespace: "a", Name: "y"}, {Namespace: "A", Name: "Y"}, {Namespace: "a", Name: "x"}, {Namespace: "b", Name: "x", ExternalName: "e"}}
	want := []*Service{all[3], all[1], all[0]}
	if got := Sort(slices.Clone(all)); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// Each field of a Service counts.
func TestEqual_OneFieldDiffers_IsNotEqual(t *testing.T) {
	full := func() *Service {
		return &Service{
			Namespace: "n", Name: "s", ExternalName: "e", ClusterIPs: ips("10.96.0.1"), Ports: []Port{{"p", "TCP", 1}},
			Endpoints: []Endpoint{{Address: ips("10.88.0.1")[0], Hostname: "h", Ports: []Port{{"p", "TCP", 1}}}},
		}
	}
	if !full().Equal(full()) {
		t.Error("the same Service is not equal")
	}
	for name, change := range map[string]func(*Service){
		"namespace": func(s *Service) { s.Namespace = "" }, "name": func(s *Service) { s.Name = "" }, "external name": func(s *Service) { s.ExternalName = "" },
		"cluster IPs": func(s *Service) { s.ClusterIPs = nil }, "ports": func(s *Service) { s.Ports[0].Number = 2 }, "endpoints": func(s *Service) { s.Endpoints = nil },
		"address": func(s *Service) { s.Endpoints[0].Address = ips("10.88.0.2")[0] }, "host name": func(s *Service) { s.Endpoints[0].Hostname = "" },
		"ports of an endpoint": func(s *Service) { s.Endpoints[0].Ports[0].Name = "" },
	} {
		s := full()
		if change(s); s.Equal(full()) || full().Equal(s) {
			t.Errorf("another %s is equal", name)
		}
	}
	none, service := full(), full()
	none.Endpoints[0].Ports, service.Endpoints[0].Ports = []Port{}, nil // nil: the ports of the Service
	if none.Equal(service) {
		t.Error("an endpoint without ports is equal to one with the ports of the Service")
	}
}

// A name is valid if package dnsmessage can write it.
func TestIsName_AnyText_AsMessagesHaveIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		labels := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "web", strings.Repeat("x", 62), strings.Repeat("x", 63), strings.Repeat("x", 64)}), 0, 6).Draw(t, "labels")
		name := strings.Join(labels, ".") + rapid.SampledFrom([]string{"", "."}).Draw(t, "end")
		n, err := dnsmessage.NewName(name)
		if err == nil {
			b := dnsmessage.NewBuilder(nil, dnsmessage.Header{})
			if err = b.StartQuestions(); err == nil {
				err = b.Question(dnsmessage.Question{Name: n})
			}
		}
		if isName(name) != (err == nil) {
			t.Errorf("%q: %t, want %v", name, isName(name), err)
		}
	})
}
