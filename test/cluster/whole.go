package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/wait"
)

// serviceAddress is the API server's own service.
const serviceAddress = "10.96.0.1"

// Whole starts the control plane of a complete cluster: all APIs and the usual admission, the
// node authorizer and NodeRestriction, the scheduler and the controllers, bootstrap tokens,
// an aggregation layer. address is one of this machine that its pods can reach.
func Whole(address string) Option {
	return func(s *settings) { s.whole, s.address = true, address }
}

// VerifyNodes makes the API server reject a node's serving certificate that the cluster's
// authority has not signed.
func VerifyNodes() Option { return func(s *settings) { s.verifying = true } }

// ControllerArgs adds to kube-controller-manager's arguments; the last of one flag
// wins.
func ControllerArgs(args ...string) Option {
	return func(s *settings) { s.controllers = append(s.controllers, args...) }
}

// auditPolicy records each request, its user and its result, and watches when they begin.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// wholeArguments returns the arguments of an API server of a whole cluster.
func (c *Cluster) wholeArguments(t testing.TB, host, port string, server Pair, accounts string) []string {
	t.Helper()
	kubelet := c.Authority.Issue(t, "apiserver-kubelet-client", Identity{User: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}})
	front := NewAuthority(t, c.dir, "front-proxy-ca")
	proxy := front.Issue(t, "front-proxy-client", Identity{User: "front-proxy-client"})
	policy := filepath.Join(c.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	c.AuditLog = filepath.Join(c.dir, "audit.jsonl")
	return []string{
		"--etcd-servers=" + strings.Join(c.Etcd.Endpoints, ","),
		"--bind-address=" + host, "--advertise-address=" + host, "--secure-port=" + port,
		"--tls-cert-file=" + server.CertFile, "--tls-private-key-file=" + server.KeyFile,
		"--client-ca-file=" + c.Authority.File,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + accounts, "--service-account-signing-key-file=" + accounts,
		"--service-cluster-ip-range=10.96.0.0/24",
		"--kubelet-client-certificate=" + kubelet.CertFile, "--kubelet-client-key=" + kubelet.KeyFile,
		"--kubelet-preferred-address-types=InternalIP,Hostname",
		"--requestheader-client-ca-file=" + front.File, "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + proxy.CertFile, "--proxy-client-key-file=" + proxy.KeyFile, "--enable-aggregator-routing",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth",
		"--audit-policy-file=" + policy, "--audit-log-path=" + c.AuditLog,
		"--profiling=false", "--allow-privileged", "--etcd-compaction-interval=0",
	}
}

// startControllers starts the controllers and the scheduler, and returns when the default
// service account exists.
func (c *Cluster) startControllers(t testing.TB, args []string) {
	t.Helper()
	file := func(user string) string { return c.Kubeconfig(t, Identity{User: user}) }
	accounts := filepath.Join(c.dir, "service-accounts.key")
	c.Controllers = newProcess(t, "kube-controller-manager", c.dir, append([]string{
		"--kubeconfig=" + file("system:kube-controller-manager"),
		"--use-service-account-credentials", "--leader-elect=false", "--secure-port=0",
		"--service-account-private-key-file=" + accounts, "--root-ca-file=" + c.Authority.File,
		"--cluster-signing-cert-file=" + c.Authority.File, "--cluster-signing-key-file=" + c.Authority.KeyFile,
		"--service-cluster-ip-range=10.96.0.0/24", "--allocate-node-cidrs=false",
	}, args...), func(ctx context.Context) error {
		var account v1.ServiceAccount
		return c.Client(t).Get().Namespace("default").Resource("serviceaccounts").Name("default").Do(ctx).Into(&account)
	})
	c.Scheduler = newProcess(t, "kube-scheduler", c.dir, []string{
		"--kubeconfig=" + file("system:kube-scheduler"), "--leader-elect=false", "--secure-port=0",
	}, func(context.Context) error { return nil })
	c.Scheduler.Start(t)
	// One refused request ends the controller manager in its first moments: a server that has
	// just started may not have loaded the RBAC rules yet.
	wait.NoError(t, func() error { return c.Controllers.start(t.Context()) })
}

// Kubectl returns a kubectl command of the administrator, ready to run. It reads no files of
// the person who runs the test.
func (c *Cluster) Kubectl(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return c.KubectlAs(t, c.AdminKubeconfig(t), args...)
}

// KubectlAs is Kubectl for the user of a kubeconfig file.
func (c *Cluster) KubectlAs(t testing.TB, kubeconfig string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program(t, "kubectl"), args...)
	cmd.Env = append(os.Environ(), seldomCollects, "KUBECONFIG="+kubeconfig, "HOME="+c.dir, "KUBECTL_KUBERC=false")
	return cmd
}

// Apply applies manifests to the cluster.
func (c *Cluster) Apply(t testing.TB, manifests string) {
	t.Helper()
	cmd := c.Kubectl(t, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// BootstrapKubeconfig returns the file with which a new node requests its certificate: it
// holds a bootstrap token, and the cluster approves the token's requests, as kubeadm sets it
// up.
func (c *Cluster) BootstrapKubeconfig(t testing.TB) string {
	t.Helper()
	const id, secret = "abcdef", "0123456789abcdef"
	binding := func(name, role, group string) string {
		return fmt.Sprintf(`---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %q}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: %q}]
`, name, role, group)
	}
	c.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Secret
type: bootstrap.kubernetes.io/token
metadata: {namespace: kube-system, name: bootstrap-token-%s}
stringData: {token-id: %s, token-secret: %s, usage-bootstrap-authentication: "true", auth-extra-groups: "system:bootstrappers:test"}
`, id, id, secret)+
		binding("test:bootstrap", "system:node-bootstrapper", "system:bootstrappers:test")+
		binding("test:approve", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers:test")+
		binding("test:renew", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"))
	file := filepath.Join(c.dir, "bootstrap.kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: bootstrap, user: {token: %s.%s}}]
contexts: [{name: test, context: {cluster: test, user: bootstrap}}]
current-context: test
`, c.URL, c.Authority.File, id, secret)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
