// Command parity runs the real kubelet and nodectl with the same manifests, one after the
// other, and compares the results: which containers started and stopped when and how, what
// both report of the pods, and how the containers look from inside. It writes
// docs/fidelity.md.
//
// A kubelet rejects some manifests from a file, such as ConfigMaps and Secrets. For these, a
// second kubelet has a real API server; nodectl has the same objects and pods as files.
//
// A run owns everything it touches: a containerd for each agent (test/node), a registry, an
// API server (test/cluster), their processes, directories and cgroups. All of it is gone at
// the end, also after an error or a signal.
//
// The one rule: a person has explained every difference in explained.yaml, and every
// explanation there explains one, or the run fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/explained"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
)

// options are the command's flags.
type options struct {
	match     *regexp.Regexp
	arms      []string
	atOnce    int
	keep, out string
	kubelet   string
	nodectl   string
	verbose   bool
	story     bool
}

func main() {
	program.Main(parse, func(ctx context.Context, o options) (fine bool, err error) {
		report, err := compareAll(ctx, o)
		if report == nil {
			return err == nil, err
		}
		unexplained, idle := report.unexplained(), len(report.idle())
		if unexplained > 0 {
			fmt.Fprintf(os.Stderr, "%d differences are not explained\n", unexplained)
		}
		if idle > 0 {
			fmt.Fprintf(os.Stderr, "%d explanations explain nothing\n", idle)
		}
		return unexplained == 0 && idle == 0, err
	})
}

func parse(args []string) (options, error) {
	o := options{}
	repo := node.Repo()
	f := flag.NewFlagSet("parity", flag.ContinueOnError)
	match := f.String("run", "", "the cases whose name matches")
	arm := f.String("arm", "both", "kubelet, nodectl, both; or none, to compare what was recorded before")
	f.IntVar(&o.atOnce, "at-once", 14, "how many cases run beside each other")
	f.StringVar(&o.keep, "keep", filepath.Join(repo, "bin/parity"), "directory for recordings and the agents' logs")
	f.StringVar(&o.out, "out", "", "where the table goes (default: nowhere, and all differences to standard output)")
	f.StringVar(&o.kubelet, "kubelet", filepath.Join(repo, "bin/kubelet/kubelet"), "the kubelet")
	f.StringVar(&o.nodectl, "nodectl", "", "the nodectl (default: built from this tree)")
	f.BoolVar(&o.verbose, "v", false, "name the cases as they end, and explained differences")
	f.BoolVar(&o.story, "story", false, "tell what happened in each case")
	if err := program.Flags(f, args); err != nil {
		return o, err
	}
	var err error
	if o.match, err = regexp.Compile(*match); err != nil {
		return o, fmt.Errorf("--run: %w", err)
	}
	arms := map[string][]string{"both": {"kubelet", "nodectl"}, "kubelet": {"kubelet"}, "nodectl": {"nodectl"}, "none": nil}
	var ok bool
	if o.arms, ok = arms[*arm]; !ok {
		return o, fmt.Errorf("--arm: %q is no arm", *arm)
	}
	if o.out != "" && *match != "" {
		return o, errors.New("--out: the table is of all cases")
	}
	return o, nil
}

// compareAll records the requested arms, compares both recordings and writes the table. With
// one arm alone there is no report.
func compareAll(ctx context.Context, o options) (*report, error) {
	here := filepath.Join(node.Repo(), "test/parity")
	cases, err := readCases(filepath.Join(here, "cases"), o.match)
	if err != nil {
		return nil, err
	}
	explanations, err := explained.Read(filepath.Join(here, "explained.yaml"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.keep, 0o755); err != nil {
		return nil, err
	}
	for _, arm := range o.arms {
		record, err := recordBoth(ctx, o, arm, cases)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", arm, err)
		}
		// Cases that were not run keep their old recordings.
		file := filepath.Join(o.keep, arm+".json")
		if old, err := readRecording(file); err == nil && o.match.String() != "" {
			maps.Copy(record.Paths, old.Paths)
			for name, c := range old.Cases {
				if record.Cases[name] == nil {
					record.Cases[name] = c
				}
			}
		}
		if err := record.write(file); err != nil {
			return nil, err
		}
	}
	var records [2]*Recording
	for i, arm := range []string{"kubelet", "nodectl"} {
		if records[i], err = readRecording(filepath.Join(o.keep, arm+".json")); err != nil {
			if len(o.arms) == 1 && errors.Is(err, os.ErrNotExist) {
				return nil, nil // one arm alone, for now
			}
			return nil, err
		}
	}
	if o.story {
		for _, c := range cases {
			story(os.Stdout, c, records[0])
			story(os.Stdout, c, records[1])
		}
	}
	report := newReport(cases, records[0], records[1], explanations)
	report.whole = o.match.String() == ""
	if o.out != "" {
		if err := os.WriteFile(o.out, []byte(report.markdown()), 0o644); err != nil {
			return nil, err
		}
	}
	report.print(os.Stdout, o.verbose)
	return report, nil
}

// recordBoth records all cases with one agent. For the kubelet these are two processes: cases
// with pods from an API server have their own.
func recordBoth(ctx context.Context, o options, arm string, cases []*Case) (*Recording, error) {
	through := func(c *Case) bool { return c.API }
	files := slices.DeleteFunc(slices.Clone(cases), through)
	if arm == "nodectl" || len(files) == len(cases) {
		return recordArm(ctx, o, arm, cases)
	}
	api, err := recordArm(ctx, o, "kubelet-api", slices.DeleteFunc(slices.Clone(cases), func(c *Case) bool { return !c.API }))
	if err != nil || len(files) == 0 {
		return api, err
	}
	record, err := recordArm(ctx, o, arm, files)
	if err != nil {
		return nil, err
	}
	maps.Copy(record.Paths, api.Paths)
	maps.Copy(record.Cases, api.Cases)
	return record, nil
}

// recordArm runs one agent with all cases, on its own node.
func recordArm(ctx context.Context, o options, arm string, cases []*Case) (record *Recording, err error) {
	began := time.Now()
	program := o.kubelet
	if arm == "nodectl" {
		if program, err = buildNodectl(ctx, o); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("%w: run make kubelet-bin", err)
	}
	p, clean, err := newPlace(ctx, o.keep, arm)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clean()) }()
	r := &run{place: *p, atOnce: o.atOnce, recorder: newRecorder(p.node.Runtime), rounds: map[string]int{}, progress: func(string) {}}
	if o.verbose {
		r.progress = func(name string) { fmt.Fprintf(os.Stderr, "%s %6.1fs %s\n", arm, time.Since(began).Seconds(), name) }
	}
	front, err := criproxy.New(p.node.Endpoint, filepath.Join(p.node.RunDir, "tap.sock"), tap(r.recorder.see))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, front.Close()) }()
	r.endpoint = front.Endpoint()
	shop, err := openRegistry(cases)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, shop.close()) }()
	r.registry, r.digests = shop.address, shop.digests
	var end func()
	switch arm {
	case "kubelet-api":
		if r.server, end, err = startServer(ctx, p.dir); err != nil {
			return nil, err
		}
		defer end()
		r.agent = &registered{kubelet{place: r.place, program: program}}
	case "kubelet":
		r.agent = &kubelet{place: r.place, program: program}
	default:
		r.agent = newNodectl(r.place, program)
	}
	r.record = &Recording{Arm: arm, Began: began, Cases: map[string]*CaseRecord{}, Paths: r.place.paths()}
	r.record.Paths[r.registry] = "$REGISTRY"
	if r.record.Version, err = r.agent.version(); err != nil {
		return nil, err
	}
	return r.record, r.cases(ctx, cases)
}

// buildNodectl returns the nodectl to run.
func buildNodectl(ctx context.Context, o options) (string, error) {
	if o.nodectl != "" {
		return filepath.Abs(o.nodectl)
	}
	out := filepath.Join(o.keep, "nodectl")
	build := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-o", out, ".")
	build.Dir = node.Repo()
	build.Env = append(slices.Clone(os.Environ()), "CGO_ENABLED=0", "GOWORK=off")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return out, nil
}
