// Command soak runs nodectl through thousands of pods, edits, crashes and faults on a real
// containerd, drawn from a seed. It checks the invariants (I1–I4, I6) and whether anything
// grows (I5). docs/testing.md has its latest results.
//
// Two agents share the containerd, each with its own node name, root and manifests. One runs as
// long as the soak, to show leaks; the other is killed and started again all the time. Pods are
// added and removed in rounds. At the end of a round there are no more faults: every pod has to
// reach the end that its manifest determines. Then all are removed, and the inventory must be that
// from before the first round.
//
// With --fill it fills and empties a disk instead: see fillAll.
//
// The desired state comes from the manifests. The actual state comes from containerd, /proc and the
// disk. The soak asks an agent only for its own figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// options are the command's flags.
type options struct {
	seed     uint64
	pods     int
	limit    time.Duration
	round    int
	atOnce   int
	out      string
	binary   string
	logLevel string
	fill     int
}

func main() { program.Main(parse, run) }

// run soaks, and prints and keeps the report.
func run(ctx context.Context, o options) (fine bool, err error) {
	if o.fill > 0 {
		r, err := fillAll(ctx, o)
		if r != nil {
			text := r.text()
			fmt.Print(text)
			err = errors.Join(err, os.WriteFile(filepath.Join(o.out, "fill.txt"), []byte(text), 0o644), report.WriteJSON(filepath.Join(o.out, "fill.json"), r))
		}
		return err == nil && len(r.Violations) == 0, err
	}
	r, err := soakAll(ctx, o)
	if r != nil {
		text := r.text()
		fmt.Print(text)
		err = errors.Join(err, os.WriteFile(filepath.Join(o.out, "soak.txt"), []byte(text), 0o644), report.WriteJSON(filepath.Join(o.out, "soak.json"), r))
	}
	return err == nil && r.OK, err
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.Uint64Var(&o.seed, "seed", 1, "what happens: the same seed, pods, round and at-once tell the same story")
	f.IntVar(&o.pods, "pods", 2000, "how many pods there are in all")
	f.DurationVar(&o.limit, "for", 0, "begin no new round after so long (default: none is left out)")
	f.IntVar(&o.round, "round", 0, "pods between two times of quiet (default: a 25th of all, 20 to 100)")
	f.IntVar(&o.atOnce, "at-once", 40, "how many pods there are at a time")
	f.StringVar(&o.out, "out", filepath.Join(node.Repo(), "bin/soak"), "directory for the result, what happened, and the agents' logs")
	f.StringVar(&o.binary, "binary", "", "the nodectl to test, built with testdata/vitals.go (default: built from this tree)")
	f.StringVar(&o.logLevel, "log-level", "info", "the agents' --log-level")
	f.IntVar(&o.fill, "fill", 0, "fill and empty the disk so many times instead, on a file system of its own")
	if err := program.Flags(f, args); err != nil {
		return o, err
	}
	if o.pods < 1 || o.atOnce < 1 {
		return o, errors.New("--pods and --at-once begin at 1")
	}
	if o.round == 0 {
		o.round = min(max(o.pods/25, 20), 100)
	}
	return o, nil
}
