package cri

import (
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The resolver's limits (C-1.38.8); what is past them is cut.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

func hostResolvConf() ([]byte, error) { return os.ReadFile("/etc/resolv.conf") }

// dnsConfig is the pod's resolver configuration; nil gives the pod the host's
// file as it is. Without a cluster there are no cluster servers, so that every
// policy but None starts from the host's file (C-1.38.7); the pod's dnsConfig
// is put behind it (C-1.38.8).
func dnsConfig(p *v1.Pod, host func() ([]byte, error)) (*runtimeapi.DNSConfig, error) {
	extra := p.Spec.DNSConfig
	none := p.Spec.DNSPolicy == v1.DNSNone
	if extra == nil && !none {
		return nil, nil
	}
	c := &runtimeapi.DNSConfig{}
	if !none {
		text, err := host()
		if err != nil {
			return nil, fmt.Errorf("read the host's DNS configuration: %w", err)
		}
		c = parseResolvConf(string(text))
	}
	if extra != nil {
		c.Servers = append(c.Servers, extra.Nameservers...)
		c.Searches = append(c.Searches, extra.Searches...)
		for _, o := range extra.Options {
			text := o.Name
			if o.Value != nil && *o.Value != "" {
				text += ":" + *o.Value
			}
			c.Options = slices.DeleteFunc(c.Options, func(old string) bool {
				name, _, _ := strings.Cut(old, ":")
				return name == o.Name
			})
			c.Options = append(c.Options, text)
		}
	}
	c.Servers = firstOfEach(c.Servers)
	c.Searches = firstOfEach(c.Searches)
	c.Servers = c.Servers[:min(len(c.Servers), maxNameservers)]
	c.Searches = c.Searches[:min(len(c.Searches), maxSearches)]
	for len(strings.Join(c.Searches, " ")) > maxSearchChars {
		c.Searches = c.Searches[:len(c.Searches)-1]
	}
	return c, nil
}

// parseResolvConf reads a resolver file: servers and options add up, the last
// search line wins, trailing dots go (C-1.38.9).
func parseResolvConf(text string) *runtimeapi.DNSConfig {
	c := &runtimeapi.DNSConfig{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			if len(words) == 1 && words[0] == "search" {
				c.Searches = nil
			}
			continue
		}
		switch words[0] {
		case "nameserver":
			c.Servers = append(c.Servers, words[1])
		case "search":
			c.Searches = nil
			for _, s := range words[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				c.Searches = append(c.Searches, s)
			}
		case "options":
			c.Options = append(c.Options, words[1:]...)
		}
	}
	return c
}

func firstOfEach(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
