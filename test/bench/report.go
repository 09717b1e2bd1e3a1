package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

// report is the result of a run, with every sample.
type report struct {
	Time     time.Time         `json:"time"`
	Quick    bool              `json:"quick"`
	Machine  map[string]string `json:"machine"`
	Measures []*measure        `json:"measures"`

	bench *bench
}

// measure is one of those that docs/benchmarks.md lists.
type measure struct {
	ID      int       `json:"id"`
	Name    string    `json:"name"`
	Method  string    `json:"method"`
	Noise   noise     `json:"noise"`
	Figures []*figure `json:"figures"`
	Arms    []*arm    `json:"arms"`
	Notes   []string  `json:"notes,omitempty"`
}

// figure is what a limit is about.
type figure struct {
	Name  string     `json:"name"`
	Value float64    `json:"value"`
	Unit  string     `json:"unit"` // "" for a ratio
	CI95  [2]float64 `json:"ci95"`
	Limit float64    `json:"limit"` // 0: none, the figure is for information
	OK    bool       `json:"ok"`
}

// arm is a series of samples of one thing; durations are in milliseconds.
type arm struct {
	Name    string    `json:"name"`
	Unit    string    `json:"unit"`
	N       int       `json:"n"`
	Median  float64   `json:"median"`
	Low     float64   `json:"min"`
	High    float64   `json:"max"`
	P90     float64   `json:"p90"`
	Samples []float64 `json:"samples"`
}

// noise is how quiet the machine was before a measure began.
type noise struct {
	Load1        float64 `json:"load1"`
	CPUPressure  float64 `json:"cpuPressureAvg10"`
	Busy         float64 `json:"busy"` // share of all CPUs, in a second without us
	ForeignShims int     `json:"foreignShims"`
}

// quiet is the gate: what a run for publication has to stay below.
func (n noise) quiet() bool {
	return n.CPUPressure < 2 && n.Busy < 0.05 && n.ForeignShims == 0
}

func (n noise) String() string {
	return fmt.Sprintf("load %.2f, CPU pressure %.1f %%, CPU busy %.0f %%, %d foreign shims", n.Load1, n.CPUPressure, 100*n.Busy, n.ForeignShims)
}

func newReport(ctx context.Context, b *bench) (*report, error) {
	v, err := b.node.Runtime.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, err
	}
	binary, err := os.ReadFile(b.binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(binary)
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	r := &report{Time: time.Now(), Quick: b.quick, bench: b, Machine: map[string]string{
		"kernel":     unix.ByteSliceToString(u.Release[:]),
		"cpu":        fmt.Sprintf("%d × %s", runtime.NumCPU(), cpuModel()),
		"memory":     memory(),
		"cgroup":     cgroupMode(),
		"runtime":    v.RuntimeName + " " + v.RuntimeVersion,
		"runc":       firstLine(filepath.Join(must(node.Programs()), "runc"), "--version"),
		"go":         runtime.Version(),
		"commit":     commit(),
		"nodectl":    fmt.Sprintf("%.1f MB, sha256 %s", float64(len(binary))/mb, hex.EncodeToString(sum[:6])),
		"containerd": b.config(),
	}}
	return r, nil
}

func must(s string, err error) string {
	if err != nil {
		return ""
	}
	return s
}

// config names the settings of containerd that move the figures.
func (b *bench) config() string {
	var found []string
	text, _ := os.ReadFile(filepath.Join(b.node.RunDir, "config.toml"))
	for l := range strings.Lines(string(text)) {
		if strings.Contains(l, "stats_collect_period = '") || strings.HasPrefix(l, "  snapshotter =") {
			found = append(found, strings.TrimSpace(l))
		}
	}
	slices.Sort(found)
	return strings.Join(slices.Compact(found), ", ")
}

func commit() string {
	out, err := exec.Command("git", "-C", node.Repo(), "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		if info, ok := debug.ReadBuildInfo(); ok {
			return info.Main.Version
		}
	}
	return string(bytes.TrimSpace(out))
}

func firstLine(program string, args ...string) string {
	out, _ := exec.Command(program, args...).Output()
	l, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(l, "runc version ")
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	_, after, _ := strings.Cut(string(text), "model name")
	l, _, _ := strings.Cut(after, "\n")
	return strings.Trim(l, "\t :")
}

func memory() string {
	text, _ := os.ReadFile("/proc/meminfo")
	return fmt.Sprintf("%.1f GB", float64(statusBytes("\n"+string(text), "MemTotal:"))/1e9)
}

func cgroupMode() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "v2"
	}
	return "v1"
}

// measure begins a measure.
func (r *report) measure(id int, name, method string) *measure {
	m := &measure{ID: id, Name: name, Method: method}
	r.Measures = append(r.Measures, m)
	r.bench.say("measure %d: %s", id, name)
	return m
}

// find returns a measure that has begun.
func (r *report) find(id int) *measure {
	return r.Measures[slices.IndexFunc(r.Measures, func(m *measure) bool { return m.ID == id })]
}

// missed counts the limits that were missed.
func (r *report) missed() int {
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

// noise waits for a quiet machine, for a while, and records how quiet it is for
// the measures that begin now.
func (b *bench) noise(ctx context.Context, begin ...*measure) {
	var n noise
	for deadline := time.Now().Add(b.waitQuiet); ; {
		n = noise{Load1: load(), Busy: busy(), CPUPressure: pressure(), ForeignShims: foreignShims(b.node.RunDir)}
		if n.quiet() || b.quick || time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
	}
	for _, m := range begin {
		m.Noise = n
	}
	if !n.quiet() {
		b.say("the machine is not quiet (%s): the figures are provisional", n)
	}
}

// between names the series that tells how loud a measure was while it ran.
const between = "CPU in use between samples, %"

// rest lies between two samples, and records how busy the machine is while the
// bench does nothing: a measure that began on a quiet one may not stay on it.
func (m *measure) rest(ctx context.Context, d time.Duration) error {
	idle, all := cpuTimes()
	if err := pause(ctx, d); err != nil {
		return err
	}
	idle2, all2 := cpuTimes()
	if all2 > all {
		m.arm(between).value(100 * (1 - float64(idle2-idle)/float64(all2-all)))
	}
	return nil
}

// quiet reports whether the machine was quiet before the measure began, and
// mostly while it ran.
func (m *measure) quiet() bool {
	for _, a := range m.Arms {
		if a.Name == between && a.Median >= 10 {
			return false
		}
	}
	return m.Noise.quiet()
}

// arm returns the measure's arm of that name, new where there is none.
func (m *measure) arm(name string) *arm {
	if i := slices.IndexFunc(m.Arms, func(a *arm) bool { return a.Name == name }); i >= 0 {
		return m.Arms[i]
	}
	a := &arm{Name: name}
	m.Arms = append(m.Arms, a)
	return a
}

func (m *measure) note(format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...))
}

// add adds a duration.
func (a *arm) add(d time.Duration) {
	a.Unit = "ms"
	a.value(float64(d) / float64(time.Millisecond))
}

// value adds a sample in the unit that the arm's name tells.
func (a *arm) value(v float64) {
	a.Samples = append(a.Samples, v)
	a.N, a.Median, a.P90 = len(a.Samples), quantile(a.Samples, 0.5), quantile(a.Samples, 0.9)
	a.Low, a.High = slices.Min(a.Samples), slices.Max(a.Samples)
}

// ratio adds the ratio of two arms' medians; a limit of 0 is none.
func (m *measure) ratio(name, of, to string, limit float64) {
	a, b := m.arm(of), m.arm(to)
	f := &figure{Name: name, Value: a.Median / b.Median, Limit: limit}
	f.CI95 = ratioCI(a.Samples, b.Samples)
	f.OK = limit == 0 || f.Value <= limit
	m.Figures = append(m.Figures, f)
}

// limit adds an arm's median as a figure; a limit of 0 is none.
func (m *measure) limit(of string, limit float64, unit string) {
	a := m.arm(of)
	f := &figure{Name: of, Value: a.Median, Unit: unit, Limit: limit, CI95: [2]float64{a.Low, a.High}}
	f.OK = limit == 0 || f.Value <= limit
	m.Figures = append(m.Figures, f)
}

// markdown is the report for people: what docs/benchmarks.md holds.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %s memory, Linux %s, cgroup %s; %s, runc %s, %s; nodectl %s (%s), %s.\n\n",
		r.Time.Format("2006-01-02"), r.Machine["cpu"], r.Machine["memory"], r.Machine["kernel"], r.Machine["cgroup"],
		r.Machine["runtime"], r.Machine["runc"], r.Machine["containerd"], r.Machine["commit"], r.Machine["nodectl"], r.Machine["go"])
	b.WriteString("| | measure | figure | value | 95 % | limit | |\n|---|---|---|---|---|---|---|\n")
	for _, m := range r.Measures {
		for _, f := range m.Figures {
			limit, verdict := "≤ "+f.text(f.Limit), "ok"
			switch {
			case f.Limit == 0:
				limit, verdict = "", ""
			case !f.OK:
				verdict = "**missed**"
			}
			fmt.Fprintf(&b, "| %d | %s | %s | %s | %s–%s | %s | %s |\n", m.ID, m.Name, f.Name, f.text(f.Value), f.text(f.CI95[0]), f.text(f.CI95[1]), limit, verdict)
		}
	}
	b.WriteString("\n| | samples of | n | median | min | p90 | max |\n|---|---|---|---|---|---|---|\n")
	for _, m := range r.Measures {
		for _, a := range m.Arms {
			fmt.Fprintf(&b, "| %d | %s | %d | %s | %s | %s | %s |\n", m.ID, a.Name, a.N, a.text(a.Median), a.text(a.Low), a.text(a.P90), a.text(a.High))
		}
	}
	b.WriteString("\n")
	for _, m := range r.Measures {
		loud := ""
		if !m.quiet() {
			loud = " — NOT QUIET, provisional"
		}
		fmt.Fprintf(&b, "- %d before it began: %s%s\n", m.ID, m.Noise, loud)
		for _, n := range m.Notes {
			fmt.Fprintf(&b, "- %d %s\n", m.ID, n)
		}
	}
	return b.String()
}

func (f *figure) text(v float64) string {
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

func (a *arm) text(v float64) string {
	if a.Unit == "ms" {
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.2f", v)
}
