package cri

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The resolver's limits (C-1.38.8); the excess is cut.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
	maxSearchName  = 253 // resolvers abort over longer ones
)

// hostResolvConf is the file that a pod gets unchanged if its spec and the configuration
// ask for nothing else.
const hostResolvConf = "/etc/resolv.conf"

// dns holds the node's part of pods' resolver configurations (C-1.38.7).
type dns struct {
	servers []string // of the cluster; none where there is no cluster
	domain  string   // of the cluster; may be ""
	file    string   // the host's configuration; "" for none
	read    func(file string) ([]byte, error)
}

func (r *Runtime) dns() dns {
	d := dns{servers: r.cfg.ClusterDNS, domain: r.cfg.ClusterDomain, file: hostResolvConf, read: readResolvConf}
	if r.cfg.ResolvConf != nil {
		d.file = *r.cfg.ResolvConf
	}
	if len(d.servers) == 0 && r.cfg.OwnDNS != nil {
		if servers, domain := r.cfg.OwnDNS(); len(servers) > 0 {
			d.servers, d.domain = servers, domain
		}
	}
	return d
}

func readResolvConf(file string) ([]byte, error) {
	const most = 10 << 20
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("%s is larger than %d bytes", file, most)
	}
	return text, err
}

// config is the pod's resolver configuration; nil gives the pod the host's file unchanged.
// With a policy for the cluster, the cluster's servers replace the host's, ndots:5 replaces
// the host's options, and the cluster's domains come before the host's. Without cluster
// servers, such a policy means the host's configuration (C-1.38.7). The pod's dnsConfig is
// added last (C-1.38.8). cut has one sentence for each limit that was exceeded.
func (d dns) config(p *v1.Pod) (c *runtimeapi.DNSConfig, cut []string, err error) {
	extra, policy := p.Spec.DNSConfig, p.Spec.DNSPolicy
	none := policy == v1.DNSNone
	cluster := len(d.servers) > 0 && (policy == v1.DNSClusterFirstWithHostNet || policy == v1.DNSClusterFirst && !p.Spec.HostNetwork)
	if extra == nil && !none && !cluster && d.file == hostResolvConf {
		return nil, nil, nil
	}
	c = &runtimeapi.DNSConfig{}
	if d.file != "" && !none {
		text, err := d.read(d.file)
		if err != nil {
			return nil, nil, fmt.Errorf("read the host's DNS configuration: %w", err)
		}
		c = parseResolvConf(string(text))
	}
	switch {
	case none:
	case cluster:
		if d.domain != "" {
			c.Searches = slices.Concat([]string{p.Namespace + ".svc." + d.domain, "svc." + d.domain, d.domain}, c.Searches)
		}
		c.Servers, c.Options = slices.Clone(d.servers), []string{"ndots:5"}
	case d.file == "":
		c.Servers, c.Searches = []string{"127.0.0.1"}, []string{"."}
	}
	if extra != nil {
		c.Servers = append(c.Servers, extra.Nameservers...)
		c.Searches = append(c.Searches, extra.Searches...)
		for _, o := range extra.Options {
			text := o.Name
			if o.Value != nil && *o.Value != "" {
				text += ":" + *o.Value
			}
			c.Options = withOption(c.Options, text)
		}
	}
	c.Servers, c.Searches = firstOfEach(c.Servers), firstOfEach(c.Searches)
	return c, limit(c), nil
}

// limit cuts the excess over the resolver's limits, and reports it.
func limit(c *runtimeapi.DNSConfig) (cut []string) {
	if len(c.Servers) > maxNameservers {
		c.Servers = c.Servers[:maxNameservers]
		cut = append(cut, "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "+strings.Join(c.Servers, " "))
	}
	had := len(c.Searches)
	c.Searches = c.Searches[:min(had, maxSearches)]
	c.Searches = slices.DeleteFunc(c.Searches, func(s string) bool { return len(s) > maxSearchName })
	for len(strings.Join(c.Searches, " ")) > maxSearchChars {
		c.Searches = c.Searches[:len(c.Searches)-1]
	}
	if len(c.Searches) < had {
		cut = append(cut, "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "+strings.Join(c.Searches, " "))
	}
	return cut
}

// warnOmitted warns about the parts of a pod's resolver configuration that were cut.
func (r *Runtime) warnOmitted(p *v1.Pod, warn pod.Warn) {
	_, cut, _ := r.dns().config(p) // the caller has reported this error
	for _, what := range cut {
		warn.Report("DNSConfigForming", what)
		r.cfg.Log.Warn("Resolver limits exceeded", "pod", pod.KeyOf(p).String(), "reason", "DNSConfigForming", "message", what)
	}
}

// parseResolvConf reads a resolver file: servers and options add up, the last search line
// and the last option of a name win, trailing dots are removed (C-1.38.9).
func parseResolvConf(text string) *runtimeapi.DNSConfig {
	c := &runtimeapi.DNSConfig{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if len(words) > 1 {
				c.Servers = append(c.Servers, words[1])
			}
		case "search":
			c.Searches = nil
			for _, s := range words[1:] {
				if s != "." {
					c.Searches = append(c.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range words[1:] {
				c.Options = withOption(c.Options, o)
			}
		}
	}
	return c
}

// withOption appends an option, "name" or "name:value", and replaces one of the same name.
func withOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	options = slices.DeleteFunc(options, func(old string) bool {
		was, _, _ := strings.Cut(old, ":")
		return was == name
	})
	return append(options, option)
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
