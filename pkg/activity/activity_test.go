package activity

import (
	"context"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

var web = pod.Key{Namespace: "default", Name: "web"}

// While the address of a host is looked up for a connection, the call names the host.
func TestTrace_LookupOfName_IsNamed(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	ctx, end := Trace(WithPod(b.Context(t.Context()), web), Call{Kind: Hook, Name: "postStart", Target: "app: GET db.test:80/"})
	shown := func() string { return b.Calls(web)[0].String() }
	const plain = "postStart hook of container app: GET db.test:80/"
	if text := shown(); text != plain {
		t.Errorf("before: %q", text)
	}
	trace := httptrace.ContextClientTrace(ctx)
	trace.DNSStart(httptrace.DNSStartInfo{Host: "db.test"})
	if text := shown(); text != plain+" (looking up the name db.test)" {
		t.Errorf("during: %q", text)
	}
	trace.DNSDone(httptrace.DNSDoneInfo{})
	if text := shown(); text != plain {
		t.Errorf("after: %q", text)
	}
	end()
	if all := b.Calls(web); len(all) > 0 {
		t.Errorf("ended: %v", all)
	}
	if traced, end := Trace(t.Context(), Call{}); traced != t.Context() {
		t.Error("a context without a board is changed")
	} else {
		end()
	}
}

// A call is on the board of its context, for its pod, until it ends.
func TestBegin_CallOfPod_IsOnTheBoardUntilItEnds(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	ctx := WithPod(b.Context(t.Context()), web)
	end := Begin(ctx, Call{Kind: Step, Name: "run-sandbox"})
	inner := Begin(ctx, Call{Kind: Runtime, Name: "RunPodSandbox"})
	Begin(b.Context(t.Context()), Call{Kind: Runtime, Name: "Status"})
	if all := b.Calls(web); len(all) != 2 || all[0].Name != "run-sandbox" || all[1].Name != "RunPodSandbox" {
		t.Errorf("calls of the pod: %v", all)
	}
	if all := b.Calls(pod.Key{}); len(all) != 1 || all[0].Name != "Status" {
		t.Errorf("calls of the agent: %v", all)
	}
	inner()
	end()
	if all := b.Calls(web); len(all) != 0 {
		t.Errorf("after their end: %v", all)
	}
}

// Without a board nothing is noted, and nothing fails.
func TestBegin_NoBoard_IsIgnored(t *testing.T) {
	t.Parallel()
	var none *Board
	Begin(WithPod(none.Context(context.Background()), web), Call{})()
	none.Begin(web, Call{})()
	none.SetState(web, State{WaitFor: "x"})
	if _, ok := none.State(web); ok || none.Calls(web) != nil {
		t.Error("a nil board has something")
	}
}

// The time since which a pod waits is that of the first state in a row that waits for the same.
func TestSetState_SameWait_KeepsItsBegin(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	b.SetState(web, State{WaitFor: "a"})
	first, _ := b.State(web)
	b.SetState(web, State{WaitFor: "a", Until: time.Now()})
	if s, _ := b.State(web); !s.Since.Equal(first.Since) || s.Until.IsZero() {
		t.Errorf("%+v after %+v", s, first)
	}
	b.SetState(web, State{})
	if _, ok := b.State(web); ok || len(b.states) != 0 {
		t.Error("a settled pod has a state")
	}
}

// The summary names the condition that the pod's plan waits for, whatever else the report has.
func TestSummarize_NamesTheCause(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(s int) time.Time { return now.Add(-time.Duration(s) * time.Second) }
	step := Call{Kind: Step, Name: "create-container", Target: "app", Since: ago(12)}
	id := strings.Repeat("0123456789ab", 5) + "0123"
	for name, c := range map[string]struct {
		of   Report
		want string
	}{
		"call within a step": {
			Report{Calls: []Call{step, {Kind: Runtime, Name: "StartContainer", Target: id, Since: ago(9)}}},
			"create-container app: runtime call StartContainer 0123456789ab has not ended for 9s",
		},
		"measuring beside a step": {
			Report{Calls: []Call{{Kind: Volume, Name: "measure volume", Path: "/mnt", Since: ago(20)}, step}},
			"step create-container app has not ended for 12s",
		},
		"measuring alone": {
			Report{Calls: []Call{{Kind: Volume, Name: "measure volume", Target: "data", Path: "/mnt", Since: ago(20)}}},
			"measure volume data (/mnt) has not ended for 20s",
		},
		"CSI driver": {
			Report{Calls: []Call{{Kind: Driver, Name: "NodeStageVolume", Target: "vol-1", Host: "disk.test", Since: ago(9)}}},
			"NodeStageVolume of volume vol-1 by CSI driver disk.test has not ended for 9s",
		},
		"DRA driver": {
			Report{Calls: []Call{{Kind: Claim, Name: "NodePrepareResources", Target: "gpu", Host: "gpu.test", Since: ago(9)}}},
			"NodePrepareResources of ResourceClaim gpu by DRA driver gpu.test has not ended for 9s",
		},
		"device plugin": {
			Report{Calls: []Call{
				{Kind: Plugin, Name: "allocate devices", Target: "app", Since: ago(9)},
				{Kind: Plugin, Name: "allocate devices", Target: "app", Host: "x.com/gpu", Since: ago(8)},
			}},
			"allocate devices for container app by the device plugin of x.com/gpu has not ended for 8s",
		},
		"short call": {Report{Phase: "Running", Calls: []Call{{Kind: Probe, Name: "readiness probe", Since: now}}}, "running; waits for nothing"},
		"wait":       {Report{State: &State{WaitFor: "network is not ready", Until: ago(-7)}}, "network is not ready (again in 7s)"},
		"failure":    {Report{State: &State{Failures: []Failure{{Container: "app", Reason: "ErrImagePull", Message: "denied"}}}}, "container app: ErrImagePull: denied"},
		"steps":      {Report{State: &State{Steps: []string{"run-sandbox"}}}, "next step: run-sandbox"},
		"terminated": {Report{Phase: "Failed", Reason: "Evicted"}, "it has terminated (Evicted); waits for nothing"},
		"no runtime": {Report{AgentWaits: "container runtime is not ready: x"}, "container runtime is not ready: x"},
		"not ready":  {Report{Phase: "Running", NotReady: []string{"container app"}}, "not ready: container app"},
	} {
		c.of.Now = now
		if c.of.Summarize(); c.of.Summary != c.want || c.of.Settled != strings.HasSuffix(c.want, "waits for nothing") {
			t.Errorf("%s: %q (settled %t), want %q", name, c.of.Summary, c.of.Settled, c.want)
		}
	}
}
