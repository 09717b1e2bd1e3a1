package plan_test

import (
	"reflect"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/plan/plantest"
)

func actions(steps []plan.Step) (out []string) {
	for _, s := range steps {
		text := string(s.Action)
		if s.Container != "" {
			text += " " + s.Container
		}
		out = append(out, text)
	}
	return out
}

// TestC_1_22_1_ForeseesTheWholeStart shows every step of a start with init containers, a
// sidecar with a startup probe, and hooks.
//
// Shows: C-1.22.1
func TestC_1_22_1_ForeseesTheWholeStart(t *testing.T) {
	t.Parallel()
	m := newSim()
	f := podShape{policy: "Always", containers: 1, inits: 1, sidecars: 1, hooks: true, probes: true, ephemeral: true}
	m.want = f.spec()
	m.key = m.want.Key
	v := m.view()
	v.NoNetwork, v.Waits = true, "waits for another pod"
	got := actions(plan.Foresee(v))
	want := []string{
		"put-volumes", "run-sandbox",
		"pull-image debug", "create-container debug", "start-container debug",
		"pull-image side0", "create-container side0", "start-container side0", "run-hook side0",
		"pull-image init0", "create-container init0", "start-container init0",
		"pull-image c0", "create-container c0", "start-container c0", "run-hook c0",
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if len(m.sandboxes) > 0 || len(m.rec.ContainerNotes) > 0 {
		t.Error("the forecast has written to what it was given")
	}
}

// TestC_1_34_6_ForeseesWhatAnEditTouches shows the steps of edits of a running pod.
//
// Shows: C-1.34.6
func TestC_1_34_6_ForeseesWhatAnEditTouches(t *testing.T) {
	t.Parallel()
	type touch struct {
		Pod              bool
		Restart, Resized []string
	}
	for name, test := range map[string]struct {
		edit func(*podShape)
		want touch
	}{
		"nothing":         {func(*podShape) {}, touch{}},
		"label":           {func(f *podShape) { f.label++ }, touch{}},
		"image":           {func(f *podShape) { f.image++ }, touch{Restart: []string{"c0"}}},
		"sidecar":         {func(f *podShape) { f.sideImage++ }, touch{Restart: []string{"side0"}}},
		"resize":          {func(f *podShape) { f.memory++ }, touch{Resized: []string{"c0"}}},
		"resize restarts": {func(f *podShape) { f.memory++; f.resize = false }, touch{Restart: []string{"c0"}}},
		"pod":             {func(f *podShape) { f.hostname++ }, touch{Pod: true}},
		"init":            {func(f *podShape) { f.initImage++ }, touch{Pod: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newSim()
			f := podShape{policy: "Always", containers: 2, inits: 1, sidecars: 1, hooks: true, probes: true, resize: true}
			runUp(m, &f)
			test.edit(&f)
			m.want = f.spec()
			v := m.view()
			steps := plan.Foresee(v)
			var got touch
			got.Pod, got.Restart = plan.RestartedByEdit(v.Have, v.Record.Instance, steps)
			got.Resized = plan.Resized(steps)
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("an edit touches (-want +got):\n%s\n%v", diff, actions(steps))
			}
		})
	}
}

// TestForesee_RestartOfAllHasBegun_EndsIt: the record says that all containers are being
// restarted. A forecast continues to the end of that restart, as an agent does, and no
// further.
//
// Shows: C-1.21.3
func TestForesee_RestartOfAllHasBegun_EndsIt(t *testing.T) {
	t.Parallel()
	m := newSim()
	f := podShape{policy: "Always", containers: 2}
	runUp(m, &f)
	m.rec.RestartingAll = true
	got := actions(plan.Foresee(m.view()))
	for _, name := range []string{"c0", "c1"} {
		if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != "create-container "+name })); n != 1 {
			t.Errorf("%s is created %d times: %v", name, n, got)
		}
	}
}

// TestNewView_RecordOfAnEarlierInstance_IsCaughtUp: before it plans, an agent takes the newer
// instance from the runtime, and so does a forecast.
func TestNewView_RecordOfAnEarlierInstance_IsCaughtUp(t *testing.T) {
	t.Parallel()
	m := newSim()
	f := podShape{policy: "Always", containers: 1}
	runUp(m, &f)
	rec := m.rec
	rec.Instance, rec.StopSince, rec.Terminal = rec.Instance-1, plantest.Now, "Failed"
	v := plan.NewView(m.want, m.have(), rec, "", nil, m.now)
	if v.Record.Instance != m.rec.Instance || !v.Record.StopSince.IsZero() || v.Record.Terminal != "" || !v.VolumesReady {
		t.Errorf("the view holds on to what ended: %+v", v)
	}
	if p := plan.Next(v); p.Stopping || p.End.Phase != "" {
		t.Errorf("the instance that runs is ended: %v", p)
	}
}

// TestNewView_EveryField_IsGivenToBoth: a new field of View is a parameter of NewView, in the
// record, or one of the hindrances that a forecast leaves out. Health, MaxBackoff and Disabled have
// their own place in a forecast. Any other field could be set by an agent and missing in a forecast.
func TestNewView_EveryField_IsGivenToBoth(t *testing.T) {
	t.Parallel()
	given := []string{"Want", "Have", "Record", "VolumesReady", "VolumesStale", "VolumesUntil", "Forbidden", "Now"}
	ofForecast := []string{
		"Blockers",    // left out
		"Health",      // probes pass
		"MaxBackoff",  // back-offs are over
		"VolumesLeft", // every set-up succeeds
		"Disabled",    // Options.Disabled of package forecast
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[plan.View]()) {
		if len(field.Index) == 1 && !slices.Contains(given, field.Name) && !slices.Contains(ofForecast, field.Name) {
			t.Errorf("%s: a forecast does not know it", field.Name)
		}
	}
}
