package apiclient

import (
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The server refuses a node's GET of each pod that is not there, as a real one does. A deleted
// pod, and one of another node, is none; a pod as large as etcd takes is read whole.
//
// Shows: F22
func TestPod_ServerRefusesTheGetOfADeletedPod_IsNone(t *testing.T) {
	s := newFakeServer(t)
	src := s.reader(t)
	has := func(asJSON bool, all ...v1.Pod) {
		s.says(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/api/v1/namespaces/default/pods" || r.URL.Query().Get("fieldSelector") != "metadata.name=one,spec.nodeName=n1" {
				w.WriteHeader(http.StatusForbidden)
				return true
			}
			w.Header().Set("Content-Type", map[bool]string{true: jsonType, false: protobufType}[asJSON])
			_, _ = w.Write(encodeList(asJSON, &v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: all}))
			return true
		})
	}
	large, other := onePod(), onePod()
	large.Annotations["content"] = strings.Repeat("\n", 3<<19)
	other.Spec.NodeName = "n2"
	for _, asJSON := range []bool{false, true} {
		has(asJSON, *large)
		if p, err := src.Pod(t.Context(), "n1", "default", "one"); err != nil || p == nil || p.Annotations["content"] != large.Annotations["content"] {
			t.Errorf("JSON %t: a pod that the server has: %t, error %v", asJSON, p != nil, err)
		}
		has(asJSON)
		if p, err := src.Pod(t.Context(), "n1", "default", "one"); err != nil || p != nil {
			t.Errorf("JSON %t: a deleted pod: %v, error %v", asJSON, p, err)
		}
		has(asJSON, *other)
		if p, err := src.Pod(t.Context(), "n1", "default", "one"); err != nil || p != nil {
			t.Errorf("JSON %t: a pod of another node: %v, error %v", asJSON, p, err)
		}
	}
	if _, err := src.Pod(t.Context(), "n1", "default", "two"); err == nil || !strings.Contains(err.Error(), "denies permission to read pod/default/two") {
		t.Errorf("without permission: %v", err)
	}
}
