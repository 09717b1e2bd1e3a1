package policy_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/policy"
)

// A static source that may not claims neither the UID of another pod, whose directories
// and logs it would share, nor a priority of the system's.
//
// Shows: D1
func TestPolicy_ClaimedUIDAndSystemPriority_AreRefused(t *testing.T) {
	t.Parallel()
	const containers = "spec: {nodeName: n1, containers: [{name: c, image: a}]"
	derived := pod.StaticUID("n1", "default", "web-n1")
	for _, c := range []struct {
		name, allow, uid, more, want string // want: the field; "" is allowed
	}{
		{"derived", "uids: derived", derived, "", ""},
		{"claimed", "uids: derived", "9c1c8a4e-0000-4000-8000-000000000001", "", "metadata.uid"},
		{"another pod's derived one", "uids: derived", pod.StaticUID("n1", "default", "db-n1"), "", "metadata.uid"},
		{"claimed where that is allowed", "uids: claimed", "9c1c8a4e", "", ""},
		{"claimed where nothing is said", "images: ['*']", "9c1c8a4e", "", ""},
		{"a high priority", "priority: 1000", derived, ", priority: 1001", "spec.priority"},
		{"the highest", "priority: 1000", derived, ", priority: 1000", ""},
		{"a system class", "priority: 1000000000", derived, ", priority: 2000001000, priorityClassName: system-node-critical", "spec.priority"},
		{"a system class alone", "priority: 1000000000", derived, ", priorityClassName: system-cluster-critical", "spec.priorityClassName"},
		{"below zero", "priority: -1", derived, ", priority: 0", "spec.priority"},
		{"below zero, as written", "priority: -1", derived, ", priority: -1", ""},
		{"below zero, with none", "priority: -1", derived, "", "spec.priority"},
		{"below zero, with a class of no node", "priority: -1", derived, ", priorityClassName: mine", "spec.priority"},
		{"a system class where nothing is said", "images: ['*']", derived, ", priorityClassName: system-node-critical", ""},
	} {
		s := podOf(t, "{metadata: {name: web-n1}, "+containers+c.more+"}}")
		s.Pod.UID = types.UID(c.uid)
		problems := edge(t, c.allow).Check(s, "/m")
		switch {
		case c.want == "" && len(problems) > 0, c.want != "" && (len(problems) != 1 || problems[0].Path != c.want):
			t.Errorf("%s: %v", c.name, problems)
		}
	}
	s := podOf(t, "{metadata: {name: web}, "+containers+"}}")
	s.Pod.UID, s.Origin.Source = "6ba7b810", "api"
	if problems := edge(t, "uids: derived").Check(s, "/kubeconfig"); len(problems) > 0 {
		t.Errorf("an API server gives UIDs: %v", problems)
	}
}

// Mistakes in the two keys are found.
func TestParse_IdentityKeys_MistakesAreFound(t *testing.T) {
	t.Parallel()
	for allow, want := range map[string]string{
		"uids: mine":           "is not one of claimed, derived",
		"uids: [derived]":      "expected a string",
		"priority: high":       "expected a whole number",
		"priority: '5'":        "expected a whole number",
		"priority: 5000000000": "expected a whole number",
		"priority: 1.5":        "expected a whole number",
		"priority:":            "has no value",
	} {
		_, problems := policy.Parse([]byte(head+"default:\n  "+allow+"\n"), "policy.yaml", func(string, []string) string { return "" })
		if len(problems) != 1 || !strings.Contains(problems[0].Msg, want) {
			t.Errorf("%s: %v", allow, problems)
		}
	}
}

// TestJudge_ManyVolumesOfOneName_CostTheirNumber: an API server sends a pod with so many
// volumes and mounts that each volume compared with each mount takes minutes.
func TestJudge_ManyVolumesOfOneName_CostTheirNumber(t *testing.T) {
	t.Parallel()
	const n = 100_000
	s := podOf(t, "{spec: {containers: [{name: c, image: a}]}}")
	for i := range n {
		name := fmt.Sprint("v", i)
		s.Pod.Spec.Volumes = append(s.Pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data/" + name, Type: ptr.To(v1.HostPathFile)}}})
		s.Pod.Spec.Containers[0].VolumeMounts = append(s.Pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: name, ReadOnly: true, MountPath: "/" + name})
	}
	if problems := edge(t, "hostPaths: [{prefix: /data, readOnly: true}]").Check(s, "/m"); len(problems) > 0 {
		t.Errorf("%d problems, first %v", len(problems), problems[0])
	}
}
