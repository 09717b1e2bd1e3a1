package cri

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const hostFile = `# a comment
search old.example
nameserver 192.0.2.1
options timeout:1 ndots:1
search corp.example. . home.example
nameserver 192.0.2.2
nameserver
options ndots:2 rotate
`

func dnsOf(file string, servers ...string) dns {
	d := dns{file: file, servers: servers, read: func(string) ([]byte, error) { return []byte(hostFile), nil }}
	if len(servers) > 0 {
		d.domain = "cluster.local"
	}
	return d
}

// Shows: C-1.38.7
func TestC_1_38_7_DNS(t *testing.T) {
	five, empty := "5", ""
	extra := &v1.PodDNSConfig{
		Nameservers: []string{"192.0.2.1", "192.0.2.9", "192.0.2.10"}, Searches: []string{"home.example", "my.example"},
		Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &five}, {Name: "edns0"}, {Name: "timeout", Value: &empty}},
	}
	const host, cluster = "[192.0.2.1 192.0.2.2] [corp.example home.example] [timeout:1 ndots:2 rotate]",
		"[10.96.0.10 fd00::10] [ns.svc.cluster.local svc.cluster.local cluster.local corp.example home.example] [ndots:5]"
	no, with := dnsOf(hostResolvConf), dnsOf(hostResolvConf, "10.96.0.10", "fd00::10")
	nameless := with
	nameless.domain = ""
	for name, c := range map[string]struct {
		dns  dns
		spec v1.PodSpec
		want string
	}{
		"default":                  {no, v1.PodSpec{DNSPolicy: v1.DNSDefault}, "the host's"},
		"no cluster":               {no, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, "the host's"},
		"no cluster, host network": {no, v1.PodSpec{DNSPolicy: v1.DNSClusterFirstWithHostNet, HostNetwork: true}, "the host's"},
		"none":                     {no, v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: extra}, "[192.0.2.1 192.0.2.9 192.0.2.10] [home.example my.example] [ndots:5 edns0 timeout]"},
		"none, cluster":            {with, v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: extra}, "[192.0.2.1 192.0.2.9 192.0.2.10] [home.example my.example] [ndots:5 edns0 timeout]"},
		"appended": {
			no, v1.PodSpec{DNSPolicy: v1.DNSDefault, DNSConfig: extra},
			"[192.0.2.1 192.0.2.2 192.0.2.9] [corp.example home.example my.example] [rotate ndots:5 edns0 timeout]",
		},
		"cluster":                   {with, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, cluster},
		"cluster, host network":     {with, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst, HostNetwork: true}, "the host's"},
		"cluster with host network": {with, v1.PodSpec{DNSPolicy: v1.DNSClusterFirstWithHostNet, HostNetwork: true}, cluster},
		"cluster, default":          {with, v1.PodSpec{DNSPolicy: v1.DNSDefault}, "the host's"},
		"cluster without a domain":  {nameless, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, "[10.96.0.10 fd00::10] [corp.example home.example] [ndots:5]"},
		"cluster, appended": {
			with, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst, DNSConfig: extra},
			"[10.96.0.10 fd00::10 192.0.2.1] [ns.svc.cluster.local svc.cluster.local cluster.local corp.example home.example my.example] [ndots:5 edns0 timeout]",
		},
		"another file":         {dnsOf("/run/resolv.conf"), v1.PodSpec{DNSPolicy: v1.DNSDefault}, host},
		"another file, first":  {dnsOf("/run/resolv.conf"), v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, host},
		"no file":              {dnsOf(""), v1.PodSpec{DNSPolicy: v1.DNSDefault}, "[127.0.0.1] [.] []"},
		"no file, no cluster":  {dnsOf(""), v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, "[127.0.0.1] [.] []"},
		"no file, but cluster": {dnsOf("", "10.96.0.10"), v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, "[10.96.0.10] [ns.svc.cluster.local svc.cluster.local cluster.local] [ndots:5]"},
		"no file, none":        {dnsOf(""), v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{Nameservers: []string{"192.0.2.9"}}}, "[192.0.2.9] [] []"},
	} {
		got, _, err := c.dns.config(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: c.spec})
		if err != nil {
			t.Fatal(err)
		}
		text := "the host's"
		if got != nil {
			text = fmt.Sprint(got.Servers, got.Searches, got.Options)
		}
		if text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
	if got := fmt.Sprint(with.servers); got != "[10.96.0.10 fd00::10]" {
		t.Errorf("one pod's servers are left with the next: %s", got)
	}
}

// Shows: C-1.38.8
func TestC_1_38_8_DNSLimits(t *testing.T) {
	name := func(i, length int) string {
		text := fmt.Sprintf("s%d.", i)
		return text + strings.Repeat("x", length-len(text))
	}
	names := func(n, length int) (out []string) {
		for i := range n {
			out = append(out, name(i, length))
		}
		return out
	}
	for title, c := range map[string]struct {
		extra    v1.PodDNSConfig
		searches []string
		servers  int
		cut      string
	}{
		"within":        {v1.PodDNSConfig{Nameservers: []string{"a", "b", "c", "a"}, Searches: names(32, 60)}, names(32, 60), 3, ""},
		"servers":       {v1.PodDNSConfig{Nameservers: []string{"a", "b", "c", "d"}}, nil, 3, "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: a b c"},
		"searches":      {v1.PodDNSConfig{Searches: names(40, 10)}, names(32, 10), 0, "Search Line limits were exceeded"},
		"characters":    {v1.PodDNSConfig{Searches: names(32, 64)}, names(31, 64), 0, "Search Line limits were exceeded"}, // 32 * 65 - 1 > 2048
		"all of them":   {v1.PodDNSConfig{Searches: names(31, 65)[:31]}, names(31, 65), 0, ""},                            // 31 * 66 - 1 = 2045
		"253":           {v1.PodDNSConfig{Searches: []string{name(1, 253)}}, []string{name(1, 253)}, 0, ""},
		"254":           {v1.PodDNSConfig{Searches: []string{name(1, 254), "b"}}, []string{"b"}, 0, "the applied search line is: b"},
		"counted first": {v1.PodDNSConfig{Searches: append([]string{name(1, 254)}, names(32, 10)...)}, names(31, 10), 0, "Search Line limits were exceeded"},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: &c.extra}}
		got, cut, err := dnsOf("").config(p)
		if err != nil {
			t.Fatal(err)
		}
		reported := strings.Join(cut, "\n")
		if fmt.Sprint(got.Searches) != fmt.Sprint(c.searches) || len(got.Servers) != c.servers || !strings.Contains(reported, c.cut) || (reported == "") != (c.cut == "") {
			t.Errorf("%s: %d searches, %d servers, reported %q", title, len(got.Searches), len(got.Servers), reported)
		}
	}
}

// Shows: C-1.38.8
func TestC_1_38_8_TruncatedConfigIsReported(t *testing.T) {
	var log strings.Builder
	r := &Runtime{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"},
		Spec:       v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{Nameservers: []string{"a", "b", "c", "d"}}},
	}
	warned := ""
	r.warnOmitted(p, func(reason, message string) { warned += reason + ": " + message })
	if want := "DNSConfigForming: Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: a b c"; warned != want {
		t.Errorf("warned %q", warned)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "pod=ns/p reason=DNSConfigForming") {
		t.Errorf("reported %q", got)
	}
}

// Shows: C-1.38.9
func TestC_1_38_9_ResolvConfFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	r := &Runtime{cfg: Config{ResolvConf: &file}}
	p := &v1.Pod{Spec: v1.PodSpec{DNSPolicy: v1.DNSDefault}}
	if _, _, err := r.dns().config(p); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(file, []byte(hostFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, _, err := r.dns().config(p); err != nil || fmt.Sprint(c.GetServers()) != "[192.0.2.1 192.0.2.2]" {
		t.Errorf("%v, %v", c, err)
	}
	if err := os.Truncate(file, 11<<20); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.dns().config(p); err == nil {
		t.Error("a file of 11 MiB is read")
	}
	if c, _, err := (&Runtime{}).dns().config(p); c != nil || err != nil {
		t.Errorf("a pod that asks for nothing: %v, %v", c, err)
	}
}

// The node's own DNS server serves new pods while it runs, as a cluster's would. A cluster's wins.
//
// Shows: C-1.38.7
func TestC_1_38_7_OwnDNS(t *testing.T) {
	file, runs := filepath.Join(t.TempDir(), "resolv.conf"), true
	if err := os.WriteFile(file, []byte(hostFile), 0o600); err != nil {
		t.Fatal(err)
	}
	own := func() ([]string, string) {
		if !runs {
			return nil, "cluster.local"
		}
		return []string{"10.96.0.10"}, "cluster.local"
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}}
	text := func(cfg Config) string {
		cfg.ResolvConf = &file
		c, _, err := (&Runtime{cfg: cfg}).dns().config(p)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(c.Servers, c.Searches, c.Options)
	}
	const searches = "ns.svc.cluster.local svc.cluster.local cluster.local corp.example home.example"
	if got := text(Config{OwnDNS: own}); got != "[10.96.0.10] ["+searches+"] [ndots:5]" {
		t.Errorf("while it runs: %s", got)
	}
	if got := text(Config{OwnDNS: own, ClusterDNS: []string{"192.0.2.53"}, ClusterDomain: "their.example"}); !strings.HasPrefix(got, "[192.0.2.53] [ns.svc.their.example ") {
		t.Errorf("with a cluster's: %s", got)
	}
	runs = false
	if got := text(Config{OwnDNS: own}); got != "[192.0.2.1 192.0.2.2] [corp.example home.example] [timeout:1 ndots:2 rotate]" {
		t.Errorf("while it does not run: %s", got)
	}
}
