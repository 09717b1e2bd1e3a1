package podenv

import (
	"bytes"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Hostname returns the hostname of the pod's sandbox (C-1.38.6) and the pod's FQDN, ""
// when it has no subdomain. The hostname is empty on the host network: the pod has the
// node's. With setHostnameAsFQDN it is the FQDN, and one longer than the kernel's limit
// is an error.
func Hostname(p *v1.Pod, clusterDomain string) (hostname, fqdn string, err error) {
	name, domain, err := names(p, clusterDomain)
	if err != nil {
		return "", "", err
	}
	if domain != "" {
		fqdn = name + "." + domain
	}
	if p.Spec.HostNetwork {
		return "", fqdn, nil
	}
	if fqdn == "" || p.Spec.SetHostnameAsFQDN == nil || !*p.Spec.SetHostnameAsFQDN {
		return name, fqdn, nil
	}
	const longest = 64
	if len(fqdn) > longest {
		return "", "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)", fqdn, longest, len(fqdn))
	}
	return fqdn, fqdn, nil
}

// names returns the pod's short name and its domain, which may be "".
func names(p *v1.Pod, clusterDomain string) (name, domain string, err error) {
	if override := p.Spec.HostnameOverride; override != nil {
		if wrong := validation.IsDNS1123Subdomain(*override); len(wrong) > 0 {
			return "", "", fmt.Errorf("hostnameOverride %q: %s", *override, strings.Join(wrong, "; "))
		}
		return short(*override), "", nil
	}
	for _, value := range []string{p.Spec.Hostname, p.Spec.Subdomain} {
		if wrong := validation.IsDNS1123Label(value); value != "" && len(wrong) > 0 {
			return "", "", fmt.Errorf("hostname or subdomain %q: %s", value, strings.Join(wrong, "; "))
		}
	}
	name = p.Spec.Hostname
	if name == "" {
		name = p.Name
	}
	if p.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", p.Spec.Subdomain, p.Namespace, clusterDomain)
	}
	return short(name), domain, nil
}

// short truncates a name to the longest hostname.
func short(name string) string {
	const longest = 63
	if len(name) <= longest {
		return name
	}
	return strings.TrimRight(name[:longest], "-.")
}

// HostsFile is the pod's /etc/hosts, byte for byte the kubelet's (C-1.38.5): on the
// host network nodeHosts, which is the node's own file, else one with the pod's
// addresses and names; the pod's hostAliases below. A pod whose names are not
// valid, for which Hostname is an error, has no line for its addresses.
func HostsFile(want *pod.Spec, podIPs []string, nodeHosts []byte, clusterDomain string) []byte {
	var b bytes.Buffer
	spec := &want.Pod.Spec
	if spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(nodeHosts)
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n" +
			"127.0.0.1\tlocalhost\n" +
			"::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\n" +
			"fe00::0\tip6-mcastprefix\n" +
			"fe00::1\tip6-allnodes\n" +
			"fe00::2\tip6-allrouters\n")
		name, domain, err := names(want.Pod, clusterDomain)
		for _, ip := range podIPs {
			switch {
			case err != nil: // there is no name to give
			case domain != "":
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, name, domain, name)
			default:
				fmt.Fprintf(&b, "%s\t%s\n", ip, name)
			}
		}
	}
	if len(spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return b.Bytes()
}
