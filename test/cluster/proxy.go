package cluster

import (
	"context"
	"os/exec"
	"slices"
	"testing"
)

// proxies are the kube-proxies that this test binary has started and not yet ended. The tests that
// use them run one after the other.
var proxies []*Process

// KubeProxy starts kube-proxy for a node, so that service addresses answer; of a flag in more
// arguments, the last one wins. Its rules in the packet filter are removed with the test. Two kube-proxies replace each other's rules, so one that
// a shared cluster has started pauses until the test ends.
func (c *Cluster) KubeProxy(t testing.TB, node string, more ...string) *Process {
	t.Helper()
	WithoutKubeProxy(t)
	metrics := address(t)
	args := []string{
		"--kubeconfig=" + c.Kubeconfig(t, Identity{User: "system:kube-proxy"}), "--hostname-override=" + node,
		"--proxy-mode=iptables", "--masquerade-all", "--healthz-bind-address=", "--metrics-bind-address=" + metrics,
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
	}
	t.Cleanup(func() { removeProxyRules(t) })
	p := newProcess(t, "kube-proxy", c.dir, append(args, more...), func(ctx context.Context) error { return answers(ctx, "http://"+metrics+"/proxyMode") })
	p.Start(t)
	proxies = append(proxies, p)
	t.Cleanup(func() { proxies = slices.DeleteFunc(proxies, func(of *Process) bool { return of == p }) })
	return p
}

// WithoutKubeProxy stops the kube-proxies of other clusters and removes their rules, because an agent
// without a cluster serves no Services beside a kube-proxy. They start again when the test ends.
func WithoutKubeProxy(t testing.TB) {
	t.Helper()
	for _, p := range proxies {
		if !p.Runs() {
			continue
		}
		p.Terminate(t)
		t.Cleanup(func() {
			if err := p.start(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("start the other cluster's kube-proxy again: %v", err)
			}
		})
		removeProxyRules(t)
	}
}

func removeProxyRules(t testing.TB) {
	t.Helper()
	if out, err := exec.Command(program(t, "kube-proxy"), "--cleanup").CombinedOutput(); err != nil {
		t.Errorf("kube-proxy --cleanup: %v\n%s", err, out)
	}
}
