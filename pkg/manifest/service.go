package manifest

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// maxFrontends is how many pairs of an address and a port a Service may have. Without a limit, a few lines
// could ask for millions of rules in the packet filter.
const maxFrontends = 1_000

// healthCheckPort stands for the port that an API server allocates before it validates.
const healthCheckPort = 32767

// service reads a Service, with the defaults of the API.
func (r *reader) service(o object) {
	var s v1.Service
	problems, ok := r.decode(o, &s, false)
	var ignored []pod.Problem
	if ok {
		for _, u := range podspec.UnsupportedService(&s) {
			problems = append(problems, o.problem(u.Path, u.Msg, u.Hint))
		}
		ignored = podspec.IgnoredService(&s)
		tidy(&s.ObjectMeta)
		s.Kind, s.APIVersion = pod.KindService, "v1"
		s.UID, s.OwnerReferences, s.Status = "", nil, v1.ServiceStatus{}
		problems = o.uncovered(problems, serviceProblems(&s), false)
	}
	if ok && len(problems) == 0 {
		r.notices(o, ignored)
	}
	content := map[string]any{"labels": s.Labels, "annotations": s.Annotations, "spec": s.Spec}
	r.config(o, &s, s.ObjectMeta, problems, content)
}

// serviceProblems defaults a Service and returns the problems that the API's validation of new Services
// finds, without their places.
func serviceProblems(s *v1.Service) []pod.Problem {
	corev1.SetObjectDefaults_Service(s)
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 { // as an API server does before it validates
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	if n := len(s.Spec.Ports) * (1 + len(s.Spec.ExternalIPs) + len(s.Spec.LoadBalancerSourceRanges)); n > maxFrontends {
		return []pod.Problem{{
			Path: "spec.ports", Msg: fmt.Sprintf("%d pairs of a port and an external address are too many: a Service may have at most %d", n, maxFrontends),
			Hint: "split it into several Services",
		}}
	}
	var in core.Service
	if err := corev1.Convert_v1_Service_To_core_Service(s, &in, nil); err != nil {
		return []pod.Problem{{Msg: "not a Service: " + err.Error()}}
	}
	if in.Spec.Type == core.ServiceTypeLoadBalancer && in.Spec.ExternalTrafficPolicy == core.ServiceExternalTrafficPolicyLocal && in.Spec.HealthCheckNodePort == 0 {
		in.Spec.HealthCheckNodePort = healthCheckPort
	}
	errs := validation.ValidateServiceCreate(&in)
	nameEntries(errs, "metadata.labels", "metadata.labels", s.Labels)
	nameEntries(errs, "metadata.annotations", "metadata.annotations", s.Annotations)
	out := fieldProblems(errs, false)
	for i := range out {
		out[i].Path = strings.Replace(out[i].Path, "spec.LoadBalancerSourceRanges", "spec.loadBalancerSourceRanges", 1)
		if rest, is := strings.CutPrefix(out[i].Path, "spec.clusterIPs[0]"); is && slices.Equal(s.Spec.ClusterIPs, []string{s.Spec.ClusterIP}) {
			out[i].Path = "spec.clusterIP" + rest // the field that the author wrote
		}
	}
	return out
}

// ignoredKind returns why nodectl ignores objects of this kind, "" if it does not. They have no effect on
// a single node, and charts often contain them.
func ignoredKind(kind, version string) string {
	group, _, _ := strings.Cut(version, "/")
	switch {
	case kind == "PodDisruptionBudget" && group == "policy":
		return "there is no other node to which the pods could move, and a drain stops all of them"
	case kind == "HorizontalPodAutoscaler" && group == "autoscaling":
		return "nodectl does not change the number of replicas by load: the workload keeps spec.replicas"
	}
	return ""
}

// notice adds a notice that an object is ignored.
func (r *reader) notice(o object, kind, why string) {
	line, col := o.at.key("kind")
	path := o.path
	if path != "" {
		path = strings.TrimSuffix(path, ".") + ": "
	}
	r.warnings = append(r.warnings, pod.Problem{File: r.o.File, Line: line, Column: col, Msg: fmt.Sprintf("%s%s is ignored: %s", path, kind, why)})
}
