package probe_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/probe"
)

// Shows: C-1.29.2
func TestC_1_29_2_Defaults(t *testing.T) {
	t.Parallel()
	if got := probe.Timeout(&v1.Probe{}); got != time.Second {
		t.Errorf("timeout %s, want 1s", got)
	}
	if got := probe.Period(&v1.Probe{}); got != 10*time.Second {
		t.Errorf("period %s, want 10s", got)
	}
	if got := statuses(&v1.Probe{}, "+---+"); got != "R..UR" {
		t.Errorf("success 1, failure 3: got %q", got)
	}
}

// Shows: C-1.29.5
func TestC_1_29_5_Due(t *testing.T) {
	t.Parallel()
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 250e6, time.UTC)
	at := func(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }
	p := &v1.Probe{InitialDelaySeconds: 5, PeriodSeconds: 10}
	var never time.Time
	tests := []struct {
		name              string
		p                 *v1.Probe
		started           time.Time
		last, now, wanted time.Time
	}{
		{"FirstWithoutDelay", &v1.Probe{}, at(0), never, at(1), at(1)},
		{"FirstAfterDelay", p, at(0), never, at(1), at(5)},
		{"DelayJustShort", p, at(0), never, at(4.999), at(5)},
		{"DelayOver", p, at(0), never, at(7), at(7)},
		{"NextPeriod", p, at(0), at(5), at(6), at(15)},
		{"TookLongerThanAPeriod", p, at(0), at(5), at(20), at(20)},
		{"SleptThroughMany", p, at(0), at(5), at(1000), at(1000)},
		{"PeriodInsideDelay", &v1.Probe{InitialDelaySeconds: 60, PeriodSeconds: 1}, at(0), at(2), at(3), at(60)},
		{"F14_ClockSetBack", p, at(3600), never, at(0), at(0)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := probe.Due(tt.p, tt.started, tt.last, tt.now); !got.Equal(tt.wanted) {
				t.Errorf("due %s after the start, want %s", got.Sub(t0), tt.wanted.Sub(t0))
			}
		})
	}
}

// Shows: C-1.29.3
func TestC_1_29_3_SpreadAfterAnAgentsStart(t *testing.T) {
	t.Parallel()
	agent := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := &v1.Probe{PeriodSeconds: 10}
	old, fresh := agent.Add(-time.Hour), agent.Add(time.Second)
	for name, tt := range map[string]struct {
		started, now time.Time
		want         time.Duration
	}{
		"Adopted":          {old, agent.Add(time.Second), 5 * time.Second},
		"Fresh":            {fresh, agent.Add(time.Second), 0},
		"AgentRunsForLong": {old, agent.Add(10 * time.Second), 0},
	} {
		if got := probe.Spread(p, tt.started, agent, tt.now, 0.5); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// Shows: F5
func TestF5_Stalled(t *testing.T) {
	t.Parallel()
	planned := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for late, want := range map[time.Duration]bool{
		-time.Minute: false, 0: false, 200 * time.Millisecond: false, // a busy machine
		time.Second: true, 30 * time.Second: true, 8 * time.Hour: true,
	} {
		if got := probe.Stalled(planned, planned.Add(late)); got != want {
			t.Errorf("%s late: %t, want %t", late, got, want)
		}
	}
	now := time.Now()
	if probe.Stalled(now, now) || !probe.Stalled(now.Add(-time.Second), now) {
		t.Error("the monotonic clock says otherwise")
	}
}

// statuses plays results of a readiness probe, see statusesOf.
func statuses(p *v1.Probe, results string) string { return statusesOf(pod.Readiness, p, results) }

// statusesOf plays results, '+' '-' 'w' (a warning) and '?' (the prober's trouble), and returns the
// status that each published: R success, U failure, '.' nothing. It ends with '!' when the probe
// status is final.
func statusesOf(kind pod.ProbeKind, p *v1.Probe, results string) string {
	s := probe.Begin(kind, "c1")
	var b strings.Builder
	for _, r := range results {
		var err error
		switch r {
		case '-':
			err = &pod.ProbeFailure{Message: "ill"}
		case 'w':
			err = &pod.ProbeWarning{Message: "elsewhere"}
		case '?':
			err = errors.New("trouble")
		}
		var published bool
		s, published = s.After(p, err)
		switch {
		case published && s.Status.OK:
			b.WriteByte('R')
		case published:
			b.WriteByte('U')
		default:
			b.WriteByte('.')
		}
		if s.Final() {
			return b.String() + "!"
		}
	}
	return b.String()
}

// Shows: C-1.29.8
func TestC_1_29_8_ConsecutiveResultsPublish(t *testing.T) {
	t.Parallel()
	p := &v1.Probe{SuccessThreshold: 2, FailureThreshold: 3}
	for _, tt := range []struct{ name, results, want string }{
		{"SuccessAtThreshold", "++++", ".R.."},
		{"FailureAtThreshold", "++-----", ".R..U.."},
		{"InterruptedSuccess", "+-+-++", ".....R"},
		{"InterruptedFailure", "++--+---", ".R.....U"},
		{"WarningIsASuccess", "ww--w---", ".R.....U"},
		{"C_1_29_7_TroubleIsNotCounted", "+?+--?-", "..R...U"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := statuses(p, tt.results); got != tt.want {
				t.Errorf("%s: got %q, want %q", tt.results, got, tt.want)
			}
		})
	}
}

// A container's first threshold publishes a status in either direction, and replaces the
// one before it. Liveness begins with success, and publishes only a failure.
//
// Shows: C-1.29.4
func TestC_1_29_4_FirstStatusOfAContainer(t *testing.T) {
	t.Parallel()
	for kind, want := range map[pod.ProbeKind]struct{ known, ok bool }{
		pod.Readiness: {false, false},
		pod.Liveness:  {true, true},
		pod.Startup:   {false, false},
	} {
		if s := probe.Begin(kind, "c1"); s.Known != want.known || s.Status.OK != want.ok || s.Status.ContainerID != "c1" || s.Final() {
			t.Errorf("%s begins with %+v", kind, s)
		}
	}
	p := &v1.Probe{SuccessThreshold: 1, FailureThreshold: 2}
	for _, tt := range []struct {
		kind          pod.ProbeKind
		results, want string
	}{
		{pod.Readiness, "--", ".U"},
		{pod.Readiness, "+", "R"},
		{pod.Liveness, "+++", "..."},
		{pod.Liveness, "--", ".U!"},
	} {
		if got := statusesOf(tt.kind, p, tt.results); got != tt.want {
			t.Errorf("%s %s: got %q, want %q", tt.kind, tt.results, got, tt.want)
		}
	}
}

// A liveness failure and any status of a startup probe are final.
//
// Shows: C-1.29.9
func TestC_1_29_9_FinalStatuses(t *testing.T) {
	t.Parallel()
	p := &v1.Probe{SuccessThreshold: 1, FailureThreshold: 3}
	for _, tt := range []struct {
		kind          pod.ProbeKind
		results, want string
	}{
		{pod.Liveness, "+--+---+++", "......U!"},
		{pod.Startup, "--?+---", "...R!"},
		{pod.Startup, "--?-+++", "...U!"},
		{pod.Readiness, "---+---", "..UR..U"},
	} {
		if got := statusesOf(tt.kind, p, tt.results); got != tt.want {
			t.Errorf("%s %s: got %q, want %q", tt.kind, tt.results, got, tt.want)
		}
	}
}

// Whatever the results, a published change follows as many equal results in a row as its
// threshold.
//
// Shows: C-1.29.8
func TestC_1_29_8_ThresholdLaw(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := &v1.Probe{
			SuccessThreshold: rapid.Int32Range(1, 4).Draw(t, "success"),
			FailureThreshold: rapid.Int32Range(1, 4).Draw(t, "failure"),
		}
		results := rapid.StringOfN(rapid.RuneFrom([]rune("+-?")), 0, 40, -1).Draw(t, "results")
		got := statuses(p, results)
		for i, r := range got {
			sign, n := "+", int(p.SuccessThreshold)
			if r == 'U' {
				sign, n = "-", int(p.FailureThreshold)
			}
			if r != 'R' && r != 'U' {
				continue
			}
			if counted := strings.ReplaceAll(results[:i+1], "?", ""); !strings.HasSuffix(counted, strings.Repeat(sign, n)) {
				t.Fatalf("%q published %q at %d, want %d of %q in a row", results, got, i, n, sign)
			}
		}
	})
}
