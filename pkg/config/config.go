// Package config is nodectl's typed configuration: its fields, their defaults
// and what makes a value wrong.
//
// cmd fills a Config from flags, environment and file, and hands it on; nobody
// below cmd knows where a value came from.
//
// The one rule: no viper, no cobra, no I/O.
package config

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodectl/nodectl/pkg/pod"
)

// DefaultFile is the configuration file that is read where it exists and no
// other is named.
const DefaultFile = "/etc/nodectl/config.yaml"

// DefaultManifests is the directory that is read where no source is configured.
const DefaultManifests = "/etc/nodectl/manifests"

// DefaultEtcdPrefix is where the etcd source finds its manifests.
const DefaultEtcdPrefix = "/nodectl/manifests/"

// Config is every setting that flags, environment and file share. The
// mapstructure tag is the flag's name, which is also the key in the file and,
// as NODECTL_NAME, in the environment.
type Config struct {
	LogLevel        string `mapstructure:"log-level"` // error, warn, info, debug; "" is the command's own default
	Color           string `mapstructure:"color"`     // auto, always, never
	RootDir         string `mapstructure:"root-dir"`
	RuntimeEndpoint string `mapstructure:"runtime-endpoint"` // unix://…; "" looks for one
	PodLogsDir      string `mapstructure:"pod-logs-dir"`
	CgroupRoot      string `mapstructure:"cgroup-root"`
	NodeName        string `mapstructure:"node-name"`

	Filename              []string      `mapstructure:"filename"` // files, directories, URLs, "-"; in layer order
	Recursive             bool          `mapstructure:"recursive"`
	ManifestURLHeader     []string      `mapstructure:"manifest-url-header"` // "Name: value"
	ManifestURLHeaderFile string        `mapstructure:"manifest-url-header-file"`
	ManifestURLCACert     string        `mapstructure:"manifest-url-cacert"`
	ManifestURLCert       string        `mapstructure:"manifest-url-cert"`
	ManifestURLKey        string        `mapstructure:"manifest-url-key"`
	FileCheckFrequency    time.Duration `mapstructure:"file-check-frequency"`
	HTTPCheckFrequency    time.Duration `mapstructure:"http-check-frequency"`
	Validate              string        `mapstructure:"validate"`      // strict, warn, ignore
	SourcePolicy          string        `mapstructure:"source-policy"` // a file; "" is none

	Kubeconfig       string   `mapstructure:"kubeconfig"`     // "" is no api source
	EtcdEndpoints    []string `mapstructure:"etcd-endpoints"` // none is no etcd source
	EtcdPrefix       string   `mapstructure:"etcd-prefix"`
	EtcdCACert       string   `mapstructure:"etcd-cacert"`
	EtcdCert         string   `mapstructure:"etcd-cert"`
	EtcdKey          string   `mapstructure:"etcd-key"`
	EtcdUser         string   `mapstructure:"etcd-user"`
	EtcdPasswordFile string   `mapstructure:"etcd-password-file"`

	RunDir string `mapstructure:"run-dir"` // of the local socket; "" is Run's choice

	// Being a node of a cluster.
	BootstrapKubeconfig       string        `mapstructure:"bootstrap-kubeconfig"` // "" asks for no certificate
	CertDir                   string        `mapstructure:"cert-dir"`             // "" is RootDir/pki
	RotateCertificates        bool          `mapstructure:"rotate-certificates"`
	RotateServerCertificates  bool          `mapstructure:"rotate-server-certificates"`
	RegisterNode              bool          `mapstructure:"register-node"`
	NodeIP                    []string      `mapstructure:"node-ip"` // one, or one of each family; none is found
	ProviderID                string        `mapstructure:"provider-id"`
	NodeStatusUpdateFrequency time.Duration `mapstructure:"node-status-update-frequency"`
	NodeStatusReportFrequency time.Duration `mapstructure:"node-status-report-frequency"`
	NodeLeaseDuration         time.Duration `mapstructure:"node-lease-duration"`
	KubeAPIQPS                int           `mapstructure:"kube-api-qps"`
	KubeAPIBurst              int           `mapstructure:"kube-api-burst"`
	EventQPS                  int           `mapstructure:"event-qps"` // 0 is no limit
	EventBurst                int           `mapstructure:"event-burst"`
	EvictionHard              []string      `mapstructure:"eviction-hard"` // "memory.available<100Mi"
	PressureTransitionPeriod  time.Duration `mapstructure:"eviction-pressure-transition-period"`

	// The server on TCP.
	Address                        string        `mapstructure:"address"`
	Port                           int           `mapstructure:"port"` // -1: 10250 with an API server, else none; 0: none
	ClientCAFile                   string        `mapstructure:"client-ca-file"`
	TLSCertFile                    string        `mapstructure:"tls-cert-file"`
	TLSPrivateKeyFile              string        `mapstructure:"tls-private-key-file"`
	TLSMinVersion                  string        `mapstructure:"tls-min-version"` // VersionTLS12, VersionTLS13
	TLSCipherSuites                []string      `mapstructure:"tls-cipher-suites"`
	StreamingConnectionIdleTimeout time.Duration `mapstructure:"streaming-connection-idle-timeout"`

	EnableDebuggingHandlers bool   `mapstructure:"enable-debugging-handlers"` // exec, attach, logs, run, port-forward, checkpoint on TCP
	HealthzBindAddress      string `mapstructure:"healthz-bind-address"`
	HealthzPort             int    `mapstructure:"healthz-port"` // plain HTTP for /healthz alone; 0: none

	// What this machine must be, or serve does not start.
	ProtectKernelDefaults bool `mapstructure:"protect-kernel-defaults"`
	FailSwapOn            bool `mapstructure:"fail-swap-on"`
	FailCgroupV1          bool `mapstructure:"fail-cgroup-v1"`

	KubeletConfig    string `mapstructure:"kubelet-config"` // a KubeletConfiguration; "" is none
	KubeletConfigDir string `mapstructure:"config-dir"`     // of its drop-ins

	SyncFrequency                 time.Duration `mapstructure:"sync-frequency"`
	ImageDir                      string        `mapstructure:"image-dir"`                        // "" is RootDir/images
	MaxParallelImagePulls         int           `mapstructure:"max-parallel-image-pulls"`         // from one registry
	ImageCredentialProviderConfig string        `mapstructure:"image-credential-provider-config"` // a file or directory; "" is none
	ImageCredentialProviderBinDir string        `mapstructure:"image-credential-provider-bin-dir"`
	PodCIDR                       string        `mapstructure:"pod-cidr"`    // pod network of the bundled runtime
	ClusterDNS                    []string      `mapstructure:"cluster-dns"` // addresses; none is no cluster's DNS
	ClusterDomain                 string        `mapstructure:"cluster-domain"`
	ResolvConf                    string        `mapstructure:"resolv-conf"`   // "": pods get nobody's servers
	OfflineStart                  string        `mapstructure:"offline-start"` // none, api
	InsecureManifestPermissions   bool          `mapstructure:"insecure-manifest-permissions"`

	NodeLabels                []string      `mapstructure:"node-labels"`          // "key=value"
	RegisterWithTaints        []string      `mapstructure:"register-with-taints"` // "key=value:effect"
	MaxPods                   int           `mapstructure:"max-pods"`             // 0 is no limit
	PodPidsLimit              int           `mapstructure:"pod-pids-limit"`       // of one pod; less than 1 is no limit
	SystemReserved            []string      `mapstructure:"system-reserved"`      // "cpu=500m"
	KubeReserved              []string      `mapstructure:"kube-reserved"`
	RuntimeClasses            []string      `mapstructure:"runtime-class"`                // "name=handler"
	AllowedUnsafeSysctls      []string      `mapstructure:"allowed-unsafe-sysctls"`       // names, and beginnings that end in *
	ContainerLogMaxSize       string        `mapstructure:"container-log-max-size"`       // a quantity: "10Mi"
	ContainerLogMaxFiles      int           `mapstructure:"container-log-max-files"`      // of one container, the one written to included
	MaxContainerRestartPeriod time.Duration `mapstructure:"max-container-restart-period"` // cap of the crash back-off
}

// Default returns the configuration of a machine that says nothing. NodeName
// stays empty: whoever fills the Config puts the host name there.
func Default() Config {
	return Config{
		Color:              "auto",
		RootDir:            "/var/lib/nodectl",
		PodLogsDir:         "/var/log/pods",
		CgroupRoot:         "/",
		FileCheckFrequency: 20 * time.Second,
		HTTPCheckFrequency: 20 * time.Second,
		Validate:           "strict",
		EtcdPrefix:         DefaultEtcdPrefix,
		OfflineStart:       "none",
		SyncFrequency:      time.Minute,

		RotateCertificates:        true,
		RegisterNode:              true,
		NodeStatusUpdateFrequency: 10 * time.Second,
		NodeStatusReportFrequency: 5 * time.Minute,
		NodeLeaseDuration:         40 * time.Second,
		KubeAPIQPS:                50,
		KubeAPIBurst:              100,
		EventQPS:                  50,
		EventBurst:                100,
		EvictionHard:              []string{"memory.available<100Mi", "nodefs.available<10%", "nodefs.inodesFree<5%", "imagefs.available<15%", "imagefs.inodesFree<5%"},
		PressureTransitionPeriod:  5 * time.Minute,

		Address:                        "0.0.0.0",
		Port:                           -1,
		TLSMinVersion:                  "VersionTLS13",
		StreamingConnectionIdleTimeout: 30 * time.Minute,
		EnableDebuggingHandlers:        true,
		HealthzBindAddress:             "127.0.0.1",

		MaxParallelImagePulls: 3,
		PodCIDR:               "10.88.0.0/16",
		ResolvConf:            "/etc/resolv.conf",

		MaxPods:                   110,
		PodPidsLimit:              -1,
		ContainerLogMaxSize:       "10Mi",
		ContainerLogMaxFiles:      5,
		MaxContainerRestartPeriod: 5 * time.Minute,
	}
}

// Error is one wrong setting. Key is the flag's name.
type Error struct{ Key, Msg string }

func (e *Error) Error() string { return e.Key + ": " + e.Msg }

// Check returns an *Error for the first setting that cannot be, in the order
// of the fields, and nil when all can.
func (c Config) Check() error {
	for _, f := range []struct {
		key string
		msg string
	}{
		{"log-level", oneOf(c.LogLevel, "", "error", "warn", "info", "debug")},
		{"color", oneOf(c.Color, "auto", "always", "never")},
		{"root-dir", absolute(c.RootDir)},
		{"runtime-endpoint", endpoint(c.RuntimeEndpoint)},
		{"pod-logs-dir", absolute(c.PodLogsDir)},
		{"cgroup-root", absolute(c.CgroupRoot)},
		{"node-name", nodeName(c.NodeName)},
		{"filename", filenames(c.Filename)},
		{"manifest-url-header", headers(c.ManifestURLHeader)},
		{"file-check-frequency", positive(c.FileCheckFrequency)},
		{"http-check-frequency", positive(c.HTTPCheckFrequency)},
		{"validate", oneOf(c.Validate, "strict", "warn", "ignore")},
		{"manifest-url-cert", together(c.ManifestURLCert, c.ManifestURLKey, "manifest-url-key")},
		{"etcd-endpoints", endpoints(c.EtcdEndpoints)},
		{"etcd-prefix", prefix(c.EtcdPrefix)},
		{"etcd-cert", together(c.EtcdCert, c.EtcdKey, "etcd-key")},
		{"etcd-user", together(c.EtcdUser, c.EtcdPasswordFile, "etcd-password-file")},
		{"offline-start", oneOf(c.OfflineStart, "none", "api")},
		{"sync-frequency", positive(c.SyncFrequency)},
		{"node-status-update-frequency", positive(c.NodeStatusUpdateFrequency)},
		{"node-status-report-frequency", positive(c.NodeStatusReportFrequency)},
		{"node-lease-duration", between(c.NodeLeaseDuration, 4*time.Second, time.Hour)},
		{"eviction-hard", wrong(pod.ParseThresholds(c.EvictionHard))},
		{"eviction-pressure-transition-period", atLeast(c.PressureTransitionPeriod)},
		{"kube-api-qps", between(c.KubeAPIQPS, 1, 1<<20)},
		{"kube-api-burst", between(c.KubeAPIBurst, 1, 1<<20)},
		{"event-qps", between(c.EventQPS, 0, 1<<20)},
		{"event-burst", between(c.EventBurst, 1, 1<<20)},
		{"node-ip", nodeIPs(c.NodeIP)},
		{"address", addresses([]string{c.Address})},
		{"port", between(c.Port, -1, 65535)},
		{"tls-cert-file", together(c.TLSCertFile, c.TLSPrivateKeyFile, "tls-private-key-file")},
		{"tls-min-version", oneOf(c.TLSMinVersion, "VersionTLS12", "VersionTLS13")},
		{"tls-cipher-suites", wrong(c.cipherSuites())},
		{"streaming-connection-idle-timeout", positive(c.StreamingConnectionIdleTimeout)},
		{"healthz-bind-address", addresses([]string{c.HealthzBindAddress})},
		{"healthz-port", between(c.HealthzPort, 0, 65535)},
		{"max-parallel-image-pulls", between(c.MaxParallelImagePulls, 1, mostPulls)},
		{"image-credential-provider-config", together(c.ImageCredentialProviderConfig, c.ImageCredentialProviderBinDir, "image-credential-provider-bin-dir")},
		{"pod-cidr", network(c.PodCIDR)},
		{"cluster-dns", addresses(c.ClusterDNS)},
		{"cluster-domain", domain(c.ClusterDomain)},
		{"resolv-conf", resolvConf(c.ResolvConf)},
		{"node-labels", wrong(labels(c.NodeLabels))},
		{"node-labels", reservedLabels(c)},
		{"register-with-taints", wrong(taints(c.RegisterWithTaints))},
		{"max-pods", between(c.MaxPods, 0, 1<<20)},
		{"pod-pids-limit", between(c.PodPidsLimit, -1, 1<<22)},
		{"system-reserved", wrong(reserved(c.SystemReserved))},
		{"kube-reserved", wrong(reserved(c.KubeReserved))},
		{"runtime-class", wrong(classes(c.RuntimeClasses))},
		{"allowed-unsafe-sysctls", sysctls(c.AllowedUnsafeSysctls)},
		{"container-log-max-size", wrong(size(c.ContainerLogMaxSize))},
		{"container-log-max-files", between(c.ContainerLogMaxFiles, 2, 1<<10)},
		{"max-container-restart-period", between(c.MaxContainerRestartPeriod, time.Second, 5*time.Minute)},
	} {
		if f.msg != "" {
			return &Error{Key: f.key, Msg: f.msg}
		}
	}
	return nil
}

// Headers returns ManifestURLHeader as an HTTP header. Check has accepted it.
func (c Config) Headers() http.Header {
	h := http.Header{}
	for _, line := range c.ManifestURLHeader {
		name, value, _ := strings.Cut(line, ":")
		h.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return h
}

// CheckHeaders returns what is wrong with ManifestURLHeader, nil when nothing.
// It never repeats a value.
func (c Config) CheckHeaders() *Error {
	if msg := headers(c.ManifestURLHeader); msg != "" {
		return &Error{Key: "manifest-url-header", Msg: msg}
	}
	return nil
}

// IsURL reports whether a filename names an HTTP source.
func IsURL(name string) bool {
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

func oneOf(v string, allowed ...string) string {
	if slices.Contains(allowed, v) {
		return ""
	}
	if allowed[0] == "" {
		allowed = allowed[1:]
	}
	return fmt.Sprintf("%q is not one of %s", v, strings.Join(allowed, ", "))
}

func absolute(path string) string {
	if strings.HasPrefix(path, "/") {
		return ""
	}
	return fmt.Sprintf("%q is not an absolute path", path)
}

func endpoint(v string) string {
	switch {
	case v == "", strings.HasPrefix(v, "/"):
		return ""
	case strings.HasPrefix(v, "unix:///"):
		return ""
	}
	return fmt.Sprintf("%q is not a unix socket, as unix:///run/containerd/containerd.sock", v)
}

func nodeName(v string) string {
	if v == "" {
		return "is empty, and the host name is not known"
	}
	if problems := validation.IsDNS1123Subdomain(v); len(problems) > 0 {
		return fmt.Sprintf("%q cannot be a node name: %s", v, problems[0])
	}
	return ""
}

// filenames never repeats a URL: there may be a secret in it.
func filenames(names []string) string {
	dashes := 0
	for _, n := range names {
		if n == "" {
			return "a path is empty"
		}
		if n == "-" {
			dashes++
		}
		if scheme, _, ok := strings.Cut(n, "://"); ok && !IsURL(n) && !strings.ContainsAny(scheme, "/.") {
			return fmt.Sprintf("%q is no scheme that is read; http:// and https:// are", scheme+"://")
		}
	}
	if dashes > 1 {
		return "standard input (-) can be read only once"
	}
	return ""
}

// headers never repeats a header's value: it may be a secret.
func headers(lines []string) string {
	for i, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) == "" || strings.ContainsAny(strings.TrimSpace(name), " \t\r\n") || strings.ContainsAny(value, "\r\n") {
			return fmt.Sprintf("header %d is not of the form 'Name: value'", i+1)
		}
	}
	return ""
}

// together reports that of two settings that need each other one is missing.
func together(a, b, other string) string {
	if (a == "") != (b == "") {
		return "needs --" + other + " beside it, and the other way round"
	}
	return ""
}

// endpoints never repeats one: it may hold a password.
func endpoints(urls []string) string {
	for i, v := range urls {
		u, err := url.Parse(v)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return fmt.Sprintf("endpoint %d is not a URL, as https://127.0.0.1:2379", i+1)
		case u.User != nil:
			return fmt.Sprintf("endpoint %d holds a user: use --etcd-user and --etcd-password-file", i+1)
		}
	}
	return ""
}

func prefix(v string) string {
	if strings.Trim(v, "/") == "" {
		return "is empty: every key of the etcd would be a manifest"
	}
	return ""
}

func network(v string) string {
	if p, err := netip.ParsePrefix(v); err != nil || p != p.Masked() {
		return fmt.Sprintf("%q is not a network, as 10.88.0.0/16", v)
	}
	return ""
}

func addresses(list []string) string {
	for _, v := range list {
		if ip, err := netip.ParseAddr(v); err != nil || ip.Zone() != "" {
			return fmt.Sprintf("%q is not an IP address, as 10.96.0.10", v)
		}
	}
	return ""
}

func domain(v string) string {
	if problems := validation.IsDNS1123Subdomain(v); v != "" && len(problems) > 0 {
		return fmt.Sprintf("%q is not a domain, as cluster.local: %s", v, problems[0])
	}
	return ""
}

func resolvConf(v string) string {
	if v == "" {
		return ""
	}
	return absolute(v)
}

// nodeIPs takes one address, or one of each family.
func nodeIPs(list []string) string {
	all := items(list)
	if msg := addresses(all); msg != "" {
		return msg
	}
	if len(all) > 2 || len(all) == 2 && netip.MustParseAddr(all[0]).Is4() == netip.MustParseAddr(all[1]).Is4() {
		return "takes one address, or one of each family"
	}
	return ""
}

func atLeast(d time.Duration) string {
	if d >= 0 {
		return ""
	}
	return fmt.Sprintf("%s is less than nothing", d)
}

func positive(d time.Duration) string {
	if d > 0 {
		return ""
	}
	return fmt.Sprintf("%s is not longer than nothing", d)
}

// Run returns the directory of the local socket: RunDir, else /run/nodectl for the
// default root directory and the root directory itself for another, so that agents
// with roots of their own never meet.
func (c Config) Run() string {
	switch {
	case c.RunDir != "":
		return c.RunDir
	case c.RootDir == Default().RootDir:
		return "/run/nodectl"
	}
	return c.RootDir
}

// DefaultPort is where an API server expects its nodes.
const DefaultPort = 10250

// ServerPort returns the port of the server on TCP: Port, or by itself DefaultPort
// with an API server and 0, none, without.
func (c Config) ServerPort() int {
	switch {
	case c.Port >= 0:
		return c.Port
	case c.Kubeconfig != "":
		return DefaultPort
	}
	return 0
}

// Certificates returns the directory of this node's certificates: CertDir, or pki
// in the root directory.
func (c Config) Certificates() string {
	if c.CertDir != "" {
		return c.CertDir
	}
	return strings.TrimSuffix(c.RootDir, "/") + "/pki"
}
