package doctor

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// The values of a Result's Status.
const (
	Pass       = "PASS"
	Fail       = "FAIL"
	NotHere    = "N/A" // there is nothing to check
	unitFile   = "unit file"
	proxyFile  = "kube-proxy's kubeconfig"
	benchmark  = "CIS Kubernetes Benchmark 1.9, section 4"
	noSuchMode = "nodectl has no such mode"
)

// Benchmark names what CIS checks.
func Benchmark() string { return benchmark }

// Result is the outcome of one check of the benchmark.
type Result struct {
	ID       string `json:"id"` // 4.2.1
	Title    string `json:"title"`
	Status   string `json:"status"` // PASS, FAIL, N/A
	Evidence string `json:"evidence"`
}

// CIS returns the outcome of every check of the benchmark's section 4, worker nodes, in
// its order, each with its evidence.
func CIS(f Facts) []Result {
	s := f.Agent.Settings
	served := s.ServerPort > 0
	all := []Result{
		f.owned("4.1.1", "The service file's permissions are 600 or stricter", "", unitFile, 0o077),
		f.owned("4.1.2", "The service file is owned by root:root", "", unitFile, 0),
		f.owned("4.1.3", "The proxy kubeconfig's permissions are 600 or stricter", "", proxyFile, 0o077),
		f.owned("4.1.4", "The proxy kubeconfig is owned by root:root", "", proxyFile, 0),
		f.owned("4.1.5", "The kubeconfig's permissions are 600 or stricter", f.Agent.Kubeconfig, "", 0o077),
		f.owned("4.1.6", "The kubeconfig is owned by root:root", f.Agent.Kubeconfig, "", 0),
		f.owned("4.1.7", "The client CA file's permissions are 600 or stricter", f.Agent.ClientCA, "", 0o077),
		f.owned("4.1.8", "The client CA file is owned by root:root", f.Agent.ClientCA, "", 0),
		f.owned("4.1.9", "The configuration file's permissions are 600 or stricter", "", "configuration", 0o077),
		f.owned("4.1.10", "The configuration file is owned by root:root", "", "configuration", 0),
		judged("4.2.1", "Anonymous requests are rejected", true, noSuchMode+": an unauthenticated request gets 401"),
		judged("4.2.2", "Every request is authorized", true, noSuchMode+": the API server authorizes each request; without one only system:masters is allowed"),
		judged("4.2.3", "A client CA is configured", !served || f.Agent.ClientCA != "", either(served, "client-ca-file: "+quoted(f.Agent.ClientCA), "the server does not listen on TCP")),
		judged("4.2.4", "No read-only port is open", true, noSuchMode),
		judged("4.2.5", "Idle streams are closed", s.IdleTimeout > 0, "streaming-connection-idle-timeout: "+s.IdleTimeout.String()),
		judged("4.2.6", "iptables chains are created", true, "nodectl needs none; kube-proxy creates its own"),
		judged("4.2.7", "The node's name is the host name", !s.NodeNameGiven, either(s.NodeNameGiven, "node-name: "+f.Agent.NodeName, "node-name is not set: the host name is used")),
		judged("4.2.8", "Events are recorded at an appropriate rate", s.EventQPS >= 0, fmt.Sprintf("event-qps: %d; nodectl also keeps events in events.jsonl", s.EventQPS)),
		judged("4.2.9", "The server's certificate can be verified", !served || f.Agent.ServerCert != "" || s.RotateServer,
			either(served, "tls-cert-file: "+quoted(f.Agent.ServerCert)+", rotate-server-certificates: "+yes(s.RotateServer), "the server does not listen on TCP")),
		judged("4.2.10", "Client certificates are rotated", s.RotateCertificates, "rotate-certificates: "+yes(s.RotateCertificates)),
		judged("4.2.11", "Server certificates are rotated", !served || s.RotateServer,
			either(served, "rotate-server-certificates: "+yes(s.RotateServer), "the server does not listen on TCP")),
		judged("4.2.12", "Only strong ciphers are offered", true, "tls-min-version: "+s.MinTLS+", tls-cipher-suites: "+either(len(s.CipherSuites) > 0, strings.Join(s.CipherSuites, ", "), "Go's defaults")),
		judged("4.2.13", "The number of processes of a pod is limited", s.PodPidsLimit > 0, fmt.Sprintf("pod-pids-limit: %d", s.PodPidsLimit)),
		judged("4.2.14", "Containers have the runtime's seccomp profile by default", true, "a container that names no profile always has it"),
	}
	return all
}

func judged(id, title string, pass bool, evidence string) Result {
	return Result{id, title, either(pass, Pass, Fail), evidence}
}

// owned checks files: one by its path, or all of a kind. With rights 0 it checks the
// owner.
func (f Facts) owned(id, title, path, what string, rights fs.FileMode) Result {
	r := Result{ID: id, Title: title, Status: Pass}
	var seen []string
	for _, x := range f.Files {
		if !x.Exists || path != "" && x.Path != path || path == "" && (what == "" || x.What != what) {
			continue
		}
		evidence := fmt.Sprintf("%s: %#o", x.Path, x.Mode.Perm())
		bad := x.Mode.Perm()&rights != 0
		if rights == 0 {
			evidence, bad = fmt.Sprintf("%s: %d:%d", x.Path, x.UID, x.GID), x.UID != 0 || x.GID != 0
		}
		if bad {
			r.Status = Fail
		}
		if !slices.Contains(seen, evidence) {
			seen = append(seen, evidence)
		}
	}
	r.Evidence = strings.Join(seen, ", ")
	if len(seen) == 0 {
		r.Status, r.Evidence = NotHere, "no such file"
	}
	return r
}

func either[T any](is bool, a, b T) T {
	if is {
		return a
	}
	return b
}

func yes(is bool) string { return either(is, "true", "false") }

func quoted(path string) string { return either(path == "", `""`, path) }
