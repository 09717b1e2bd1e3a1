package pkg

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nodectl/nodectl/"

// rules is the architecture: which package may import which. A pattern that ends in /...
// means a package and all below it. Tests may import any package.
var rules = []struct {
	imported string
	by       []string // no other package may
	why      string
}{
	// What is ours.
	{module + "cmd/...", []string{""}, "only main imports the command line"},
	{module + "pkg/agent", []string{"cmd"}, "commands start an agent"},
	{module + "pkg/agent/readonly", []string{"cmd", "pkg/agent"}, "commands read what an agent would"},
	{module + "pkg/engine/...", []string{"pkg/agent", "test/..."}, "the agent makes the engine; no package takes it as a parameter"},
	{module + "pkg/feed", []string{"cmd", "pkg/agent", "pkg/agent/readonly", "pkg/engine", "pkg/ui/..."}, "the engine publishes; the edge reads"},
	{module + "pkg/activity", []string{"pkg/agent", "pkg/apiclient", "pkg/client", "pkg/cri", "pkg/csi", "pkg/device", "pkg/dra", "pkg/engine", "pkg/image", "pkg/prober", "pkg/server", "pkg/suspect", "pkg/ui", "pkg/volume"}, "what may hang notes its calls; why shows them"},
	{module + "pkg/controller", []string{"pkg/agent", "pkg/agent/readonly"}, "the agent makes it; podconfig and the engine have interfaces for it"},
	{module + "pkg/workload", []string{"pkg/agent", "pkg/agent/readonly", "pkg/controller", "test/parityworkloads"}, "the controller asks it; adapters do not decide"},
	{module + "pkg/balancer", []string{"pkg/agent", "test/benchservices"}, "the agent makes it; the engine has interfaces for it"},
	{module + "pkg/service/nft", []string{"pkg/agent", "pkg/balancer", "pkg/doctor", "test/benchservices"}, "the packet filter is spoken to in one place"},
	{module + "pkg/service", []string{"pkg/agent", "pkg/balancer", "pkg/service/nft", "test/benchservices"}, "the balancer asks it; adapters do not decide"},
	{module + "pkg/forecast", []string{"pkg/agent/readonly", "pkg/ui"}, "a dry run and what shows it; what acts does not ask for it"},
	{module + "pkg/hidden", []string{"pkg/server", "pkg/ui"}, "texts of others are escaped where they are written"},
	{module + "pkg/boundedcall", []string{"pkg/agent", "pkg/controller", "pkg/engine", "pkg/stats", "pkg/suspect"}, "the calls that may hang in the kernel"},
	{module + "pkg/panics", []string{"pkg/boundedcall", "pkg/controller", "pkg/dns/server", "pkg/engine", "pkg/prober"}, "a panic is handled where it must not end the process"},
	{module + "pkg/wakeup", []string{"pkg/agent", "pkg/balancer", "pkg/certificate", "pkg/controller", "pkg/cri/critest", "pkg/csi", "pkg/device", "pkg/dns/process", "pkg/dra", "pkg/engine", "pkg/event", "pkg/feed", "pkg/image", "pkg/node", "pkg/node/apiserver", "pkg/pleg", "pkg/podconfig", "pkg/sink/apiserver", "pkg/source/file"}, "who waits for work is woken in one way"},
	{module + "pkg/prober", []string{"pkg/engine"}, "the sync loop says what there is to probe, and takes the results"},
	{module + "pkg/migration", []string{"pkg/apiclient", "pkg/csi", "pkg/stats", "pkg/volume"}, "volumes are translated where they are read; CSINode says so"},
	{module + "pkg/cpuset", []string{"pkg/agent", "pkg/config", "pkg/engine", "pkg/plan", "test/..."}, "admission asks which CPUs and memory containers get"},
	{module + "pkg/shutdown/logind", []string{"pkg/agent"}, "the agent connects it with the engine"},
	{module + "pkg/shutdown", []string{"pkg/agent", "pkg/config", "pkg/engine"}, "the engine asks in which order pods stop; the agent says why"},
	{module + "pkg/startlimit", []string{"pkg/engine"}, "workers ask for start slots"},
	{module + "pkg/plan/...", []string{"pkg/agent", "pkg/agent/readonly", "pkg/engine", "pkg/forecast"}, "the engine asks plan; adapters do not decide"},
	{module + "pkg/status/...", []string{"cmd", "pkg/agent", "pkg/agent/readonly", "pkg/engine", "pkg/ui"}, "the engine reports; adapters do not"},
	{module + "pkg/upkeep", []string{"pkg/agent"}, "the agent makes the loop and what it observes by"},
	{module + "pkg/reclaim", []string{"pkg/agent", "pkg/image", "pkg/upkeep"}, "what observes and acts asks it; adapters do not decide"},
	{module + "pkg/podview/...", []string{"pkg/engine", "pkg/forecast", "pkg/plan", "pkg/status"}, "the state of a pod is for who plans, reports and acts"},
	{module + "pkg/podspec", []string{"cmd", "pkg/feed", "pkg/forecast", "pkg/manifest", "pkg/plan/...", "pkg/podconfig", "pkg/podview", "pkg/source/apiserver", "pkg/ui", "pkg/workload"}, "hashes and differences are for who makes specs, compares them and shows it; what acts has the spec"},
	{module + "pkg/podstatic", []string{"pkg/manifest", "pkg/policy", "pkg/workload"}, "for who makes pods without an API server, and who judges them before they are made"},
	{module + "pkg/podenv", []string{"pkg/cri", "pkg/engine", "pkg/probe", "pkg/volume"}, "what a container sees is computed where it is made"},
	{module + "pkg/podconfig/...", []string{"cmd", "pkg/agent", "pkg/agent/readonly", "pkg/engine", "pkg/feed", "pkg/forecast", "pkg/ui/...", "pkg/plan"}, "podconfig reads sources through source.Source"},
	{module + "pkg/manifest/...", []string{"pkg/agent/readonly"}, "sources get their parser from readonly"},
	{module + "pkg/source/...", []string{"cmd", "pkg/agent", "pkg/agent/readonly", "pkg/manifest", "pkg/podconfig", "pkg/policy", "pkg/source/..."}, "a source is known to podconfig by its interface only"},
	{module + "pkg/source/apiserver", []string{"pkg/agent/readonly"}, "adapters never import each other"},
	{module + "pkg/source/etcd", []string{"pkg/agent/readonly"}, "adapters never import each other"},
	{module + "pkg/source/file", []string{"pkg/agent", "pkg/agent/readonly"}, "adapters never import each other"},
	{module + "pkg/source/http", []string{"cmd", "pkg/agent/readonly"}, "adapters never import each other"},
	{module + "pkg/source/stdin", []string{"pkg/agent/readonly"}, "adapters never import each other"},
	{module + "pkg/policy/...", []string{"pkg/agent/readonly"}, "a policy stands between a source and podconfig; neither knows"},
	{module + "pkg/cri/...", []string{"pkg/agent", "pkg/agent/readonly", "pkg/cri/...", "pkg/pleg", "test/..."}, "adapters never import each other; the engine has an interface"},
	{module + "pkg/apiclient/...", []string{"pkg/agent", "pkg/agent/readonly", "pkg/source/apiserver", "pkg/sink/apiserver", "pkg/node/apiserver", "pkg/server/access", "pkg/certificate"}, "the one way to an API server"},
	{module + "pkg/certificate/...", []string{"pkg/agent"}, "certificates are kept in files; others read those"},
	{module + "pkg/client/...", []string{"cmd"}, "the verbs are commands"},
	{module + "pkg/stats/...", []string{"pkg/agent"}, "the server gets functions"},
	{module + "pkg/metrics/...", []string{"pkg/agent"}, "packages report their counts through interfaces"},
	{module + "pkg/event/...", []string{"pkg/agent"}, "the engine has an interface for it"},
	{module + "pkg/doctor/...", []string{"cmd", "pkg/agent", "pkg/agent/readonly"}, "it looks at a machine for a person"},
	{module + "pkg/node/...", []string{"pkg/agent", "pkg/agent/readonly"}, "the engine gets facts, in plan.Node"},
	{module + "pkg/volume/...", []string{"cmd", "pkg/agent"}, "adapters never import each other"},
	{module + "pkg/image/...", []string{"cmd", "pkg/agent", "test/..."}, "adapters never import each other; it pulls through an interface"},
	{module + "pkg/device", []string{"pkg/agent"}, "adapters never import each other; the engine has an interface"},
	{module + "pkg/csi", []string{"pkg/agent"}, "adapters never import each other; volumes and the Node have interfaces"},
	{module + "pkg/pluginconn", []string{"pkg/csi", "pkg/device", "pkg/dra"}, "plugins of the node are connected to in one way"},
	{module + "pkg/dra", []string{"pkg/agent"}, "adapters never import each other; the engine has an interface"},
	{module + "pkg/cgroup/...", []string{"pkg/agent"}, "adapters never import each other; the engine has an interface"},
	{module + "pkg/logs/...", []string{"pkg/agent"}, "adapters never import each other"},
	{module + "pkg/probe/...", []string{"pkg/agent", "pkg/prober"}, "adapters never import each other"},
	{module + "pkg/record/...", []string{"pkg/agent", "pkg/agent/readonly"}, "the engine has an interface for it"},
	{module + "pkg/sink/...", []string{"pkg/agent", "pkg/agent/readonly", "test/..."}, "the engine has an interface for it"},
	{module + "pkg/pleg/...", []string{"pkg/agent"}, "the engine has an interface for it"},
	{module + "pkg/bundle/...", []string{"cmd", "pkg/agent", "pkg/agent/readonly", "pkg/ui", "hack/...", "test/..."}, "the bundle is one runtime among others"},
	{module + "pkg/server/...", []string{"cmd", "pkg/agent", "test/..."}, "the agent gives the server its interfaces; no other package imports it"},
	{module + "pkg/suspect", []string{"pkg/agent"}, "why asks it for what a pod hangs on"},
	{module + "pkg/trust/...", []string{"pkg/agent/readonly", "pkg/bundle", "pkg/server", "pkg/source/file"}, "for who reads as root what others may have written"},
	{module + "pkg/suggest", []string{"cmd", "pkg/agent/readonly", "pkg/manifest"}, "for who reads what people type"},
	{module + "pkg/ui/...", []string{"cmd", "pkg/agent"}, "text is made at the edge"},
	{module + "pkg/ui/tui/termquery", []string{"pkg/ui/tui"}, "it works by its place in the order of initialization"},
	{module + "pkg/config/...", []string{"cmd", "pkg/agent", "pkg/agent/readonly"}, "parts get what they need, not the whole configuration"},
	{module + "pkg/confine/...", []string{"pkg/agent/readonly", "pkg/dns/process"}, "a command that reads and prints, and the DNS server's process, give up their rights"},
	{module + "pkg/dns", []string{"pkg/agent", "pkg/dns/server", "test/benchdns"}, "the agent makes zones of Services; the server answers from them"},
	{module + "pkg/dns/server", []string{"pkg/agent", "pkg/dns/process", "test/benchdns"}, "the server runs in a process of its own"},
	{module + "pkg/dns/process", []string{"pkg/agent", "pkg/dns/early", "test/benchdns"}, "the agent keeps the process, and early is it"},
	{module + "pkg/dns/early", []string{"cmd"}, "it works by its place in the order of initialization"},

	// What is others'.
	{"github.com/spf13/...", []string{"cmd"}, "no command-line library below cmd"},
	{"github.com/charmbracelet/...", []string{"pkg/ui/..."}, "colour and layout are ui's"},
	{"github.com/muesli/...", []string{"pkg/ui/..."}, "colour and layout are ui's"},
	{"k8s.io/client-go/util/jsonpath", []string{"pkg/ui"}, "text is made at the edge"},
	{"k8s.io/client-go/...", []string{"pkg/agent", "pkg/apiclient", "pkg/certificate", "pkg/source/apiserver", "pkg/sink/apiserver", "pkg/node/apiserver", "pkg/server/...", "pkg/client", "pkg/ui", "test/..."}, "API servers are spoken to at the edge; ui has the JSONPath of kubectl"},
	{"k8s.io/cri-streaming/...", []string{"pkg/server", "pkg/cri/critest", "test/..."}, "streams end in one place"},
	{"k8s.io/streaming/...", []string{"pkg/server", "pkg/client", "test/..."}, "streams end in one place"},
	{"github.com/moby/spdystream/...", []string{"pkg/server", "test/..."}, "streams end in one place"},
	{"github.com/prometheus/...", []string{"pkg/metrics", "pkg/stats", "test/..."}, "metrics are written in one place"},
	{"k8s.io/kubernetes/...", []string{"pkg/manifest", "pkg/podstatic"}, "defaulting and validation, used where objects are read and pods are made"},
	{"github.com/container-storage-interface/...", []string{"pkg/csi", "test/..."}, "CSI is spoken in one place"},
	{"k8s.io/kubelet/...", []string{"pkg/agent", "pkg/config", "pkg/device", "pkg/dra", "pkg/server", "pkg/stats", "pkg/client", "cmd", "test/..."}, "its types, as others know them; nothing that acts"},
	{"k8s.io/mount-utils/...", []string{"pkg/volume"}, "network file systems are mounted in one place"},
	{"k8s.io/pod-security-admission/...", []string{"pkg/policy"}, "Pod Security's checks, used in one place"},
	{"k8s.io/component-helpers/...", []string{"pkg/plan", "pkg/status", "pkg/config", "pkg/cgroup", "pkg/cri", "pkg/volume"}, "arithmetic of resources; nothing that acts"},
	{"k8s.io/klog/...", []string{"cmd", "pkg/migration"}, "klog is bridged, not used; csi-translation-lib takes a logger"},
	{"k8s.io/csi-translation-lib/...", []string{"pkg/migration"}, "volumes of clouds are translated in one place"},
	{"k8s.io/cri-api/...", []string{"pkg/cri/...", "pkg/pleg", "pkg/probe", "pkg/bundle", "test/..."}, "CRI is spoken at the edge"},
	{"google.golang.org/grpc/...", []string{"pkg/cri/...", "pkg/pleg", "pkg/probe", "pkg/bundle", "pkg/csi", "pkg/device", "pkg/dra", "pkg/pluginconn", "pkg/source/etcd", "test/..."}, "CRI, plugins and etcd are spoken to at the edge"},
	{"go.etcd.io/...", []string{"pkg/source/etcd", "test/..."}, "etcd is spoken to in one place"},
	{"go.uber.org/zap/...", []string{"test/..."}, "log/slog"},
	{"github.com/containerd/...", []string{"pkg/bundle", "test/..."}, "only package bundle knows containerd"},
	{"github.com/opencontainers/...", []string{"pkg/cgroup"}, "cgroups are made in one place"},
	{"github.com/godbus/...", []string{"pkg/shutdown/logind"}, "systemd is spoken to by the cgroup library, by go-systemd and by logind"},
	{"golang.org/x/net/dns/dnsmessage", []string{"pkg/dns/...", "test/benchdns"}, "DNS messages are read and written in one place"},
	{"github.com/fsnotify/...", []string{"pkg/source/file", "pkg/bundle", "pkg/device"}, "files are watched where they are read"},
	{"github.com/stretchr/...", nil, "tests compare values"},
	{"math/rand/v2", []string{"pkg/apiclient", "pkg/backoff", "pkg/certificate", "pkg/node/apiserver", "pkg/prober", "pkg/sink/apiserver", "pkg/source/etcd", "test/..."}, "backoff adds the jitter to waits"},
	{"testing", []string{"pkg/cpuset/cpusettest", "pkg/cri/critest", "pkg/source/sourcetest", "test/..."}, "what ships does not know tests"},
}

// only lists all of our packages that the packages around the engine, the command line and
// the read-only half of the agent may import. Tests may import any package.
var only = map[string][]string{
	"cmd": {
		"pkg/agent", "pkg/agent/readonly", "pkg/bundle", "pkg/client", "pkg/config", "pkg/dns/early", "pkg/doctor", "pkg/feed", "pkg/image", "pkg/pod", "pkg/podconfig", "pkg/podspec",
		"pkg/server", "pkg/source/http", "pkg/status", "pkg/suggest", "pkg/ui", "pkg/ui/tui", "pkg/volume",
	},
	"pkg/agent/readonly": {
		"pkg/apiclient", "pkg/bootid", "pkg/bundle", "pkg/config", "pkg/confine", "pkg/controller", "pkg/cri", "pkg/doctor", "pkg/feed", "pkg/forecast", "pkg/manifest", "pkg/node", "pkg/plan",
		"pkg/pod", "pkg/podconfig", "pkg/policy", "pkg/record", "pkg/sink/journal", "pkg/source", "pkg/source/apiserver", "pkg/source/etcd", "pkg/source/file",
		"pkg/source/http", "pkg/source/stdin", "pkg/status", "pkg/suggest", "pkg/trust", "pkg/workload",
	},
	"pkg/activity":          {"pkg/pod"},
	"pkg/boundedcall":       {"pkg/panics"},
	"pkg/panics":            nil,
	"pkg/pod":               nil,
	"pkg/startlimit":        nil,
	"pkg/cpuset":            {"pkg/pod"},
	"pkg/cpuset/cpusettest": {"pkg/pod"},
	"pkg/shutdown":          {"pkg/cycle", "pkg/pod"},
	"pkg/podenv":            {"pkg/pod"},
	"pkg/podspec":           {"pkg/pod"},
	"pkg/podstatic":         {"pkg/pod"},
	"pkg/service":           {"pkg/pod", "pkg/sorted"},
	"pkg/workload":          {"pkg/pod", "pkg/podspec", "pkg/podstatic"},
	"pkg/podview":           {"pkg/pod", "pkg/podspec"},
	"pkg/status":            {"pkg/pod", "pkg/podview"},
	"pkg/reclaim":           {"pkg/pod"},
	"pkg/balancer":          {"pkg/backoff", "pkg/pod", "pkg/service", "pkg/service/nft", "pkg/wakeup"},
	"pkg/service/nft":       {"pkg/service"},
	"pkg/controller":        {"pkg/backoff", "pkg/boundedcall", "pkg/panics", "pkg/pod", "pkg/wakeup", "pkg/workload"},
	"pkg/upkeep":            {"pkg/pod", "pkg/reclaim"},
	"pkg/prober":            {"pkg/activity", "pkg/panics", "pkg/pod", "pkg/probe"},
	"pkg/plan":              {"pkg/cpuset", "pkg/pod", "pkg/podconfig", "pkg/podspec", "pkg/podview"},
	"pkg/feed":              {"pkg/pod", "pkg/podconfig", "pkg/podspec", "pkg/wakeup"},
	"pkg/forecast":          {"pkg/plan", "pkg/pod", "pkg/podconfig", "pkg/podspec", "pkg/podview"},
	"pkg/engine":            {"pkg/activity", "pkg/backoff", "pkg/boundedcall", "pkg/cpuset", "pkg/cycle", "pkg/feed", "pkg/panics", "pkg/plan", "pkg/pod", "pkg/podconfig", "pkg/podenv", "pkg/podview", "pkg/prober", "pkg/shutdown", "pkg/startlimit", "pkg/status", "pkg/wakeup"},

	"pkg/bootid":     nil,
	"pkg/keylock":    nil,
	"pkg/pluginconn": nil,
	"pkg/wakeup":     nil,

	"pkg/dns":         {"pkg/sorted"},
	"pkg/dns/server":  {"pkg/dns", "pkg/panics"},
	"pkg/dns/process": {"pkg/atomicfile", "pkg/bootid", "pkg/confine", "pkg/dns/server", "pkg/wakeup"},
	"pkg/dns/early":   {"pkg/dns/process"},
}

// owned are functions that several packages once called, each in its own way, and the
// packages that still may. The first one is the owner.
var owned = []struct {
	call string
	by   []string
	why  string
}{
	{"os.CreateTemp", []string{"pkg/atomicfile"}, "atomicfile replaces files"},
	{
		"os.Rename", []string{"pkg/atomicfile", "pkg/agent", "pkg/bundle", "pkg/certificate", "pkg/record", "pkg/server", "pkg/volume", "examples/images/shop", "hack/..."},
		"atomicfile replaces files; others rename links, sockets, directories and logs",
	},
}

// pure lists the packages without a clock and without a lock, which decide or describe.
var pure = []string{"pkg/suggest", "pkg/cpuset", "pkg/pod", "pkg/podspec", "pkg/sorted", "pkg/cycle", "pkg/dns", "pkg/manifest", "pkg/podconfig", "pkg/policy", "pkg/podenv", "pkg/podstatic", "pkg/podview", "pkg/plan", "pkg/reclaim", "pkg/service", "pkg/status", "pkg/workload"}

// banned are package names that say nothing.
var banned = []string{"manager", "util", "utils", "helper", "helpers", "common", "base", "types", "misc"}

// file is one Go file that is not a test.
type file struct {
	path string // from the module's root
	dir  string
	set  *token.FileSet
	ast  *ast.File
}

// files parses all shipped files.
func files(t *testing.T) []file {
	t.Helper()
	var all []file
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != ".." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") || nested(path) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
		dir := filepath.ToSlash(filepath.Dir(rel))
		if dir == "." {
			dir = ""
		}
		all = append(all, file{rel, dir, set, f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d files were found", len(all))
	}
	return all
}

// nested reports whether a directory is another module.
func nested(path string) bool {
	if path == ".." {
		return false
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

func (f file) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.set.Position(n.Pos()).Line)
}

func (f file) below(dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return match(d, f.dir) })
}

// match reports whether a pattern matches name.
func match(pattern, name string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == tree || strings.HasPrefix(name, tree+"/")
	}
	return name == pattern
}

func TestImports(t *testing.T) {
	t.Parallel()
	seen := make([]bool, len(rules))
	for _, f := range files(t) {
		for _, spec := range f.ast.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			if strings.HasPrefix(f.dir, "internal/deps") {
				continue // only has go.mod's requirements, and is not shipped
			}
			for i, r := range rules {
				if !match(r.imported, imported) || match(r.imported, module+f.dir) {
					continue
				}
				seen[i] = true
				if !f.below(r.by...) {
					t.Errorf("%s imports %s: %s", f.at(spec), imported, r.why)
				}
			}
		}
	}
	for i, r := range rules {
		if !seen[i] && len(r.by) > 0 {
			t.Errorf("no package imports %s: its rule is out of date", r.imported)
		}
	}
}

func TestImports_PackageAroundTheEngine_ImportsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	found := make(map[string]bool)
	for _, f := range files(t) {
		allowed, listed := only[f.dir]
		if !listed {
			continue
		}
		for _, spec := range f.ast.Imports {
			imported, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
			if !ours {
				continue
			}
			found[f.dir+" "+imported] = true
			if !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s; %s may import %s of ours", f.at(spec), imported, f.dir, strings.Join(allowed, ", "))
			}
		}
	}
	for dir, allowed := range only {
		for _, imported := range allowed {
			if !found[dir+" "+imported] {
				t.Errorf("%s does not import %s: the table is out of date", dir, imported)
			}
		}
	}
}

// selects returns the name of a selector of a package ("os.Rename"), "" for other nodes.
func selects(n ast.Node) string {
	s, ok := n.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if pkg, ok := s.X.(*ast.Ident); ok && pkg.Obj == nil {
		return pkg.Name + "." + s.Sel.Name
	}
	return ""
}

func TestOwned_CallOutsideItsOwner_IsRefused(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, f := range files(t) {
		if f.below("test/...") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			name := selects(n)
			for _, o := range owned {
				if name != o.call {
					continue
				}
				for _, by := range o.by {
					used[name+" "+by] = used[name+" "+by] || match(by, f.dir)
				}
				if !f.below(o.by...) {
					t.Errorf("%s calls %s: %s", f.at(n), name, o.why)
				}
			}
			return true
		})
	}
	for _, o := range owned {
		for _, by := range o.by {
			if !used[o.call+" "+by] {
				t.Errorf("%s does not call %s: the table is out of date", by, o.call)
			}
		}
	}
}

// TestOwned_ResourceVersions_AreComparedByAPIClient: their order is defined only for
// decimal numbers, of any length (apiclient.Older).
func TestOwned_ResourceVersions_AreComparedByAPIClient(t *testing.T) {
	t.Parallel()
	isVersion := func(e ast.Expr) bool {
		s, ok := e.(*ast.SelectorExpr)
		return ok && s.Sel.Name == "ResourceVersion"
	}
	for _, f := range files(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			b, ok := n.(*ast.BinaryExpr)
			if ok && slices.Contains([]token.Token{token.LSS, token.LEQ, token.GTR, token.GEQ}, b.Op) && (isVersion(b.X) || isVersion(b.Y)) {
				t.Errorf("%s: use apiclient.Older", f.at(b))
			}
			return true
		})
	}
}

func TestNamesSaySomething(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		base := strings.TrimSuffix(filepath.Base(f.path), ".go")
		for _, word := range append(strings.Split(base, "_"), strings.Split(f.dir, "/")...) {
			if slices.Contains(banned, word) {
				t.Errorf("%s: %q names nothing", f.path, word)
			}
		}
		if name := f.ast.Name.Name; slices.Contains(banned, name) {
			t.Errorf("%s: package %s names nothing", f.path, name)
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				for _, word := range banned {
					if name := strings.ToLower(spec.Name.Name); name == word || strings.HasSuffix(name, "manager") || strings.HasSuffix(name, "helper") {
						t.Errorf("%s: type %s names nothing", f.at(spec), spec.Name.Name)
						break
					}
				}
			}
			return true
		})
	}
}

// TestGoroutinesHaveOwners bans the go statement: WaitGroup.Go and errgroup show the place that
// waits for the goroutine.
func TestGoroutinesHaveOwners(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if !f.below("pkg/...", "cmd", "") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok && f.dir != "pkg/boundedcall" { // its calls may never end
				t.Errorf("%s: a go statement; use sync.WaitGroup.Go in a function that waits", f.at(n))
			}
			return true
		})
	}
}

// commandGoroutines are the files of cmd that may start goroutines, with the purpose.
var commandGoroutines = map[string]string{
	"cmd/logs.go":          "several logs at once, each its own line of the terminal",
	"cmd/stream.go":        "signals",
	"cmd/stream_unix.go":   "the reader of standard output goes away",
	"cmd/terminal_unix.go": "the size of the terminal changes",
}

// TestCommands_GoroutinesAreTheTerminals: a command is one call; goroutines beside it belong to the
// package that it calls.
func TestCommands_GoroutinesAreTheTerminals(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, f := range files(t) {
		if f.dir != "cmd" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" {
				found[f.path] = true
				if commandGoroutines[f.path] == "" {
					t.Errorf("%s: a goroutine of a command", f.at(n))
				}
			}
			return true
		})
	}
	for path := range commandGoroutines {
		if !found[path] {
			t.Errorf("%s starts no goroutine: the table is out of date", path)
		}
	}
}

// TestNothingHappensBeforeMain bans init functions, and variables at package level that
// code writes to.
func TestNothingHappensBeforeMain(t *testing.T) {
	t.Parallel()
	all := files(t)
	written := map[string]bool{} // by directory and name
	for _, f := range all {
		for name := range assignedNames(f) {
			written[f.dir+"."+name] = true
		}
	}
	for _, f := range all {
		if !f.below("pkg/...", "cmd", "") {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					t.Errorf("%s: an init function", f.at(d))
				}
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				for _, s := range d.Specs {
					for _, name := range s.(*ast.ValueSpec).Names {
						if name.Name != "_" && written[f.dir+"."+name.Name] {
							t.Errorf("%s: the package variable %s is written to", f.at(name), name.Name)
						}
					}
				}
			}
		}
	}
}

// assignedNames returns the names that a file assigns to, increments or takes the address
// of, outside declarations, and that are not local to a function.
func assignedNames(f file) map[string]bool {
	names := map[string]bool{}
	note := func(e ast.Expr) {
		for {
			switch x := e.(type) {
			case *ast.IndexExpr:
				e = x.X
				continue
			case *ast.SelectorExpr:
				e = x.X
				continue
			case *ast.Ident:
				// A name that resolves to a declaration in this file's package scope, or to
				// none, is not a local one.
				if x.Obj == nil || f.ast.Scope.Lookup(x.Name) == x.Obj {
					names[x.Name] = true
				}
			}
			return
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, l := range n.Lhs {
					note(l)
				}
			}
		case *ast.IncDecStmt:
			note(n.X)
		}
		return true
	})
	return names
}

// TestPurePackagesHaveNoClockAndNoLock: time is a parameter, and every value has one owner.
// podconfig adds the time of its sources' snapshots, in the two places that read them.
func TestPurePackagesHaveNoClockAndNoLock(t *testing.T) {
	t.Parallel()
	forbidden := map[string][]string{
		"time": {"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"},
		"sync": {"Mutex", "RWMutex", "Map", "Cond"},
		"os":   {"*"},
		"net":  {"*"},
	}
	for _, f := range files(t) {
		if !f.below(pure...) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := s.X.(*ast.Ident)
			if !ok || pkg.Obj != nil {
				return true
			}
			names := forbidden[pkg.Name]
			if !slices.Contains(names, s.Sel.Name) && !slices.Contains(names, "*") {
				return true
			}
			if f.path == "pkg/podconfig/podconfig.go" && pkg.Name == "time" && s.Sel.Name == "Now" {
				return true
			}
			t.Errorf("%s: %s.%s in a pure package", f.at(n), pkg.Name, s.Sel.Name)
			return true
		})
	}
}

// TestPackages_HaveAComment: every package has a comment of more than two lines.
func TestPackages_HaveAComment(t *testing.T) {
	t.Parallel()
	comments := map[string]string{}
	for _, f := range files(t) {
		comments[f.dir] += f.ast.Doc.Text()
	}
	for dir, text := range comments {
		if strings.HasPrefix(dir, "pkg/") && strings.Count(text, "\n") < 3 {
			t.Errorf("%s: the package comment says too little: %q", dir, text)
		}
	}
}
