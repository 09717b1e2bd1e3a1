package plan_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// viewYAML is view.yaml: the fields of the View beside Want and Have. The default is the ordinary
// case: the network works, and for a pod on the node the record, the spec and the volumes exist.
type viewYAML struct {
	NotDesired     bool                          `json:"notDesired"`
	Instance       *int                          `json:"instance"`
	NoRecorded     bool                          `json:"noRecorded"` // the record has no spec
	Attempts       map[string]uint32             `json:"attempts"`
	Terminal       string                        `json:"terminal"`
	VolumesReady   *bool                         `json:"volumesReady"`
	VolumesLeft    bool                          `json:"volumesLeft"`
	VolumesStale   bool                          `json:"volumesStale"`
	Failures       map[string]failureYAML        `json:"trouble"`
	StopSince      string                        `json:"stopSince"` // how long ago
	StopGrace      *int64                        `json:"stopGrace"`
	StopAsked      bool                          `json:"stopAsked"`
	NetworkDown    bool                          `json:"networkDown"`
	Refused        string                        `json:"refused"`
	Evicted        string                        `json:"evicted"`      // its message; "": not evicted
	EvictedFor     v1.NodeConditionType          `json:"evictedFor"`   // "" is a limit of the pod's disk
	EvictionOver   bool                          `json:"evictionOver"` // the pressure has ended
	VolumesDue     string                        `json:"volumesDue"`   // the time until they are out of date
	Waits          string                        `json:"waits"`
	Forbidden      string                        `json:"forbidden"`
	StopWaits      string                        `json:"stopWaits"`
	Health         map[string]string             `json:"health"`         // by container ID: words of "ready live started", "-" before a failure
	ContainerNotes map[string]pod.ContainerNotes `json:"containerNotes"` // by container ID
	Streaks        map[string]int                `json:"streaks"`
	Restarting     bool                          `json:"restartingAll"`
	Started        string                        `json:"started"` // how long ago, default an hour; or never
	MaxBackoff     string                        `json:"maxBackoff"`
	Disabled       pod.Disabled                  `json:"disabled"`
}

type failureYAML struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Count   int    `json:"count"`
	In      string `json:"in"` // time until the retry
}

// TestNextGoldens runs every state in testdata. The comment of a file describes the case.
func TestNextGoldens(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d goldens, want at least 40: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			arc, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			v, err := readView(arc)
			if err != nil {
				t.Fatal(err)
			}
			got := describe(v)
			if again := describe(v); again != got {
				t.Errorf("Next is not a function of its view:\n%s\n%s", got, again)
			}
			if *update {
				setFile(arc, "plan", got)
				if err := os.WriteFile(file, txtar.Format(arc), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := gocmp.Diff(string(section(arc, "plan")), got); diff != "" {
				t.Errorf("%splan (-want +got):\n%s", arc.Comment, diff)
			}
		})
	}
}

// describe formats the result of Next for a view.
func describe(v plan.View) string {
	p := plan.Next(v)
	var b strings.Builder
	b.WriteString(p.String())
	for _, name := range slices.Sorted(maps.Keys(p.Backoff)) {
		fmt.Fprintf(&b, "backoff %s %s until +%s\n", name, p.Backoff[name].Delay, p.Backoff[name].Until.Sub(v.Now))
	}
	if p.Stopping {
		b.WriteString("(stopping)\n")
	}
	if p.RestartingAll {
		b.WriteString("(restarting all)\n")
	}
	switch end := p.End; {
	case end.Reason != "":
		fmt.Fprintf(&b, "(ended %s %s: %s)\n", end.Phase, end.Reason, end.Message)
	case end.Phase != "":
		fmt.Fprintf(&b, "(ended %s)\n", end.Phase)
	}
	if n := plan.Instance(v); v.Want != nil && n != v.Record.Instance {
		fmt.Fprintf(&b, "(instance %d)\n", n)
	}
	return b.String()
}

func readView(arc *txtar.Archive) (plan.View, error) {
	want, err := plantest.Spec(section(arc, "want.yaml"))
	if err != nil {
		return plan.View{}, fmt.Errorf("want.yaml: %w", err)
	}
	have, err := plantest.Actual(section(arc, "have.yaml"), want)
	if err != nil {
		return plan.View{}, fmt.Errorf("have.yaml: %w", err)
	}
	var y viewYAML
	if err := yaml.UnmarshalStrict(section(arc, "view.yaml"), &y); err != nil {
		return plan.View{}, fmt.Errorf("view.yaml: %w", err)
	}
	v := plan.View{
		Want: want, Have: have, Now: plantest.Now,
		Record: pod.Record{
			Want: want, Attempts: y.Attempts, Terminal: v1.PodPhase(y.Terminal), StopGrace: y.StopGrace, StopAsked: y.StopAsked,
			ContainerNotes: y.ContainerNotes, Streaks: y.Streaks, RestartingAll: y.Restarting, StartTime: plantest.Now.Add(-time.Hour),
		},
		VolumesReady: !have.Empty(), VolumesStale: y.VolumesStale, VolumesLeft: y.VolumesLeft,
		Blockers: plan.Blockers{NoNetwork: y.NetworkDown, Refused: y.Refused, Waits: y.Waits, StopWaits: y.StopWaits},
	}
	v.Forbidden, v.Disabled = y.Forbidden, y.Disabled
	v.Health, err = readHealth(y.Health, have)
	if err != nil {
		return v, err
	}
	if y.Started == "never" {
		v.Record.StartTime = time.Time{}
	} else if y.Started != "" {
		d, err := time.ParseDuration(y.Started)
		if err != nil {
			return v, err
		}
		v.Record.StartTime = plantest.Now.Add(-d)
	}
	if y.MaxBackoff != "" {
		if v.MaxBackoff, err = time.ParseDuration(y.MaxBackoff); err != nil {
			return v, err
		}
	}
	if have.Sandbox != nil {
		v.Record.Instance = have.Sandbox.Instance
	}
	if y.Instance != nil {
		v.Record.Instance = *y.Instance
	}
	if y.Evicted != "" {
		v.Record.Terminal, v.Record.TerminalReason, v.Record.TerminalMessage = v1.PodFailed, "Evicted", y.Evicted
		v.Record.Eviction = &pod.Eviction{Instance: v.Record.Instance, Grace: 1, Condition: y.EvictedFor, Over: y.EvictionOver}
	}
	if y.VolumesReady != nil {
		v.VolumesReady = *y.VolumesReady
	}
	if y.StopSince != "" {
		d, err := time.ParseDuration(y.StopSince)
		if err != nil {
			return v, err
		}
		v.Record.StopSince = plantest.Now.Add(-d)
	}
	if y.VolumesDue != "" {
		d, err := time.ParseDuration(y.VolumesDue)
		if err != nil {
			return v, err
		}
		v.VolumesUntil = plantest.Now.Add(d)
	}
	for name, tr := range y.Failures {
		d, err := time.ParseDuration(cmp.Or(tr.In, "0s"))
		if err != nil {
			return v, err
		}
		if v.Failures == nil {
			v.Failures = map[string]pod.Failure{}
		}
		v.Failures[name] = pod.Failure{Reason: tr.Reason, Message: tr.Message, Count: tr.Count, Until: plantest.Now.Add(d)}
	}
	if text := section(arc, "recorded.yaml"); text != nil {
		if v.Record.Want, err = plantest.Spec(text); err != nil {
			return v, fmt.Errorf("recorded.yaml: %w", err)
		}
	}
	if y.NoRecorded || v.Record.Instance == 0 {
		v.Record.Want = nil
	}
	if y.NotDesired {
		v.Want = nil
	}
	return v, nil
}

// readHealth parses probe statuses by container ID: of the containers in have, or of earlier ones
// of their names.
func readHealth(words map[string]string, have pod.Actual) (pod.Health, error) {
	h := pod.Health{Ready: map[string]pod.ProbeStatus{}, Live: map[string]pod.ProbeStatus{}, Started: map[string]pod.ProbeStatus{}}
	kinds := map[string]map[string]pod.ProbeStatus{"ready": h.Ready, "live": h.Live, "started": h.Started}
	for id, text := range words {
		name := id[:strings.LastIndex(id, "-")]
		for _, word := range strings.Fields(text) {
			kind, ok := kinds[strings.TrimPrefix(word, "-")]
			if !ok || have.Containers[name].ID == "" {
				return h, fmt.Errorf("health of %s: %q", id, word)
			}
			kind[name] = pod.ProbeStatus{ContainerID: id, OK: !strings.HasPrefix(word, "-")}
		}
	}
	return h, nil
}

func section(arc *txtar.Archive, name string) []byte {
	for _, f := range arc.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func setFile(arc *txtar.Archive, name, text string) {
	for i := range arc.Files {
		if arc.Files[i].Name == name {
			arc.Files[i].Data = []byte(text)
			return
		}
	}
	arc.Files = append(arc.Files, txtar.File{Name: name, Data: []byte(text)})
}
