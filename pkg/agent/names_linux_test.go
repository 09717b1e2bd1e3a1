package agent

import (
	"encoding/json"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/service"
)

// Only endpoints that a headless Service publishes have names, with the ports of their pods. A
// Service without an address has no name.
func TestZoneOf_ServicesOfEveryKind_HaveTheirNames(t *testing.T) {
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
		js, err := json.Marshal(zoneOf([]*service.View{&c.view}))
		if err != nil || string(js) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.view.Name, js, err, c.want)
		}
	}
}
