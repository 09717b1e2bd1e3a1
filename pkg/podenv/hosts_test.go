package podenv

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Shows: C-1.38.6
func TestC_1_38_6_Hostname(t *testing.T) {
	yes, override, wrong := true, "over.ride", "over_ride"
	long, longer := strings.Repeat("a", 62)+"-b", strings.Repeat("x", 60)
	longOverride := longer + "." + longer
	for name, c := range map[string]struct {
		pod            string
		spec           v1.PodSpec
		hostname, fqdn string // or hostname of the error
	}{
		"name":           {"web-n1", v1.PodSpec{}, "web-n1", ""},
		"dots":           {"web.x", v1.PodSpec{}, "web.x", ""},
		"long":           {long, v1.PodSpec{}, long[:62], ""},
		"hostname":       {"web", v1.PodSpec{Hostname: "h"}, "h", ""},
		"subdomain":      {"web", v1.PodSpec{Subdomain: "sub"}, "web", "web.sub.ns.svc.cluster.local"},
		"both":           {"web", v1.PodSpec{Hostname: "h", Subdomain: "sub"}, "h", "h.sub.ns.svc.cluster.local"},
		"as FQDN":        {"web", v1.PodSpec{Subdomain: "sub", SetHostnameAsFQDN: &yes}, "web.sub.ns.svc.cluster.local", "web.sub.ns.svc.cluster.local"},
		"nothing to set": {"web", v1.PodSpec{SetHostnameAsFQDN: &yes}, "web", ""},
		"64 characters":  {longer[:36], v1.PodSpec{Subdomain: "sub", SetHostnameAsFQDN: &yes}, longer[:36] + ".sub.ns.svc.cluster.local", longer[:36] + ".sub.ns.svc.cluster.local"},
		"too long": {
			longer, v1.PodSpec{Subdomain: "sub", SetHostnameAsFQDN: &yes},
			"failed to construct FQDN from pod hostname and cluster domain, FQDN " + longer + ".sub.ns.svc.cluster.local is too long (64 characters is the max, 85 characters requested)", "",
		},
		"override":         {"web", v1.PodSpec{HostnameOverride: &override, Hostname: "h", Subdomain: "sub"}, "over.ride", ""},
		"override as FQDN": {"web", v1.PodSpec{HostnameOverride: &override, SetHostnameAsFQDN: &yes}, "over.ride", ""},
		"long override":    {"web", v1.PodSpec{HostnameOverride: &longOverride}, longOverride[:63], ""},
		"wrong override":   {"web", v1.PodSpec{HostnameOverride: &wrong}, `hostnameOverride "over_ride": `, ""},
		"wrong hostname":   {"web", v1.PodSpec{Hostname: "a\nb"}, `hostname or subdomain "a\nb": `, ""},
		"wrong subdomain":  {"web", v1.PodSpec{Subdomain: "a.b"}, `hostname or subdomain "a.b": `, ""},
		"host network":     {"web", v1.PodSpec{HostNetwork: true, Hostname: "h"}, "", ""},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: c.pod, Namespace: "ns"}, Spec: c.spec}
		hostname, fqdn, err := Hostname(p, "cluster.local")
		if err != nil {
			if c.hostname == "" || !strings.HasPrefix(err.Error(), c.hostname) || hostname != "" {
				t.Errorf("%s: %q, %v", name, hostname, err)
			}
		} else if hostname != c.hostname || fqdn != c.fqdn {
			t.Errorf("%s: %q %q, want %q %q", name, hostname, fqdn, c.hostname, c.fqdn)
		}
	}
}

// Shows: C-1.38.5
func TestC_1_38_5_HostsFile(t *testing.T) {
	const managed = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
	aliases := []v1.HostAlias{{IP: "192.0.2.1", Hostnames: []string{"a", "a.example"}}, {IP: "2001:db8::1", Hostnames: []string{"b"}}}
	const added = "\n# Entries added by HostAliases.\n192.0.2.1\ta\ta.example\n2001:db8::1\tb\n"
	yes, override := true, "other"
	for name, c := range map[string]struct {
		spec   v1.PodSpec
		ips    []string
		domain string
		want   string
	}{
		"plain":          {v1.PodSpec{}, []string{"10.88.0.5"}, "cluster.local", managed + "10.88.0.5\tweb\n"},
		"two families":   {v1.PodSpec{}, []string{"10.88.0.5", "fd00::5"}, "", managed + "10.88.0.5\tweb\nfd00::5\tweb\n"},
		"no address":     {v1.PodSpec{}, nil, "", managed},
		"subdomain":      {v1.PodSpec{Hostname: "h", Subdomain: "sub"}, []string{"10.88.0.5"}, "cluster.local", managed + "10.88.0.5\th.sub.ns.svc.cluster.local\th\n"},
		"as FQDN":        {v1.PodSpec{Subdomain: "sub", SetHostnameAsFQDN: &yes}, []string{"10.88.0.5"}, "cluster.local", managed + "10.88.0.5\tweb.sub.ns.svc.cluster.local\tweb\n"},
		"no domain":      {v1.PodSpec{Subdomain: "sub"}, []string{"10.88.0.5"}, "", managed + "10.88.0.5\tweb.sub.ns.svc.\tweb\n"},
		"override":       {v1.PodSpec{HostnameOverride: &override, Subdomain: "sub"}, []string{"10.88.0.5"}, "cluster.local", managed + "10.88.0.5\tother\n"},
		"aliases":        {v1.PodSpec{HostAliases: aliases}, []string{"10.88.0.5"}, "", managed + "10.88.0.5\tweb\n" + added},
		"host network":   {v1.PodSpec{HostNetwork: true}, []string{"192.0.2.7"}, "", "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n"},
		"host's aliases": {v1.PodSpec{HostNetwork: true, HostAliases: aliases}, nil, "", "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n" + added},
		"wrong name":     {v1.PodSpec{Hostname: "a\n192.0.2.9 b"}, []string{"10.88.0.5"}, "", managed},
	} {
		want := &pod.Spec{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"}, Spec: c.spec}}
		if got := string(HostsFile(want, c.ips, []byte("127.0.0.1 localhost\n"), c.domain)); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", name, got, c.want)
		}
	}
}
