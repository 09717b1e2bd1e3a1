package cri_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Shows: C-1.22.10
func TestC_1_22_10_LogAndLink(t *testing.T) {
	n := newNode(t)
	want := talkative("", "exit-0-after-1h")
	want.Pod.Spec.Containers[0].Command = []string{"sh", "-c", "echo hello; sleep inf"}
	l := start(t, n.Runtime, want, 0)
	link := filepath.Join(n.links, "web_default_c0-"+l.containers["c0"]+".log")
	target, err := os.Readlink(link)
	if err != nil || target != n.logFile("c0", 0) {
		t.Errorf("link to %q, %v; want %q", target, err, n.logFile("c0", 0))
	}
	if text, err := os.ReadFile(link); err != nil || !strings.HasSuffix(string(text), " stdout F hello\n") {
		t.Errorf("log %q, %v", text, err)
	}
	if c := n.look(want, "c0"); c.LogPath != target {
		t.Errorf("log path %q", c.LogPath)
	}
}

// C-1.33.5: the files of a container are removed with it, and no others.
//
// Shows: C-1.33.5
func TestC_1_33_5_FilesGoWithTheContainer(t *testing.T) {
	n := newNode(t)
	want := talkative("", "sleep", "sleep")
	l := start(t, n.Runtime, want, 1)
	log := n.logFile("c0", 1)
	for _, path := range []string{log + ".20260102-030405", log + ".20260102-030405.gz", log + ".20260102-030406.tmp"} {
		n.put(path, "old")
	}
	n.put(n.logFile("c0", 11), "another life's")
	n.put(filepath.Join(n.links, "foreign-"+l.containers["c0"]+".log"), "another's")
	for _, id := range []string{l.containers["c0"], l.containers["c0"], "x"} {
		if err := n.RemoveContainer(t.Context(), id, false); err != nil {
			t.Fatal(err)
		}
	}
	got := files(t, filepath.Dir(n.root))
	if diff := cmp.Diff([]string{
		"containers/foreign-" + l.containers["c0"] + ".log",
		"containers/web_default_c1-" + l.containers["c1"] + ".log",
		"pods/default_web_uid-web/c0/11.log",
		"pods/default_web_uid-web/c1/1.log",
		"root/pods/uid-web/containers/c1/1",
	}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// C-1.21.3: a container that is removed because all restart leaves its newest log, and no
// older one.
//
// Shows: C-1.21.3
func TestC_1_21_3_LogStaysWhenAllRestart(t *testing.T) {
	n := newNode(t)
	l := start(t, n.Runtime, talkative("", "sleep"), 10)
	for _, path := range []string{n.logFile("c0", 9), n.logFile("c0", 9) + ".20260102-030405.gz", n.logFile("c0", 10) + ".20260102-030405.gz", n.logFile("c0", 11)} {
		n.put(path, "old")
	}
	if err := n.RemoveContainer(t.Context(), l.containers["c0"], true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{
		"pods/default_web_uid-web/c0/10.log",
		"pods/default_web_uid-web/c0/10.log.20260102-030405.gz",
		"pods/default_web_uid-web/c0/11.log",
	}, files(t, filepath.Dir(n.root))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// A pod may have the logs' directory as a volume: a link that it puts there is not followed
// out of it.
//
// Shows: C-1.33.5
func TestC_1_33_5_NothingIsRemovedThroughALink(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "0.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	want := talkative("", "sleep")
	l := start(t, n.Runtime, want, 0)
	dir := filepath.Dir(n.logFile("c0", 0))
	if err := errors.Join(os.RemoveAll(dir), os.Symlink(outside, dir)); err != nil {
		t.Fatal(err)
	}
	if err := n.RemoveContainer(t.Context(), l.containers["c0"], false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "0.log")); err != nil {
		t.Error(err)
	}
}

// F83: the files of a crash loop do not pile up.
//
// Shows: F83
func TestF83_ACrashLoopLeavesNoFiles(t *testing.T) {
	n := newNode(t)
	want := talkative(v1.TerminationMessageFallbackToLogsOnError, "exit-1")
	box, err := n.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0})
	if err != nil {
		t.Fatal(err)
	}
	var lives []string
	for i := range 100 {
		id := create(t, n.Runtime, want, box, "c0", uint32(i))
		if err := n.StartContainer(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		n.rt.Exit(want.Key, "c0", 1)
		if lives = append(lives, id); len(lives) > 1 {
			if err := n.RemoveContainer(t.Context(), lives[0], false); err != nil {
				t.Fatal(err)
			}
			lives = lives[1:]
		}
	}
	if got := files(t, filepath.Dir(n.root)); len(got) != 3 {
		t.Errorf("files %v, want the log, the link and the message of the last life", got)
	}
}
