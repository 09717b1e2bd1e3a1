package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/report"
)

// goBench is one benchmark of the tree and the limits of its metrics.
type goBench struct {
	pkg, run string
	time     string // -benchtime
	limits   []limit
}

// limit is one metric of the lines whose name ends in of.
type limit struct {
	of, metric, figure, unit string
	scale, max               float64
}

// A treeMeasure is one of measures 7 to 10: from a file to a PodUpdate, and on to readers.
type treeMeasure struct {
	id, name string
	rounds   int
	benches  []goBench
}

var treeMeasures = []treeMeasure{
	{"7", "merging", 3, []goBench{
		{"./pkg/podconfig", "BenchmarkUnchanged", "1s", []limit{
			{"handed_on/10000,_1_a_file", "ns/pod", "10,000 rich pods unchanged, a pod", "ns", 1, 300},
			{"handed_on/10000,_1_a_file", "allocs/op", "the same, allocations a pod", "", 1e-4, 0.01},
			{"decoded_anew/1000,_1_a_file", "ns/pod", "1,000 unchanged, but decoded again, a pod", "ns", 1, 300},
			{"decoded_anew/1000,_1_a_file", "allocs/op", "1,000 decoded again, allocations a pod", "", 1e-3, 0.1},
			{"decoded_anew/10000,_1_a_file", "ns/pod", "10,000 unchanged, but decoded again, a pod", "ns", 1, 0},
		}},
		{"./pkg/podconfig", "BenchmarkOneOfMany", "1s", []limit{
			{"/100000,_1_a_file", "ns/op", "one pod changed of 100,000", "ms", 1e-6, 1},
		}},
	}},
	{"8", "dropping files", 5, []goBench{{"./cmd", "BenchmarkDropFiles", "3x", []limit{
		{"/3000", "ns/pod", "3,000 files dropped one by one, a pod", "µs", 1e-3, 400},
		{"/3000", "B/pod", "the same, allocated a pod", "kB", 1e-3, 120},
		{"/300", "B/pod", "300 files, allocated a pod", "kB", 1e-3, 120},
	}}}},
	{"9", "rescanning files", 5, []goBench{{"./pkg/source/file", "BenchmarkRescan", "1s", []limit{
		{"files=1000", "ns/op", "rescan of 1,000 unchanged files", "ms", 1e-6, 2},
	}}}},
	{"10", "watching over the local socket", 3, []goBench{{"./pkg/agent", "BenchmarkWatch_100Readers", "1000x", []limit{
		{"100Readers", "p99-ms", "100 readers, 100 updates a second: p99 to a reader", "ms", 1, 50},
		{"100Readers", "p50-ms", "the same, p50", "ms", 1, 0},
	}}}},
}

// measureTree runs benchmarks of the tree several times, each in its own process; the median
// counts.
func (b *bench) measureTree(ctx context.Context, t treeMeasure) error {
	id, err := strconv.Atoi(t.id)
	if err != nil {
		return err
	}
	m := b.Begin(ctx, id, t.name, "go test -bench, a process of its own each time; median of the runs")
	for range b.Count(t.rounds, 1) {
		for _, g := range t.benches {
			if err := b.goBench(ctx, m, g); err != nil {
				return err
			}
		}
	}
	for _, g := range t.benches {
		for _, l := range g.limits {
			m.Max(l.figure, l.max, l.unit)
		}
	}
	return nil
}

var benchLine = regexp.MustCompile(`^(Benchmark\S+?)-\d+\s+\d+\s+(.*)$`)

// goBench runs a benchmark once and adds the values that its limits name.
func (b *bench) goBench(ctx context.Context, m *report.Measure, g goBench) error {
	cmd := exec.CommandContext(ctx, "go", "test", g.pkg, "-run", "^$", "-bench", "^"+g.run+"$", "-benchtime", g.time, "-benchmem")
	cmd.Dir = node.Repo()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", g.run, err, out)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		parts := benchLine.FindStringSubmatch(strings.TrimSpace(line))
		if parts == nil {
			continue
		}
		fields := strings.Fields(parts[2])
		for i := 0; i+1 < len(fields); i += 2 {
			for _, l := range g.limits {
				if strings.HasSuffix(parts[1], l.of) && fields[i+1] == l.metric {
					v, err := strconv.ParseFloat(fields[i], 64)
					if err != nil {
						return err
					}
					m.Arm(l.figure).Value(v * l.scale)
					found[l.figure] = true
				}
			}
		}
	}
	for _, l := range g.limits {
		if !found[l.figure] {
			return fmt.Errorf("%s did not say %s of %s:\n%s", g.run, l.metric, l.of, out)
		}
	}
	return nil
}

// mergeFiles is how many manifests measure 11 merges.
const mergeFiles = 10_000

// measureMerge is measure 11: merge --dry-run of a directory of many manifests, with the time
// and memory of its process.
func (b *bench) measureMerge(ctx context.Context) error {
	m := b.Begin(ctx, 11, fmt.Sprintf("merge --dry-run of %d files", mergeFiles),
		"exec → exit, against none; the one-container pod of examples/, one a file; peak RSS as the kernel counted it (ru_maxrss)")
	text, err := os.ReadFile(filepath.Join(node.Repo(), "examples/web.yaml"))
	if err != nil {
		return err
	}
	dir := filepath.Join(b.Dir, "many")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for i := range mergeFiles {
		pod := strings.Replace(string(text), "  name: web\n", fmt.Sprintf("  name: web-%05d\n", i), 1)
		pod = strings.Replace(pod, "          hostPort: 8080\n", "", 1)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d.yaml", i)), []byte(pod), 0o600); err != nil {
			return err
		}
	}
	for range b.Count(5, 1) {
		cmd := arm.Command(b.Nodectl.Binary, "merge", "--dry-run", "--against", "none", "-f", dir, "-o", "name", "--exit-code=false", "--root-dir", b.Dir)
		begin := time.Now()
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("merge: %w", err)
		}
		took := time.Since(begin)
		if n := strings.Count(string(out), "\n"); n != mergeFiles {
			return fmt.Errorf("merge names %d pods", n)
		}
		use := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		m.Arm("wall time").Value(took.Seconds())
		m.Arm("CPU time").Value((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
		m.Arm("peak RSS").Value(float64(use.Maxrss) * 1024 / report.MB)
	}
	m.Max("wall time", 3, "s")
	m.Max("peak RSS", 60+0.04*mergeFiles, "MB")
	m.Max("CPU time", 0, "s")
	return nil
}
