// Package report stores the measurements of a benchmark's arms. It writes them as JSON with every
// sample, and makes figures and tables for people.
//
// The rules: a figure comes from the samples of one run. It includes all of them, and none of
// another run. And only a whole run is written into docs/benchmarks.md.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// MB is the unit of memory limits.
const MB = 1e6

// Report is the result of a run, with every sample.
type Report struct {
	Time     time.Time         `json:"time"`
	Quick    bool              `json:"quick"`
	Machine  map[string]string `json:"machine"`
	Measures []*Measure        `json:"measures"`
}

// Measure is one measured quantity, in all its arms.
type Measure struct {
	ID      int       `json:"id"`
	Name    string    `json:"name"`
	Method  string    `json:"method"`
	Noise   Noise     `json:"noise"`
	Figures []*Figure `json:"figures"`
	Arms    []*Arm    `json:"arms"`
	Notes   []string  `json:"notes,omitempty"`
}

// Figure is a value that a limit applies to.
type Figure struct {
	Name  string     `json:"name"`
	Value float64    `json:"value"`
	Unit  string     `json:"unit"` // "" for a ratio
	CI95  [2]float64 `json:"ci95"`
	Limit float64    `json:"limit"`         // 0: none, the figure is for information
	Aim   float64    `json:"aim,omitempty"` // better than the limit; 0: none
	OK    bool       `json:"ok"`
}

// Arm is a series of samples of one thing; durations are in milliseconds.
type Arm struct {
	Name    string    `json:"name"`
	Unit    string    `json:"unit"`
	N       int       `json:"n"`
	Median  float64   `json:"median"`
	Low     float64   `json:"min"`
	High    float64   `json:"max"`
	P90     float64   `json:"p90"`
	Samples []float64 `json:"samples"`
}

// Noise is how quiet the machine was before a measure began.
type Noise struct {
	Load1        float64 `json:"load1"`
	CPUPressure  float64 `json:"cpuPressureAvg10"`
	Busy         float64 `json:"busy"` // share of all CPUs, in a second without the bench
	ForeignShims int     `json:"foreignShims"`
}

// Quiet reports whether the noise is below the limit for a published run.
func (n Noise) Quiet() bool {
	return n.CPUPressure < 2 && n.Busy < 0.05 && n.ForeignShims == 0
}

func (n Noise) String() string {
	return fmt.Sprintf("load %.2f, CPU pressure %.1f %%, CPU busy %.0f %%, %d foreign shims", n.Load1, n.CPUPressure, 100*n.Busy, n.ForeignShims)
}

// Between names the series that shows how busy the machine was during a measure.
const Between = "CPU in use between samples, %"

// Begin adds a measure.
func (r *Report) Begin(id int, name, method string) *Measure {
	m := &Measure{ID: id, Name: name, Method: method}
	r.Measures = append(r.Measures, m)
	return m
}

// Find returns a measure that has begun, or nil.
func (r *Report) Find(id int) *Measure {
	if i := slices.IndexFunc(r.Measures, func(m *Measure) bool { return m.ID == id }); i >= 0 {
		return r.Measures[i]
	}
	return nil
}

// Missed counts the limits that were missed.
func (r *Report) Missed() int {
	n := 0
	for _, m := range r.Measures {
		for _, f := range m.Figures {
			if !f.OK {
				n++
			}
		}
	}
	return n
}

// Write writes the report to a file; an empty name writes nothing.
func (r *Report) Write(name string) error {
	if name == "" {
		return nil
	}
	return WriteJSON(name, r)
}

// Read reads what Write wrote.
func Read(name string) (*Report, error) {
	r := &Report{}
	if err := ReadJSON(name, r); err != nil {
		return nil, err
	}
	return r, nil
}

// WriteJSON writes a value to a file, and makes its directory.
func WriteJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

// ReadJSON reads what WriteJSON wrote.
func ReadJSON(name string, v any) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// Quiet reports whether the machine was quiet before the measure began, and
// mostly while it ran.
func (m *Measure) Quiet() bool {
	for _, a := range m.Arms {
		if a.Name == Between && a.Median >= 10 {
			return false
		}
	}
	return m.Noise.Quiet()
}

// NoiseText says how quiet the machine was.
func (m *Measure) NoiseText() string {
	if !m.Quiet() {
		return m.Noise.String() + " — NOT QUIET, provisional"
	}
	return m.Noise.String()
}

// Lookup returns the measure's arm of that name, or nil.
func (m *Measure) Lookup(name string) *Arm {
	if i := slices.IndexFunc(m.Arms, func(a *Arm) bool { return a.Name == name }); i >= 0 {
		return m.Arms[i]
	}
	return nil
}

// Arm returns the measure's arm of that name, new where there is none.
func (m *Measure) Arm(name string) *Arm {
	if a := m.Lookup(name); a != nil {
		return a
	}
	a := &Arm{Name: name}
	m.Arms = append(m.Arms, a)
	return a
}

// Note adds a remark for the reader.
func (m *Measure) Note(format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...))
}

// Add adds a duration.
func (a *Arm) Add(d time.Duration) {
	a.Unit = "ms"
	a.Value(float64(d) / float64(time.Millisecond))
}

// Value adds a sample in the arm's unit.
func (a *Arm) Value(v float64) {
	a.Samples = append(a.Samples, v)
	a.N, a.Median, a.P90 = len(a.Samples), Quantile(a.Samples, 0.5), Quantile(a.Samples, 0.9)
	a.Low, a.High = slices.Min(a.Samples), slices.Max(a.Samples)
}

// Ratio adds the ratio of two arms' medians as a figure; a limit of 0 means none.
func (m *Measure) Ratio(name, of, to string, limit float64) {
	m.add(ratio(name, m.Arm(of), m.Arm(to), limit))
}

// Max adds an arm's median as a figure, with the smallest and the largest sample; a limit of 0
// means none.
func (m *Measure) Max(of string, limit float64, unit string) {
	m.add(median(of, m.Arm(of), limit, unit))
}

func (m *Measure) add(f *Figure) { m.Figures = append(m.Figures, f) }

func ratio(name string, of, to *Arm, limit float64) *Figure {
	f := &Figure{Name: name, Value: of.Median / to.Median, Limit: limit, CI95: RatioCI(of.Samples, to.Samples)}
	f.OK = limit == 0 || f.Value <= limit
	return f
}

func median(name string, of *Arm, limit float64, unit string) *Figure {
	return &Figure{Name: name, Value: of.Median, Unit: unit, Limit: limit, CI95: [2]float64{of.Low, of.High}, OK: limit == 0 || of.Median <= limit}
}

// Text writes a value of the figure with its unit.
func (f *Figure) Text(v float64) string {
	switch f.Unit {
	case "":
		return fmt.Sprintf("%.2f", v)
	case "ms":
		if v < 10 {
			return fmt.Sprintf("%.2f ms", v)
		}
		return fmt.Sprintf("%.0f ms", v)
	case "/s":
		return fmt.Sprintf("%.2f/s", v)
	}
	return fmt.Sprintf("%.1f %s", v, f.Unit)
}

// Text writes a value of the arm with its unit.
func (a *Arm) Text(v float64) string {
	if a.Unit == "ms" {
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.2f", v)
}
