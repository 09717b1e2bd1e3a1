package status_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
	"github.com/nodectl/nodectl/pkg/status"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// notesYAML is notes.yaml: the notes of the worker. startTime is how long ago it was; backoff.in is
// how long the back-off still lasts. containerNotes has container IDs as keys, all other maps have
// container names.
type notesYAML struct {
	Failures           map[string]pod.Failure        `json:"trouble"`
	Backoff            map[string]backoffYAML        `json:"backoff"`
	Readiness          map[string]pod.ProbeStatus    `json:"readiness"`
	Startup            map[string]pod.ProbeStatus    `json:"startup"`
	ContainerNotes     map[string]pod.ContainerNotes `json:"containerNotes"`
	NotAdmittedReason  string                        `json:"notAdmittedReason"`
	NotAdmittedMessage string                        `json:"notAdmittedMessage"`
	Rejected           bool                          `json:"rejected"`
	Waits              string                        `json:"waits"`
	NetworkWait        string                        `json:"networkWait"`
	ResizeReason       string                        `json:"resizeReason"`
	ResizeMessage      string                        `json:"resizeMessage"`
	ResizeError        string                        `json:"resizeError"`
	Allocated          *v1.ResourceRequirements      `json:"allocated"`
	StartTime          string                        `json:"startTime"`
	Instance           int                           `json:"instance"`
	Terminal           v1.PodPhase                   `json:"terminal"`
	TerminalReason     string                        `json:"terminalReason"`
	TerminalMessage    string                        `json:"terminalMessage"`
	Terminating        bool                          `json:"terminating"`
	HostIPs            []string                      `json:"hostIPs"`
	RuntimeName        string                        `json:"runtimeName"`
	Disabled           pod.Disabled                  `json:"disabled"`
}

type backoffYAML struct {
	Delay string `json:"delay"`
	In    string `json:"in"`
}

type fixture struct {
	want   *pod.Spec
	have   pod.Actual
	health pod.Health
	before v1.PodStatus
	notes  status.Notes
}

func (s fixture) of(before v1.PodStatus) v1.PodStatus {
	return status.Of(s.want, s.have, s.health, before, s.notes, plantest.Now)
}

// TestOfGoldens runs every state in testdata. The comment of a file describes the case. In every
// state, computing the status again without changes gives the same status (C-1.27.2).
//
// Shows: C-1.27.2
func TestOfGoldens(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 80 {
		t.Fatalf("%d goldens, want at least 80: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			arc, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s, err := read(arc)
			if err != nil {
				t.Fatal(err)
			}
			st := s.of(s.before)
			if again := s.of(st); !equality.Semantic.DeepEqual(again, st) {
				t.Errorf("computing the status again without changes gives another status:\n%s", gocmp.Diff(st, again))
			}
			got := describe(s.want.Pod, st)
			if *update {
				arc.Files[len(arc.Files)-1].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(arc), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := gocmp.Diff(string(section(arc, "status")), got); diff != "" {
				t.Errorf("%sstatus (-want +got):\n%s", arc.Comment, diff)
			}
		})
	}
}

// describe formats the table's line and the whole status, one fact per line. Times are relative
// to now.
func describe(p *v1.Pod, st v1.PodStatus) string {
	shown := *p
	shown.Status = st
	l := status.Summary(shown)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %d\n", l.ReadyText(), l.Status, l.Restarts)
	fmt.Fprintf(&b, "phase %s %s since %s%s\n", st.Phase, st.QOSClass, at(*st.StartTime), because(st.Reason, st.Message))
	if st.ObservedGeneration != 0 {
		fmt.Fprintf(&b, "generation %d\n", st.ObservedGeneration)
	}
	if st.PodIP != "" || st.HostIP != "" {
		fmt.Fprintf(&b, "pod %q %v host %q %v\n", st.PodIP, st.PodIPs, st.HostIP, st.HostIPs)
	}
	b.WriteString(describeResources("", st.AllocatedResources, st.Resources))
	for _, c := range st.InitContainerStatuses {
		b.WriteString("init " + describeContainer(c))
	}
	for _, c := range st.ContainerStatuses {
		b.WriteString("container " + describeContainer(c))
	}
	for _, c := range st.EphemeralContainerStatuses {
		b.WriteString("ephemeral " + describeContainer(c))
	}
	for _, c := range st.Conditions {
		fmt.Fprintf(&b, "%s %s since %s%s\n", c.Type, c.Status, at(c.LastTransitionTime), because(c.Reason, c.Message))
	}
	return b.String()
}

func describeContainer(c v1.ContainerStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s image=%s", c.Name, c.Image)
	if c.ImageID != "" {
		b.WriteString(" imageID=" + c.ImageID)
	}
	if c.ContainerID != "" {
		b.WriteString(" id=" + c.ContainerID)
	}
	fmt.Fprintf(&b, " restarts=%d", c.RestartCount)
	if c.Started != nil && *c.Started {
		b.WriteString(" started")
	}
	if c.Ready {
		b.WriteString(" ready")
	}
	b.WriteString("\n" + describeResources("  ", c.AllocatedResources, c.Resources))
	b.WriteString("  " + describeState(c.State) + "\n")
	if c.LastTerminationState.Terminated != nil {
		b.WriteString("  last: " + describeState(c.LastTerminationState) + "\n")
	}
	return b.String()
}

func describeResources(indent string, allocated v1.ResourceList, has *v1.ResourceRequirements) string {
	var text string
	if len(allocated) > 0 {
		text = indent + "allocated " + pod.ResourcesText(v1.ResourceRequirements{Requests: allocated}) + "\n"
	}
	if has != nil && len(has.Requests)+len(has.Limits) > 0 {
		text += indent + "has " + pod.ResourcesText(*has) + "\n"
	}
	return text
}

func describeState(s v1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return "waiting" + because(s.Waiting.Reason, s.Waiting.Message)
	case s.Running != nil:
		return "running since " + at(s.Running.StartedAt)
	case s.Terminated != nil:
		t := s.Terminated
		return fmt.Sprintf("terminated %d %s to %s id=%s%s", t.ExitCode, at(t.StartedAt), at(t.FinishedAt), t.ContainerID, because(t.Reason, t.Message))
	}
	return "no state"
}

func because(reason, message string) string {
	if reason+message == "" {
		return ""
	}
	return " (" + strings.TrimSuffix(reason+": "+message, ": ") + ")"
}

func at(t metav1.Time) string {
	if t.IsZero() {
		return "?"
	}
	return t.Sub(plantest.Now).String()
}

func read(arc *txtar.Archive) (fixture, error) {
	var s fixture
	var err error
	if s.want, err = plantest.Spec(section(arc, "want.yaml")); err != nil {
		return s, fmt.Errorf("want.yaml: %w", err)
	}
	if s.have, err = plantest.Actual(section(arc, "have.yaml"), s.want); err != nil {
		return s, fmt.Errorf("have.yaml: %w", err)
	}
	if err = yaml.UnmarshalStrict(section(arc, "before.yaml"), &s.before); err != nil {
		return s, fmt.Errorf("before.yaml: %w", err)
	}
	var y notesYAML
	if err = yaml.UnmarshalStrict(section(arc, "notes.yaml"), &y); err != nil {
		return s, fmt.Errorf("notes.yaml: %w", err)
	}
	s.health = pod.Health{Ready: y.Readiness, Started: y.Startup}
	s.notes = status.Notes{
		Failures: y.Failures, ContainerNotes: y.ContainerNotes,
		NotAdmittedReason: y.NotAdmittedReason, NotAdmittedMessage: y.NotAdmittedMessage, Rejected: y.Rejected,
		Waits: y.Waits, NetworkWait: y.NetworkWait, ResizeReason: y.ResizeReason, ResizeMessage: y.ResizeMessage, Allocated: y.Allocated, ResizeError: y.ResizeError,
		Instance: y.Instance, Terminal: y.Terminal, TerminalReason: y.TerminalReason, TerminalMessage: y.TerminalMessage,
		Terminating: y.Terminating, HostIPs: y.HostIPs, RuntimeName: y.RuntimeName, Disabled: y.Disabled,
	}
	for name, b := range y.Backoff {
		delay, err := time.ParseDuration(b.Delay)
		if err != nil {
			return s, err
		}
		in, err := time.ParseDuration(b.In)
		if err != nil {
			return s, err
		}
		if s.notes.Backoff == nil {
			s.notes.Backoff = map[string]podview.Backoff{}
		}
		s.notes.Backoff[name] = podview.Backoff{Delay: delay, Until: plantest.Now.Add(in)}
	}
	ago, err := time.ParseDuration(cmp.Or(y.StartTime, "2m"))
	s.notes.StartTime = plantest.Now.Add(-ago)
	return s, err
}

func section(arc *txtar.Archive, name string) []byte {
	for _, f := range arc.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}
