package manifest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// served returns a pod in the form in which an API server sends it to a node: with the additions of
// defaulting, admission, scheduler and bookkeeping.
const served = `
apiVersion: v1
kind: Pod
metadata:
  name: web-7d4b9c6f5-x2x7k
  generateName: web-7d4b9c6f5-
  namespace: shop
  uid: 6ba7b810-9dad-11d1-80b4-00c04fd430c8
  resourceVersion: "4711"
  generation: 1
  creationTimestamp: "2026-03-01T10:00:00Z"
  finalizers: [batch.kubernetes.io/job-tracking]
  labels: {app: web}
  annotations: {note: kept}
  ownerReferences:
  - {apiVersion: apps/v1, kind: ReplicaSet, name: web-7d4b9c6f5, uid: 7ba7b810-9dad-11d1-80b4-00c04fd430c8, controller: true, blockOwnerDeletion: true}
  managedFields:
  - {manager: kube-controller-manager, operation: Update, apiVersion: v1, time: "2026-03-01T10:00:00Z", fieldsType: FieldsV1, fieldsV1: {"f:spec": {}}}
spec:
  automountServiceAccountToken: false
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}]}}}
  nodeSelector: {disk: ssd}
  containers:
  - name: web
    image: registry.example/web:1
    imagePullPolicy: IfNotPresent
    resources: {requests: {cpu: 100m}}
    resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    securityContext: {}
  dnsPolicy: ClusterFirst
  enableServiceLinks: true
  nodeName: n1
  preemptionPolicy: PreemptLowerPriority
  priority: 1000
  priorityClassName: high
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  serviceAccount: default
  serviceAccountName: default
  terminationGracePeriodSeconds: 30
  tolerations:
  - {effect: NoExecute, key: node.kubernetes.io/not-ready, operator: Exists, tolerationSeconds: 300}
  - {effect: NoExecute, key: node.kubernetes.io/unreachable, operator: Exists, tolerationSeconds: 300}
  topologySpreadConstraints:
  - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}
status:
  phase: Pending
  qosClass: Burstable
  conditions: [{type: PodScheduled, status: "True"}]
`

func servedPod(t testing.TB) *v1.Pod {
	t.Helper()
	var p v1.Pod
	if err := sigsyaml.UnmarshalStrict([]byte(served), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

func apiOptions() Options {
	return Options{Node: "N1", Source: "api", Location: "https://api.example", File: "shop/web"}
}

func fromAPI(t testing.TB, p *v1.Pod) *pod.Spec {
	t.Helper()
	s, problems := FromAPI(p, apiOptions())
	if len(problems) > 0 || s == nil {
		t.Fatalf("spec %v, problems %v", s, problems)
	}
	return s
}

// TestC_1_8_APIPodIsTakenAsItIs: neither defaulted nor renamed, nothing of p is
// written to.
//
// Shows: C-1.8
func TestC_1_8_APIPodIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	p := servedPod(t)
	before := p.DeepCopy()
	s := fromAPI(t, p)
	if diff := cmp.Diff(before, p); diff != "" {
		t.Errorf("the given pod was written to:\n%s", diff)
	}
	want := p.DeepCopy()
	want.ManagedFields = nil
	want.Annotations = map[string]string{"note": "kept", pod.AnnotationConfigSource: "api"}
	if diff := cmp.Diff(want, s.Pod); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if s.Key != (pod.Key{Namespace: "shop", Name: "web-7d4b9c6f5-x2x7k"}) || s.UID() != string(p.UID) {
		t.Errorf("key %v, uid %s", s.Key, s.UID())
	}
	if want := (pod.Origin{Source: "api", Location: "https://api.example", File: "shop/web"}); s.Origin != want {
		t.Errorf("origin %+v", s.Origin)
	}
	if &s.Pod.Spec.Containers[0] != &p.Spec.Containers[0] {
		t.Error("the spec was copied")
	}
}

// TestC_1_19_9_OnlyNameAndImageRestartAnAPIContainer edits a served pod in all
// the ways a server lets through, or adds by itself.
//
// Shows: C-1.19.9
func TestC_1_19_9_OnlyNameAndImageRestartAnAPIContainer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit     func(*v1.Pod)
		restarts string
		whole    bool
	}{
		"nothing":    {func(*v1.Pod) {}, "", false},
		"label":      {func(p *v1.Pod) { p.Labels["x"] = "y" }, "", false},
		"toleration": {func(p *v1.Pod) { p.Spec.Tolerations = nil }, "", false},
		"env":        {func(p *v1.Pod) { p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "A", Value: "b"}} }, "", false},
		"resources":  {func(p *v1.Pod) { p.Spec.Containers[0].Resources = v1.ResourceRequirements{} }, "", false},
		"volumes": {func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "a", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		}, "", false},
		"hostname": {func(p *v1.Pod) { p.Spec.Hostname = "a" }, "", false},
		"image":    {func(p *v1.Pod) { p.Spec.Containers[0].Image = "b" }, "web", false},
		"uid":      {func(p *v1.Pod) { p.UID = "other" }, "", true},
	} {
		old, p := fromAPI(t, servedPod(t)), servedPod(t)
		c.edit(p)
		whole, containers, _ := podspec.Restart(old, fromAPI(t, p))
		if whole != c.whole || strings.Join(containers, ",") != c.restarts {
			t.Errorf("%s: restarts pod %v, containers %v", name, whole, containers)
		}
	}
}

// TestC_1_19_4_APIPodBringsItsEphemeralContainers, its order and its gates.
//
// Shows: C-1.19.4
func TestC_1_19_4_APIPodBringsItsEphemeralContainers(t *testing.T) {
	t.Parallel()
	p := servedPod(t)
	debug := v1.EphemeralContainer{TargetContainerName: "web", EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "debug", TTY: true, TerminationMessagePolicy: v1.TerminationMessageReadFile}}
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{debug}
	p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	p.Annotations[pod.AnnotationDependsOn] = "db:ready, cache"
	was, s := fromAPI(t, servedPod(t)), fromAPI(t, p)
	if diff := cmp.Diff([]pod.Dependency{{Name: "db", Until: pod.Ready}, {Name: "cache", Until: pod.Started}}, s.DependsOn); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c, _ := s.Container("debug"); c == nil || c.Image != "debug" {
		t.Errorf("container %+v", c)
	}
	if whole, containers, reason := podspec.Restart(was, s); whole || len(containers) > 0 || reason != "" {
		t.Errorf("restarts pod %v, containers %v: %s", whole, containers, reason)
	}
}

// A pod of an API server has no UID of a static pod, whose directories it would share, not
// even while it is deleted.
func TestFromAPI_UIDOfAStaticPod_IsRejected(t *testing.T) {
	t.Parallel()
	for _, deleted := range []*metav1.Time{nil, {Time: time.Now()}} {
		p := servedPod(t)
		p.UID, p.DeletionTimestamp = types.UID(pod.StaticUID("n1", "default", "web-n1")), deleted
		if s, problems := FromAPI(p, apiOptions()); s != nil || len(problems) != 1 || problems[0].Path != "metadata.uid" {
			t.Errorf("deleted %v: spec %v, problems %+v", deleted, s, problems)
		}
	}
}

func TestRule0_APIPodIsRejectedByTheField(t *testing.T) {
	t.Parallel()
	seconds := int64(30)
	for path, edit := range map[string]func(*v1.Pod){
		"spec.volumes[0].iscsi": func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "x", IQN: "y"}}}}
		},
		"spec.resources.claims": func(p *v1.Pod) {
			p.Spec.Resources = &v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu"}}}
		},
		"spec.initContainers[0].securityContext.windowsOptions": func(p *v1.Pod) {
			p.Spec.InitContainers = make([]v1.Container, 1)
			p.Spec.InitContainers[0].Name = "first"
			p.Spec.InitContainers[0].SecurityContext = &v1.SecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{RunAsUserName: new("me")}}
		},
		"metadata.annotations[nodectl.dev/depends-on]": func(p *v1.Pod) { p.Annotations[pod.AnnotationDependsOn] = "db:" },
		"spec.nodeName":            func(p *v1.Pod) { p.Spec.NodeName = "n2" },
		"spec.containers[0].ports": func(p *v1.Pod) { p.Spec.Containers[0].Ports = make([]v1.ContainerPort, pod.MaxPorts+1) },
		"spec": func(p *v1.Pod) { // more objects than are read for one pod
			for i := range pod.MaxObjects + 1 {
				ref := v1.LocalObjectReference{Name: fmt.Sprint("o", i)}
				p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: ref}})
			}
		},
	} {
		p := servedPod(t)
		edit(p)
		s, problems := FromAPI(p, apiOptions())
		if s != nil || len(problems) != 1 || problems[0].Path != path || problems[0].File != "shop/web" || problems[0].Line != 0 || problems[0].Msg == "" {
			t.Errorf("%s: spec %v, problems %+v", path, s, problems)
		}
		// A pod that is being deleted is accepted, because it has to stop.
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(1, 0)}, &seconds
		if s, problems := FromAPI(p, apiOptions()); s == nil || len(problems) > 0 {
			t.Errorf("%s, being deleted: %v", path, problems)
		}
	}
}
