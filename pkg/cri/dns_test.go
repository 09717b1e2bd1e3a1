package cri

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

const hostFile = `# a comment
search old.example
nameserver 192.0.2.1
search corp.example. home.example
nameserver 192.0.2.2
options ndots:2 rotate
`

func TestC_1_38_8_DNS(t *testing.T) {
	five := "5"
	extra := &v1.PodDNSConfig{
		Nameservers: []string{"192.0.2.1", "192.0.2.9", "192.0.2.10"}, Searches: []string{"home.example", "my.example"},
		Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &five}, {Name: "edns0"}},
	}
	for name, c := range map[string]struct {
		spec v1.PodSpec
		want string
	}{
		"default":           {v1.PodSpec{DNSPolicy: v1.DNSDefault}, "the host's"},
		"cluster first":     {v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, "the host's"}, // C-1.38.7: no cluster
		"with host network": {v1.PodSpec{DNSPolicy: v1.DNSClusterFirstWithHostNet, HostNetwork: true}, "the host's"},
		"none":              {v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: extra}, "[192.0.2.1 192.0.2.9 192.0.2.10] [home.example my.example] [ndots:5 edns0]"},
		"appended": {
			v1.PodSpec{DNSPolicy: v1.DNSDefault, DNSConfig: extra},
			"[192.0.2.1 192.0.2.2 192.0.2.9] [corp.example home.example my.example] [rotate ndots:5 edns0]",
		},
	} {
		got, err := dnsConfig(&v1.Pod{Spec: c.spec}, func() ([]byte, error) { return []byte(hostFile), nil })
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
}

func TestC_1_38_8_DNSLimits(t *testing.T) {
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("s%d.%s.example", i, strings.Repeat("x", 60)))
	}
	c, err := dnsConfig(&v1.Pod{Spec: v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{Searches: many}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Join(c.Searches, " ")); n > 2048 || len(c.Searches) > 32 || len(c.Searches) < 25 {
		t.Errorf("%d searches with %d characters", len(c.Searches), n)
	}
}

func TestDNSWithoutHostFile(t *testing.T) {
	gone := errors.New("gone")
	_, err := dnsConfig(&v1.Pod{Spec: v1.PodSpec{DNSConfig: &v1.PodDNSConfig{}}}, func() ([]byte, error) { return nil, gone })
	if !errors.Is(err, gone) {
		t.Error(err)
	}
}
