package ui

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/activity"
)

// A report with all parts, and one of a pod that waits for nothing.
func TestWhy_Reports_AreText(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	ago := func(s int) time.Time { return now.Add(-time.Duration(s) * time.Second) }
	hangs := activity.Report{
		Namespace: "default", Name: "web-n1", Phase: "Pending", Reason: "Odd", Message: "it is \x1b[31modd", Stopping: true, Now: now,
		State: &activity.State{
			Steps: []string{"create-container app", "start-container app"}, WaitFor: "network is not ready", Since: ago(61), Until: ago(-30),
			Failures: []activity.Failure{{Container: "app", Reason: "ErrImagePull", Message: "denied", Count: 3, Until: ago(-20)}},
		},
		Calls: []activity.Call{
			{Kind: activity.Step, Name: "create-container", Target: "app", Since: ago(12)},
			{Kind: activity.Volume, Name: "mount volume", Target: "data", Path: "/mnt/data", Since: ago(12)},
			{Kind: activity.Runtime, Name: "StopContainer", Target: "c1", Since: ago(5), Limit: ago(-115)},
		},
		Agent: []activity.Call{{Kind: activity.Request, Name: "GET", Target: "/api/v1/pods", Host: "https://api:6443", Since: ago(20)}},
		Mounts: []activity.Mount{
			{Path: "/mnt/data", Type: "nfs4", Source: "server:/data", Hangs: true},
			{Path: "/mnt/old", Type: "fuse.sshfs", Source: "host:", Error: "transport endpoint is not connected"},
			{Path: "/mnt/well", Type: "ext4", Source: "/dev/sdb1"},
		},
		Processes: []activity.Process{
			{PID: 7, Name: "app", Of: "pod", State: "D", Waits: "rpc_wait_bit_killable", Stack: []string{"rpc_wait_bit_killable", "nfs4_call_sync", "c", "d", "e", "f"}},
			{PID: 9, TID: 11, Name: "nodectl", Of: "agent", State: "S", Waits: "request_wait_answer"},
			{PID: 12, Name: "containerd-shim", Of: "shim", State: "T"},
		},
		Registries: []activity.Registry{{Host: "registry.example", Error: "no name server answers for registry.example"}},
		Source:     &activity.Source{Name: "file:/etc/pods", Error: "permission denied", Since: ago(300)},
		Warnings:   []activity.Warning{{Reason: "FailedMount", Message: "no", Count: 2, At: ago(90)}},
		AgentWaits: "container runtime is not ready: connection refused",
	}
	hangs.Summarize()
	settled := activity.Report{Namespace: "default", Name: "db", Phase: "Running", Now: now}
	settled.Summarize()
	v := New(io.Discard, Screen{})
	golden(t, "why.txt", v.Why(hangs)+"---\n"+v.Why(settled))
	colored := New(io.Discard, Screen{Color: true}).Why(settled)
	if !strings.Contains(colored, "\x1b[32mrunning; waits for nothing\x1b[0m") {
		t.Errorf("in colour: %q", colored)
	}
}

// If the pod continues with the next try of a failed step, the text has that time once.
func TestWhy_PodWaitsForRetry_ShowsTimeOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	retry := now.Add(35 * time.Second)
	r := activity.Report{Namespace: "default", Name: "web", Now: now, State: &activity.State{
		WaitFor: "retrying container a after ErrImagePull", Since: now.Add(-4700 * time.Millisecond), Until: retry,
		Failures: []activity.Failure{{Container: "a", Reason: "ErrImagePull", Message: "denied", Until: retry}},
	}}
	_, got, _ := strings.Cut(New(io.Discard, Screen{}).Why(r), "Plan:\n")
	if want := "  has waited for 4.7s: retrying container a after ErrImagePull\n  failed container a: ErrImagePull: denied, next try in 35s\n"; got != want {
		t.Errorf("the plan is:\n%swant:\n%s", got, want)
	}
}
