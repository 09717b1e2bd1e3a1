package status_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// TestC_1_26_11_MessagesShareTwelveKiB gives every container an equal part of 12 KiB for its
// messages, cut between characters; ephemeral containers count.
//
// Shows: C-1.26.11
func TestC_1_26_11_MessagesShareTwelveKiB(t *testing.T) {
	t.Parallel()
	want, err := plantest.Spec([]byte("metadata: {name: p}\nspec:\n  restartPolicy: Never\n  initContainers: [{name: init, image: i}]\n" +
		"  containers: [{name: a, image: a}, {name: b, image: b}]\n  ephemeralContainers: [{name: e, image: e}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	const part = 12 << 10 / 4
	have := pod.Actual{Key: want.Key, UID: want.UID(), Sandbox: &pod.Sandbox{ID: "s", Ready: true}, Containers: map[string]pod.Container{}}
	for name, message := range map[string]string{
		"init": strings.Repeat("x", part), "a": strings.Repeat("x", part+1), "b": strings.Repeat("€", part), "e": "",
	} {
		have.Containers[name] = pod.Container{ID: name, Name: name, SandboxID: "s", State: pod.StateExited, Message: message}
	}
	have.Dead = []pod.Container{{ID: "a0", Name: "a", SandboxID: "s", State: pod.StateExited, Message: strings.Repeat("y", 4096)}}
	st := status.Of(want, have, pod.Health{}, v1.PodStatus{}, status.Notes{}, plantest.Now)
	if got := len(st.InitContainerStatuses[0].State.Terminated.Message); got != part {
		t.Errorf("a message that fits has %d bytes of %d", got, part)
	}
	a, b := st.ContainerStatuses[0], st.ContainerStatuses[1]
	if got := len(a.State.Terminated.Message); got != part {
		t.Errorf("a message that does not fit has %d bytes, want %d", got, part)
	}
	if got := len(a.LastTerminationState.Terminated.Message); got != part {
		t.Errorf("the message of the previous container has %d bytes, want %d", got, part)
	}
	if m := b.State.Terminated.Message; len(m) > part || len(m) < part-2 || !utf8.ValidString(m) {
		t.Errorf("cut within a character: %d bytes", len(m))
	}
}

// TestC_1_34_1_TextOfResourcesIsReadBack parses every text back to the resources it was
// formatted from.
//
// Shows: C-1.34.1
func TestC_1_34_1_TextOfResourcesIsReadBack(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"none", "cpu=100m/200m", "cpu=/1,memory=64Mi/", "cpu=1/2,ephemeral-storage=1Gi/,example.com/gpu=2/2,memory=64Mi/64Mi"} {
		if diff := cmp.Diff(text, pod.ResourcesText(pod.ParseResources(text))); diff != "" {
			t.Error(diff)
		}
	}
	for _, text := range []string{"", "cpu", "cpu=x/y", ",,="} { // not written by nodectl
		if got := pod.ResourcesText(pod.ParseResources(text)); got != "none" {
			t.Errorf("%q is read as %q", text, got)
		}
	}
}
