package main

import (
	"strings"
	"testing"
	"time"
)

// The table has a column for each agent, and a row for each reason of either.
func TestTable_TwoAgents_HasTheReasonsOfBoth(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	text := table([]*Result{
		{Arm: "kubelet", Version: "v1.36.0", Date: at, Kills: 50, Reboots: 5, Failed: map[string]int{"UnexpectedAdmissionError": 7, "OutOfcpu": 1}},
		{Arm: "nodectl", Version: "abc", Date: at, Kills: 50},
	})
	for _, line := range []string{
		"| | kubelet | nodectl |", "| version | v1.36.0 | abc |", "| random kills of the agent | 50 | 50 |",
		"| pods that failed: UnexpectedAdmissionError | 7 | 0 |", "| pods that failed: OutOfcpu | 1 | 0 |",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
}

// The flags are refused if they name no arm, and nodectl has no imitated reboots.
func TestParse_Arms_OnlyTheKubeletReboots(t *testing.T) {
	t.Parallel()
	if _, err := parse([]string{"--arm", "other"}); err == nil {
		t.Error("an arm that does not exist is accepted")
	}
	for name, want := range map[string]int{"kubelet": 5, "nodectl": 0} {
		if o, err := parse([]string{"--arm", name}); err != nil || o.reboots != want {
			t.Errorf("%s: %d reboots, %v", name, o.reboots, err)
		}
	}
}

// A call counts as lost only if a kill followed shortly.
func TestLost_KillsAroundACall_OnlyTheOneAfterItCounts(t *testing.T) {
	t.Parallel()
	called := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]bool{-time.Second: false, time.Second: true, time.Minute: false} {
		s := &soak{kills: []time.Time{called.Add(after)}}
		if got := s.lost(called); got != want {
			t.Errorf("a kill %s after the call: lost is %t", after, got)
		}
	}
}
