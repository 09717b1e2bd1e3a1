package dra

import (
	"testing"

	"pgregory.net/rapid"
)

// model is a claim of two drivers and three pods, with an agent that may be killed and a machine that
// may reboot.
type model struct {
	t        *rapid.T
	recorded bool
	drivers  [2]struct {
		registered, prepared bool
		progress             Progress
	}
	pods [3]struct{ wanted, noted, runs bool }
}

var names = [2]string{"a.test", "b.test"}

func (m *model) state(i int) State {
	s := State{Wanted: m.pods[i].wanted, Recorded: m.recorded, Noted: m.pods[i].noted}
	for j, p := range m.pods {
		if j != i && p.noted {
			s.Others++
		}
	}
	for j, d := range m.drivers {
		s.Drivers = append(s.Drivers, Driver{names[j], d.progress, d.registered})
	}
	return s
}

// do does one step; a kill ends it before the call to the driver, or before its record.
func (m *model) do(i int, step Step, kill int) {
	j := 0
	if step.Driver == names[1] {
		j = 1
	}
	d, p := &m.drivers[j], &m.pods[i]
	switch step.Action {
	case Note:
		m.recorded, p.noted = true, true
	case Prepare:
		if !d.registered || !p.noted {
			m.t.Fatalf("prepared by a driver that is away, or for a pod without a record: %+v", m.state(i))
		}
		if d.progress == Done {
			m.t.Fatal("prepared twice")
		}
		if d.progress = Begun; kill == 1 {
			return
		}
		if d.prepared = true; kill != 2 {
			d.progress = Done
		}
	case Drop:
		p.noted = false
	case Unprepare:
		for k, other := range m.pods {
			if other.runs || k != i && other.noted {
				m.t.Fatalf("unprepared while pod %d uses the claim", k)
			}
		}
		if !d.registered {
			m.t.Fatal("unprepared by a driver that is away")
		}
		if d.progress = Begun; kill == 1 {
			return
		}
		if d.prepared = false; kill != 2 {
			d.progress = None
		}
	case Forget:
		for _, d := range m.drivers {
			if d.prepared {
				m.t.Fatal("forgotten while a driver has it prepared")
			}
		}
		*p = struct{ wanted, noted, runs bool }{}
		m.recorded = false
	case Finish, WaitDriver:
	}
}

// run does the steps for a pod until one ends the operation. A pod runs once its claim is prepared.
func (m *model) run(i int, kill func() int) {
	for range 20 {
		step := Next(m.state(i))
		if step.Why == "" {
			m.t.Fatalf("no reason: %+v", step)
		}
		if step.Action == Finish || step.Action == WaitDriver {
			if m.pods[i].runs = m.pods[i].wanted && step.Action == Finish; m.pods[i].runs {
				for _, d := range m.drivers {
					if !d.prepared {
						m.t.Fatal("a pod runs before its claim is prepared")
					}
				}
			}
			return
		}
		k := kill()
		m.do(i, step, k)
		if k > 0 {
			return
		}
	}
	m.t.Fatal("the steps have no end")
}

// Pods, drivers, kills and reboots come in any order. A claim is never prepared twice without a cut,
// nor unprepared while a pod uses it. In the end nothing is left.
//
// Shows: F1
func TestNext_RandomChangesAndKills_PreparedOnceAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t}
		kill := func() int { return rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "kill") }
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			i, j := rapid.IntRange(0, 2).Draw(t, "pod"), rapid.IntRange(0, 1).Draw(t, "driver")
			switch rapid.IntRange(0, 5).Draw(t, "change") {
			case 0:
				m.drivers[j].registered = !m.drivers[j].registered
			case 1, 2:
				m.pods[i].wanted = true
				m.run(i, kill)
			case 3, 4:
				m.pods[i].wanted, m.pods[i].runs = false, false // its containers have exited
				m.run(i, kill)
			case 5: // a reboot
				for k := range m.drivers {
					if m.drivers[k].progress == Done {
						m.drivers[k].progress = Begun
					}
				}
				for k := range m.pods {
					m.pods[k].runs = false
				}
			}
		}
		for j := range m.drivers {
			m.drivers[j].registered = true
		}
		for i := range m.pods {
			m.pods[i].wanted, m.pods[i].runs = false, false
			m.run(i, func() int { return 0 })
		}
		for i := range m.pods { // a pod that was noted while another one was unprepared
			m.run(i, func() int { return 0 })
		}
		if m.recorded || m.drivers[0].prepared || m.drivers[1].prepared {
			t.Fatalf("left: %+v", m)
		}
	})
}

func TestNext_StatesOfAClaim_OneStepWithItsReason(t *testing.T) {
	t.Parallel()
	one := func(p Progress, registered bool) []Driver { return []Driver{{"a.test", p, registered}} }
	two := []Driver{{"a.test", Done, false}, {"b.test", Begun, true}}
	for name, c := range map[string]struct {
		of   State
		want Action
		by   string
	}{
		"new":                              {State{Wanted: true, Drivers: one(None, true)}, Note, ""},
		"new, and the driver is away":      {State{Wanted: true, Drivers: one(None, false)}, WaitDriver, "a.test"},
		"noted":                            {State{Wanted: true, Recorded: true, Noted: true, Drivers: one(None, true)}, Prepare, "a.test"},
		"a call was cut":                   {State{Wanted: true, Recorded: true, Noted: true, Drivers: one(Begun, true)}, Prepare, "a.test"},
		"prepared, and the driver is away": {State{Wanted: true, Recorded: true, Noted: true, Drivers: one(Done, false)}, Finish, ""},
		"a second pod":                     {State{Wanted: true, Recorded: true, Others: 1, Drivers: one(Done, false)}, Note, ""},
		"no devices":                       {State{Wanted: true, Recorded: true, Noted: true}, Finish, ""},
		"the second driver":                {State{Wanted: true, Recorded: true, Noted: true, Drivers: two}, Prepare, "b.test"},
		"gone, others use it":              {State{Recorded: true, Noted: true, Others: 1, Drivers: one(Done, true)}, Drop, ""},
		"gone, and dropped":                {State{Recorded: true, Others: 1, Drivers: one(Done, true)}, Finish, ""},
		"gone":                             {State{Recorded: true, Noted: true, Drivers: one(Done, true)}, Unprepare, "a.test"},
		"gone, and the driver is away":     {State{Recorded: true, Noted: true, Drivers: one(Begun, false)}, WaitDriver, "a.test"},
		"gone, one driver is away":         {State{Recorded: true, Noted: true, Drivers: two}, Unprepare, "b.test"},
		"gone, never prepared":             {State{Recorded: true, Noted: true, Drivers: one(None, false)}, Forget, ""},
		"nothing is left":                  {State{}, Finish, ""},
	} {
		if got := Next(c.of); got.Action != c.want || got.Driver != c.by || got.Why == "" {
			t.Errorf("%s: %+v, want %s %s", name, got, c.want, c.by)
		}
	}
}
