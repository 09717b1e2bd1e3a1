package main

import (
	"bufio"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nodectl/nodectl/test/report"
)

// A result has the findings of a run.
type result struct {
	Time       time.Time         `json:"time"`
	Took       float64           `json:"seconds"`
	Seed       uint64            `json:"seed"`
	Round      int               `json:"podsPerRound"`
	AtOnce     int               `json:"podsAtOnce"`
	OK         bool              `json:"ok"`
	Machine    map[string]string `json:"machine"`
	Deeds      map[string]int    `json:"deeds"`
	Violations []string          `json:"violations"`
	Leave      float64           `json:"slowestLeaveSeconds"`
	Said       map[string]int    `json:"warnings"` // the agents', by message
	Growth     []growth          `json:"growth"`
	Rounds     []round           `json:"rounds"`
}

// A round has the observations at its end.
type round struct {
	Pods      int       `json:"pods"` // so far
	Took      float64   `json:"seconds"`
	Settled   float64   `json:"settledAfterSeconds"`
	Emptied   float64   `json:"emptiedAfterSeconds"`
	Inventory inventory `json:"inventory"`
	Sample    sample    `json:"sample"`
}

func (r round) summary() string {
	return fmt.Sprintf("steady: heap %.1f MB, RssAnon %.1f MB, %.0f goroutines, %.0f fds",
		r.Sample["steady heap, MB"], r.Sample["steady RssAnon, MB"], r.Sample["steady goroutines"], r.Sample["steady file descriptors"])
}

// growth is one figure over the run.
type growth struct {
	Name    string  `json:"name"`
	First   float64 `json:"first"`
	Last    float64 `json:"last"`
	High    float64 `json:"high"`
	Slope   float64 `json:"perThousandPods"`
	Noise   float64 `json:"noise"` // half of the slope's 95 % interval; 0 where too few rounds tell
	Allowed float64 `json:"allowed"`
	OK      bool    `json:"ok"`
}

// slack is how much a figure may grow over a whole run, whatever its length; the first part
// that its name contains applies.
var slack = []struct {
	part  string
	total float64 // in the figure's unit
	share float64 // of its first value
}{
	{"as it stood", math.Inf(1), 0}, // memory that was not returned to the kernel yet
	{"journal", 8, 0},               // rewritten when it is twice this
	{"containerd", math.Inf(1), 0},  // not ours: for information
	{"of the machine", math.Inf(1), 0},
	{"heap objects", 3000, 0.10},
	{"heap", 1, 0.10},
	{"RssAnon", 3, 0.10},
	{"VmRSS", 4, 0.10},
	{"goroutines", 2, 0},
	{"threads", 12, 0}, // as many as calls once hung at a time; the Go runtime keeps them
	{"file descriptors", 3, 0},
	{"", 0, 0}, // everything else is counted, and stays
}

// finish computes the growth over all rounds.
func (r *result) finish() {
	r.Took = time.Since(r.Time).Seconds()
	r.Growth = nil
	series := map[string][]float64{}
	var pods []float64
	for _, it := range r.Rounds {
		pods = append(pods, float64(it.Pods))
		for name, v := range it.Sample {
			series[name] = append(series[name], v)
		}
		for name, v := range it.Inventory {
			series[name] = append(series[name], float64(v))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(series)) {
		if len(series[name]) != len(pods) {
			continue
		}
		g := grown(name, pods, series[name])
		r.Growth = append(r.Growth, g)
		if !g.OK {
			r.Violations = append(r.Violations, fmt.Sprintf("I5 or I6: %s grows by %.3g every 1,000 pods", name, g.Slope))
		}
	}
	r.OK = len(r.Violations) == 0 && len(r.Rounds) > 0
}

// warm is the number of rounds before the first one that counts: caches fill, connections are
// made.
func warm(rounds int) int { return (rounds + 4) / 5 }

// grown fits a line to a figure. It has leaked when it grew by more than the
// slack and by more than the noise.
func grown(name string, pods, values []float64) growth {
	g := growth{Name: name, First: values[0], Last: values[len(values)-1], High: slices.Max(values)}
	skip := 0
	if len(values) > 2 {
		skip = warm(len(values))
	}
	g.Slope, g.Noise = line(pods[skip:], values[skip:])
	g.Slope, g.Noise = g.Slope*1000, g.Noise*1000
	for _, s := range slack {
		if strings.Contains(name, s.part) {
			g.Allowed = s.total + s.share*values[skip]
			break
		}
	}
	over := (pods[len(pods)-1] - pods[skip]) / 1000
	g.OK = g.Slope*over <= g.Allowed || (g.Noise > 0 && g.Slope <= g.Noise)
	if math.IsInf(g.Allowed, 1) {
		g.Allowed = -1 // JSON has no infinity
	}
	return g
}

// line is the least-squares slope of y over x, and half of its 95 % interval.
func line(x, y []float64) (slope, noise float64) {
	n := float64(len(x))
	var mx, my float64
	for i := range x {
		mx, my = mx+x[i]/n, my+y[i]/n
	}
	var xx, xy float64
	for i := range x {
		xx += (x[i] - mx) * (x[i] - mx)
		xy += (x[i] - mx) * (y[i] - my)
	}
	if xx == 0 {
		return 0, 0
	}
	slope = xy / xx
	if n < 4 {
		return slope, 0
	}
	var rest float64
	for i := range x {
		d := y[i] - my - slope*(x[i]-mx)
		rest += d * d
	}
	const t = 2.1 // of Student's distribution, for the 18 rounds or so that there are
	return slope, t * math.Sqrt(rest/(n-2)/xx)
}

// message is slog's constant part of a line.
var message = regexp.MustCompile(`level=(WARN|ERROR).*? msg=("[^"]*"|\S+)|^\S* ?(WARN|ERROR) ([A-Z][^=]*?)( \S+=|$)`)

// listen counts the warnings and errors of a house's agents.
func (r *result) listen(dir, house string) {
	logs, _ := filepath.Glob(filepath.Join(dir, house+"-*.log"))
	for _, name := range logs {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if m := message.FindStringSubmatch(lines.Text()); m != nil {
				r.Said[house+" "+m[1]+m[3]+" "+strings.Trim(m[2], `"`)+m[4]]++
			}
			if strings.Contains(lines.Text(), "panic") && len(r.Violations) < maxViolations {
				r.Violations = append(r.Violations, "F8: "+filepath.Base(name)+": "+lines.Text())
			}
		}
		_ = f.Close()
	}
}

// text returns the report for people, which docs/testing.md contains.
func (r *result) text() string {
	var b strings.Builder
	verdict := "no leak, no promise broken"
	if !r.OK {
		verdict = fmt.Sprintf("FAILED, %d violations", len(r.Violations))
	}
	pods := 0
	var settled, emptied []float64
	for _, it := range r.Rounds {
		pods = it.Pods
		settled, emptied = append(settled, it.Settled), append(emptied, it.Emptied)
	}
	fmt.Fprintf(&b, "Seed %d, %d pods, at most %d at once, %d rounds, %s: %s.\n", r.Seed, pods, r.AtOnce,
		len(r.Rounds), time.Duration(r.Took*float64(time.Second)).Round(time.Second), verdict)
	b.WriteString(report.Origin(&report.Report{Time: r.Time, Machine: r.Machine}))
	b.WriteString("What happened: " + tally(r.Deeds) + ".\n")
	if len(settled) > 0 {
		fmt.Fprintf(&b, "Every pod where its manifest says: at most %.1f s after the last fault; nothing left: at most %.1f s after the last manifest went.\nSlowest leave on SIGTERM: %.2f s.\n",
			slices.Max(settled), slices.Max(emptied), r.Leave)
	}
	fmt.Fprintf(&b, "The agents warned: %s.\n\n", tally(r.Said))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "first\tlast\thighest\tper 1,000 pods\t±\tmay grow by\t\t figure")
	for _, g := range r.Growth {
		verdict, allowed := "ok", fmt.Sprintf("%.4g", g.Allowed)
		if !g.OK {
			verdict = "GROWS"
		}
		if g.Allowed < 0 {
			verdict, allowed = "", ""
		}
		fmt.Fprintf(w, "%.4g\t%.4g\t%.4g\t%+.3g\t%.2g\t%s\t%s\t %s\n", g.First, g.Last, g.High, g.Slope, g.Noise, allowed, verdict, g.Name)
	}
	_ = w.Flush() // to memory
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "\n- %s", v)
	}
	return b.String() + "\n"
}

// tally lists counts by name.
func tally(counts map[string]int) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s %d", strings.TrimSpace(name), counts[name]))
	}
	return strings.Join(all, ", ")
}
