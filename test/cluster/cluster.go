// Package cluster gives a test its own control plane: a real kube-apiserver and a real etcd,
// built by hack/cluster from their modules. Both can be killed, paused, restarted and
// restored to an older state.
//
//	c := cluster.Start(t)
//	file := c.NodeKubeconfig(t, "node-1")
//	c.CreatePod(t, pod)
//	c.APIServer.Kill(t)
//
// StartEtcd starts an etcd alone. Everything ends with the test, and with the test's process
// when that is killed.
//
// No test is skipped: without bin/cluster, a test that needs it fails and names the make
// target.
package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Cluster is one kube-apiserver and its etcd. Without Whole no controller runs: none binds,
// evicts or collects a pod, or makes a service account.
type Cluster struct {
	URL       string // of the API server
	Etcd      *Etcd
	APIServer *Process
	Authority *Authority // of the API server and of its clients

	// Of a whole cluster.
	Controllers *Process // kube-controller-manager
	Scheduler   *Process
	AuditLog    string // the API server's requests, one JSON object a line

	dir    string
	admin  string // kubeconfig of system:masters
	client *rest.RESTClient
}

// settings are the settings that options change.
type settings struct {
	rbac bool
	apis []string
	args []string
	etcd EtcdOptions
	// address is the API server's; "" is a loopback address. whole starts controllers.
	address     string
	whole       bool
	controllers []string // arguments of kube-controller-manager
	verifying   bool     // the API server trusts node certificates of its own authority only
}

// Option changes what Start starts.
type Option func(*settings)

// RBAC makes the API server authorize as a real one does: the node authorizer, RBAC, and the
// NodeRestriction plugin. Without it every user may do everything.
func RBAC() Option { return func(s *settings) { s.rbac = true } }

// APIs serves group versions beside the few that a node needs, as "apps/v1".
func APIs(versions ...string) Option {
	return func(s *settings) { s.apis = append(s.apis, versions...) }
}

// APIServerArgs adds to the API server's arguments; the last of one flag wins.
func APIServerArgs(args ...string) Option {
	return func(s *settings) { s.args = append(s.args, args...) }
}

// EtcdArgs adds to etcd's arguments.
func EtcdArgs(args ...string) Option {
	return func(s *settings) { s.etcd.Args = append(s.etcd.Args, args...) }
}

// served are the group versions that a node uses.
var served = []string{
	"v1", "authentication.k8s.io/v1", "authorization.k8s.io/v1", "coordination.k8s.io/v1",
	"apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1", "certificates.k8s.io/v1", "discovery.k8s.io/v1", "events.k8s.io/v1", "networking.k8s.io/v1", "node.k8s.io/v1",
}

// unwanted are the admission plugins that change or reject pods on behalf of controllers that
// do not run here.
const unwanted = "LimitRanger,ServiceAccount,TaintNodesByCondition,PodSecurity,Priority,DefaultStorageClass," +
	"StorageObjectInUseProtection,PodGroupProtection,PersistentVolumeClaimResize,RuntimeClass,CertificateApproval," +
	"CertificateSigning,ClusterTrustBundleAttest,CertificateSubjectRestriction,DefaultIngressClass,PodTopologyLabels," +
	"PodGroupWorkloadExists,NodeDeclaredFeatureValidator,JobValidation,MutatingAdmissionPolicy,MutatingAdmissionWebhook," +
	"ValidatingAdmissionPolicy,ValidatingAdmissionWebhook,ResourceQuota"

// Start starts a cluster for this test alone, and returns when it answers and the namespace
// default exists.
func Start(t testing.TB, options ...Option) *Cluster {
	t.Helper()
	var s settings
	for _, o := range options {
		o(&s)
	}
	program(t, "kube-apiserver") // reports a missing program before anything starts
	c := &Cluster{dir: t.TempDir(), Etcd: StartEtcd(t, s.etcd)}
	c.Authority = NewAuthority(t, c.dir, "ca")
	listen := address(t)
	if s.whole {
		_, port, _ := net.SplitHostPort(listen)
		listen = net.JoinHostPort(s.address, port)
	}
	c.URL = "https://" + listen
	admin := c.Authority.Issue(t, "admin", Identity{User: "admin", Groups: []string{"system:masters"}})
	c.admin = c.kubeconfig(t, "admin", admin)
	c.APIServer = newProcess(t, "kube-apiserver", c.dir, c.arguments(t, s, listen), c.readiness(t, admin))
	c.APIServer.Start(t)
	c.client = c.ClientAs(t, c.admin)
	c.createNamespace(t, "default")
	if s.whole {
		c.startControllers(t, s.controllers)
	}
	return c
}

// arguments returns the API server's.
func (c *Cluster) arguments(t testing.TB, s settings, listen string) []string {
	t.Helper()
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		t.Fatal(err)
	}
	server := c.Authority.Issue(t, "apiserver", Identity{User: "apiserver", Hosts: []string{host, "localhost", "kubernetes.default.svc", serviceAddress}})
	accounts := filepath.Join(c.dir, "service-accounts.key")
	writeKey(t, accounts, newKey(t))

	if s.whole {
		args := c.wholeArguments(t, host, port, server, accounts)
		if s.verifying {
			args = append(args, "--kubelet-certificate-authority="+c.Authority.File)
		}
		return append(args, s.args...)
	}
	apis := append([]string{"api/all=false"}, enabled(served)...)
	apis = append(apis, enabled(s.apis)...)
	args := []string{
		"--etcd-servers=" + strings.Join(c.Etcd.Endpoints, ","),
		"--bind-address=" + host, "--advertise-address=" + host, "--secure-port=" + port,
		"--tls-cert-file=" + server.CertFile, "--tls-private-key-file=" + server.KeyFile,
		"--client-ca-file=" + c.Authority.File,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + accounts, "--service-account-signing-key-file=" + accounts,
		"--service-cluster-ip-range=10.96.0.0/24",
		"--disable-admission-plugins=" + unwanted,
		"--enable-priority-and-fairness=false", "--endpoint-reconciler-type=none",
		"--etcd-compaction-interval=0", "--profiling=false", "--allow-privileged",
	}
	if s.rbac {
		apis = append(apis, "rbac.authorization.k8s.io/v1=true", "storage.k8s.io/v1=true", "resource.k8s.io/v1=true")
		args = append(args, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	} else {
		args = append(args, "--authorization-mode=AlwaysAllow")
	}
	args = append(args, "--runtime-config="+strings.Join(apis, ","))
	return append(args, s.args...)
}

func enabled(versions []string) []string {
	var all []string
	for _, v := range versions {
		all = append(all, v+"=true")
	}
	return all
}

// readiness returns a function that asks the API server whether it is ready.
func (c *Cluster) readiness(t testing.TB, admin Pair) func(context.Context) error {
	t.Helper()
	config := c.Authority.TLS(t, admin)
	return func(ctx context.Context) error { return secureAnswers(ctx, c.URL+"/readyz", config) }
}

// secureAnswers is answers over TLS.
func secureAnswers(ctx context.Context, url string, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// Restart kills both programs and starts them again.
func (c *Cluster) Restart(t testing.TB) {
	t.Helper()
	c.APIServer.Kill(t)
	c.Etcd.Restart(t)
	c.APIServer.Start(t)
}

// Snapshot copies etcd's data. The API server loses its etcd for a moment and reconnects.
func (c *Cluster) Snapshot(t testing.TB) Snapshot { t.Helper(); return c.Etcd.Snapshot(t) }

// Restore restores the cluster to s, as an administrator does it: with the API server
// stopped, which would otherwise serve from its memory.
func (c *Cluster) Restore(t testing.TB, s Snapshot) {
	t.Helper()
	c.APIServer.Kill(t)
	c.Etcd.Restore(t, s)
	c.APIServer.Start(t)
}

// Compact makes etcd forget every revision before the newest: a watch that is
// older gets 410 Gone, once the API server's memory does not hold it either
// (restart it).
func (c *Cluster) Compact(t testing.TB) { t.Helper(); c.Etcd.Compact(t) }

// AdminKubeconfig returns the file of the administrator.
func (c *Cluster) AdminKubeconfig(testing.TB) string { return c.admin }

// NodeKubeconfig returns the file of the node's agent, system:node:NODE.
func (c *Cluster) NodeKubeconfig(t testing.TB, node string) string {
	t.Helper()
	return c.Kubeconfig(t, Identity{User: "system:node:" + node, Groups: []string{"system:nodes"}})
}

// Kubeconfig returns the file of a user with a certificate of c.Authority. It names
// certificate and key by path; issuing again for the same user replaces these files.
func (c *Cluster) Kubeconfig(t testing.TB, id Identity) string {
	t.Helper()
	name := strings.ReplaceAll(id.User, ":", "-")
	return c.kubeconfig(t, name, c.Authority.Issue(t, name, id))
}

func (c *Cluster) kubeconfig(t testing.TB, name string, p Pair) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: c.URL, CertificateAuthority: c.Authority.File}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: p.CertFile, ClientKey: p.KeyFile}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: name}
	config.CurrentContext = "test"
	file := filepath.Join(c.dir, name+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Config returns the client configuration of a kubeconfig file.
func (c *Cluster) Config(t testing.TB, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = -1, 0 // tests do not wait for a limiter
	return config
}

// Client returns a client of the core group, for the administrator.
func (c *Cluster) Client(testing.TB) *rest.RESTClient { return c.client }

// ClientAs returns a client of the core group with the rights of a kubeconfig
// file's user.
func (c *Cluster) ClientAs(t testing.TB, kubeconfig string) *rest.RESTClient {
	t.Helper()
	config := c.Config(t, kubeconfig)
	config.APIPath, config.GroupVersion = "/api", &v1.SchemeGroupVersion
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
