package agent

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/service"
)

// Only endpoints that a headless Service publishes have names, with the ports of their pods. A
// Service without an address has no name.
func TestServiceNames_ServicesOfEveryKind_HaveTheirNames(t *testing.T) {
	http := []service.Port{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}}
	target := []service.EndpointPort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 8080}}
	ip := netip.MustParseAddr
	for _, c := range []struct {
		view service.View
		want string
	}{
		{
			service.View{Namespace: "a", Name: "cluster", ClusterIPs: []netip.Addr{ip("10.96.1.1")}, Ports: http, Endpoints: []service.Endpoint{{Addr: ip("10.88.0.5"), Ready: true, Ports: target}}},
			`[{"namespace":"a","name":"cluster","clusterIPs":["10.96.1.1"],"ports":[{"name":"http","protocol":"TCP","number":80}]}]`,
		},
		{service.View{Namespace: "a", Name: "refused", Ports: http}, `[]`},
		{service.View{Namespace: "a", Name: "outside", ExternalName: "example.com"}, `[{"namespace":"a","name":"outside","externalName":"example.com"}]`},
		{
			service.View{Namespace: "a", Name: "db", Headless: true, Ports: http, Endpoints: []service.Endpoint{
				{Addr: ip("10.88.0.5"), Hostname: "db-0", Ready: true, Ports: target}, {Addr: ip("10.88.0.6"), Serving: true, Terminating: true}, {Addr: ip("10.88.0.7"), Ready: true},
			}},
			`[{"namespace":"a","name":"db","ports":[{"name":"http","protocol":"TCP","number":80}],"endpoints":[` +
				`{"address":"10.88.0.5","hostname":"db-0","ports":[{"name":"http","protocol":"TCP","number":8080}]},{"address":"10.88.0.7","ports":[]}]}]`,
		},
	} {
		js, err := json.Marshal((&serviceNames{}).of([]*service.View{&c.view}))
		if err != nil || string(js) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.view.Name, js, err, c.want)
		}
	}
}

// readyViews returns Services with two endpoints each. ready says whether the first endpoint of each is ready.
func readyViews(ready bool) []*service.View {
	ip := netip.MustParseAddr
	ends := []service.Endpoint{{Addr: ip("10.88.0.5"), Ready: ready}, {Addr: ip("10.88.0.6"), Ready: true}}
	return []*service.View{
		{Namespace: "b", Name: "cluster", ClusterIPs: []netip.Addr{ip("10.96.1.1")}, Endpoints: ends},
		{Namespace: "a", Name: "db", Headless: true, Endpoints: ends},
		{Namespace: "a", Name: "waits"},
	}
}

// If a pod becomes ready, only headless Services get other names. All others keep their pointers, so
// the DNS server gets no record of them.
func TestServiceNames_PodBecomesReady_OnlyHeadlessServicesChange(t *testing.T) {
	var names serviceNames
	views := readyViews(false)
	before := names.of(views)
	if len(before) != 2 || before[0].Name != "db" || before[1].Name != "cluster" {
		t.Fatalf("%+v", before)
	}
	if again := names.of(views); !slices.Equal(again, before) {
		t.Error("the same views have other names")
	}
	after := names.of(readyViews(true))
	if after[0] == before[0] || len(after[0].Endpoints) != 2 {
		t.Errorf("the headless Service has the names %+v", after[0])
	}
	if after[1] != before[1] {
		t.Error("the Service with a cluster IP has other names")
	}
	left := names.of(readyViews(true)[:1])
	if len(left) != 1 || left[0] != before[1] || len(names.known) != 1 {
		t.Errorf("Services that are gone have names: %v, %v", left, names.known)
	}
}

// A change without effect on names sends no state to the DNS server.
func TestDNSServer_NamesStay_NothingIsPushed(t *testing.T) {
	n, _ := usedNames(t, func(*config.Config) {})
	push := func(change func()) (pushed bool) {
		before := n.pushed
		change()
		return n.pushed != before
	}
	cluster := readyViews(false)[:1]
	if !push(n.push) || push(n.push) {
		t.Error("before the Services are known, the state is pushed once")
	}
	if !push(func() { n.setServices(nil, false) }) {
		t.Error("the Services are known to be none now: the process needs it")
	}
	if !push(func() { n.setServices(cluster, false) }) || !push(func() { n.setServices(cluster, true) }) {
		t.Error("a change of the Services is not pushed")
	}
	if push(func() { n.setServices(readyViews(true)[:1], true) }) {
		t.Error("a pod of a Service with a cluster IP is ready: its names stay")
	}
	if !push(func() { n.setServices(readyViews(true), true) }) {
		t.Error("a new Service is not pushed")
	}
	serial := n.serial
	if push(n.push) || n.serial != serial {
		t.Error("the same names have another serial number")
	}
}
