package policy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/policy"
	"github.com/nodectl/nodectl/pkg/source"
)

var fixtureID = regexp.MustCompile(`^([a-z_]+?)[0-9]*\.yaml$`)

// overridden names the checks of restricted that stand in for one of baseline.
var overridden = map[string]string{
	"capabilities_baseline":   "capabilities_restricted",
	"hostpathvolumes":         "restrictedvolumes",
	"procmount":               "procmount_restricted",
	"seccompprofile_baseline": "seccompprofile_restricted",
}

// TestPodSecurityConformance checks Kubernetes' own fixtures, of every level and
// version: each is rejected by its check, by name, or let through.
func TestPodSecurityConformance(t *testing.T) {
	t.Parallel()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/pod-security-admission").Output()
	must(t, err)
	root := filepath.Join(strings.TrimSpace(string(module)), "test", "testdata")
	files, err := filepath.Glob(filepath.Join(root, "*", "v1.*", "*", "*.yaml"))
	must(t, err)
	checks, policies := map[string]bool{}, map[string]*policy.Policy{}
	passes, windows := 0, 0
	newest := 0
	for _, f := range files {
		var minor int
		_, err := fmt.Sscanf(filepath.Base(filepath.Dir(filepath.Dir(f))), "v1.%d", &minor)
		must(t, err)
		newest = max(newest, minor)
	}
	for _, f := range files {
		rel, err := filepath.Rel(root, f)
		must(t, err)
		part := strings.Split(rel, string(filepath.Separator))
		level, version, want, name := part[0], part[1], part[2], part[3]
		data, err := os.ReadFile(f)
		must(t, err)
		versions := []string{version}
		if version == fmt.Sprint("v1.", newest) {
			versions = append(versions, "latest", "v1.99")
		}
		for _, version := range versions {
			says := fmt.Sprintf("podSecurity: {level: %s, version: %s}", level, version)
			if policies[says] == nil {
				policies[says] = edge(t, says)
			}
			got := refused(t, policies[says], fixture(t, data))
			switch {
			case name == "base_windows.yaml":
				windows++
				if len(got) == 0 {
					t.Errorf("%s: the policy allows it for another system", rel)
				}
			case want == "pass":
				passes++
				if len(got) > 0 {
					t.Errorf("%s: %q", rel, got)
				}
			default:
				id := fixtureID.FindStringSubmatch(name)[1]
				checks[id] = true
				named := func(id string) bool {
					return slices.ContainsFunc(got, func(line string) bool {
						return strings.Contains(strings.ToLower(line), "pod security level "+level+", check "+id+":") ||
							strings.HasSuffix(strings.ToLower(line), "pod security level "+level+", check "+id)
					})
				}
				if !named(id) && (level != "restricted" || overridden[id] == "" || !named(overridden[id])) {
					t.Errorf("%s: not rejected by %s: %q", rel, id, got)
				}
			}
		}
	}
	for _, c := range podsecurity.DefaultChecks() {
		if !checks[strings.ToLower(string(c.ID))] {
			t.Errorf("no fixture for check %s", c.ID)
		}
	}
	if passes < 500 || windows == 0 {
		t.Errorf("only %d fixtures that pass, %d for another system", passes, windows)
	}
}

func fixture(t testing.TB, data []byte) *pod.Spec {
	t.Helper()
	p := &v1.Pod{}
	must(t, yaml.Unmarshal(data, p))
	p.Namespace = "default"
	corev1.SetObjectDefaults_Pod(p) // as every source's pods are
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{File: "f", Line: 1}}
}

// TestPodSecurityAgreesWithKubernetes: over all fixtures and levels, the checks
// that refuse are those that Kubernetes' evaluator finds.
func TestPodSecurityAgreesWithKubernetes(t *testing.T) {
	t.Parallel()
	evaluator, err := podsecurity.NewEvaluator(podsecurity.DefaultChecks(), nil)
	must(t, err)
	s := podOf(t, `spec: {hostNetwork: true, containers: [{name: c, image: x, ports: [{containerPort: 1, hostPort: 1}], securityContext: {privileged: true, procMount: Unmasked, capabilities: {add: [SYS_ADMIN]}}}], volumes: [{name: v, hostPath: {path: /}}]}`)
	for _, level := range []api.Level{api.LevelPrivileged, api.LevelBaseline, api.LevelRestricted} {
		for minor := range 40 {
			want := 0
			for _, r := range evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.MajorMinorVersion(1, minor)}, &s.Pod.ObjectMeta, &s.Pod.Spec) {
				if !r.Allowed {
					want++
				}
			}
			got := refused(t, edge(t, fmt.Sprintf("podSecurity: {level: %s, version: v1.%d}", level, minor)), s)
			if len(got) != want {
				t.Errorf("%s v1.%d: %d checks refuse, want %d: %q", level, minor, len(got), want, got)
			}
		}
	}
}

// A volume with two sources is refused at every level: Kubernetes' check of restricted
// volumes sees the ConfigMap, and the host path would be mounted.
//
// Shows: D1
func TestPolicy_VolumeWithTwoSources_IsRefused(t *testing.T) {
	t.Parallel()
	const two = `{spec: {volumes: [{name: a, configMap: {name: a}, hostPath: {path: /}}], securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}},
	  containers: [{name: c, image: a, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]}}`
	for _, allow := range []string{"podSecurity: {level: restricted}", "podSecurity: {level: privileged}", "images: ['*']"} {
		s := podOf(t, two)
		f := checkedBy(t, edge(t, allow), "api", "/kubeconfig", source.File{File: "default/web", Pods: []*pod.Spec{s}})
		if len(f.Pods) != 0 || len(f.Broken) != 1 || len(f.Problems) == 0 {
			t.Errorf("%s: pods %v, problems %v", allow, f.Pods, f.Problems)
		}
	}
}

// A manifest names CDI devices only where its source may do everything: a device may mount host
// paths. In a pod of an API server the annotation has no effect, and is let through.
func TestJudge_CDIDevicesOfAManifest_NeedTheLevelPrivileged(t *testing.T) {
	t.Parallel()
	for _, it := range []struct {
		level, kind string
		allowed     bool
	}{{"privileged", "file", true}, {"baseline", "file", false}, {"baseline", "api", true}} {
		s := podOf(t, `{metadata: {annotations: {cdi.k8s.io/gpu: x.com/gpu=0}}, spec: {containers: [{name: c, image: a}]}}`)
		s.Origin.Source = it.kind
		f := checkedBy(t, edge(t, "podSecurity: {level: "+it.level+"}"), it.kind, "/m", source.File{File: "default/web", Pods: []*pod.Spec{s}})
		if (len(f.Pods) == 1) != it.allowed || !it.allowed && !strings.Contains(f.Problems[0].Msg, "does not allow CDI devices") {
			t.Errorf("%+v: pods %v, problems %v", it, f.Pods, f.Problems)
		}
		names, err := pod.CDIDevices(s)
		if err != nil || len(names) != map[string]int{"file": 1, "api": 0}[it.kind] {
			t.Errorf("%+v: devices %v, %v", it, names, err)
		}
	}
}
