// Command parity runs the real kubelet and nodectl with the same manifests, one after the other,
// and compares the results: the starts and stops of containers with their times and exit codes, the
// reported statuses, and the containers' view from inside. It writes docs/fidelity.md.
//
// A kubelet rejects some manifests from a file, such as ConfigMaps and Secrets. For these, a
// second kubelet has a real API server; nodectl has the same objects and pods as files.
//
// A run owns everything it touches: a containerd for each agent (test/node), a registry, an
// API server (test/cluster), their processes, directories and cgroups. All of it is gone at
// the end, also after an error or a signal.
//
// The run fails unless a person has explained every difference in explained.yaml, and every
// explanation there explains one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/compare"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
	"github.com/nodectl/nodectl/test/suite"
)

// options are the command's flags.
type options struct {
	compare.Options
	atOnce int
	out    string
	story  bool
}

func main() { program.Main(parse, compareAll) }

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("parity", flag.ContinueOnError)
	f.IntVar(&o.atOnce, "at-once", 14, "how many cases run beside each other")
	f.StringVar(&o.out, "out", "", "where the table goes (default: nowhere)")
	f.BoolVar(&o.story, "story", false, "tell what happened in each case")
	if err := o.Parse(f, args); err != nil {
		return o, err
	}
	if o.out != "" && !o.Whole() {
		return o, errors.New("--out: the table is of all cases")
	}
	return o, nil
}

// compareAll records the requested arms, compares both recordings and writes the table.
func compareAll(ctx context.Context, o *options) (fine bool, err error) {
	here := filepath.Join(node.Repo(), "test/parity")
	cases, err := readCases(filepath.Join(here, "cases"), o.Match)
	if err != nil {
		return false, err
	}
	explanations, err := compare.Read(filepath.Join(here, "explained.yaml"))
	if err != nil {
		return false, err
	}
	kubelet, nodectl, err := compare.Record(&o.Options, func(arm, file string) (*Recording, error) {
		r, err := recordBoth(ctx, o, arm, cases)
		var old Recording
		if err == nil && !o.Whole() && report.ReadJSON(file, &old) == nil { // cases that were not run keep their old recordings
			maps.Copy(r.Paths, old.Paths)
			maps.Copy(old.Cases, r.Cases)
			r.Cases = old.Cases
		}
		return r, err
	})
	if kubelet == nil || err != nil {
		return err == nil, err
	}
	if o.story {
		for _, c := range cases {
			story(os.Stdout, c, kubelet)
			story(os.Stdout, c, nodectl)
		}
	}
	t := newTable(cases, kubelet, nodectl, explanations)
	if o.out != "" {
		if err := os.WriteFile(o.out, []byte(t.markdown()), 0o644); err != nil {
			return false, err
		}
	}
	fmt.Printf("%d cases, %d contract numbers\n", len(cases), len(numbers(cases)))
	return t.Print(os.Stdout, &o.Options), nil
}

// recordBoth records all cases with one agent. For the kubelet these are two processes: cases
// with pods from an API server have their own.
func recordBoth(ctx context.Context, o *options, arm string, cases []*Case) (*Recording, error) {
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
func recordArm(ctx context.Context, o *options, name string, cases []*Case) (record *Recording, err error) {
	began := time.Now()
	l, err := arm.Open(ctx)
	if err != nil {
		return nil, err
	}
	t := suite.New(ctx, l.Dir)
	defer func() {
		t.End()
		err = errors.Join(err, arm.Empty(l.Node, l.Dir, l.Node.RemovePods), l.Close())
	}()
	r := &run{atOnce: o.atOnce, recorder: newRecorder(l.Node.Runtime), rounds: map[string]int{}, progress: func(string) {}}
	if o.Verbose {
		r.progress = func(of string) { fmt.Fprintf(os.Stderr, "%s %6.1fs %s\n", name, time.Since(began).Seconds(), of) }
	}
	front, err := criproxy.New(l.Node.Endpoint, filepath.Join(l.Node.RunDir, "tap.sock"), tap(r.recorder.see))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, front.Close()) }()
	if r.place, err = newPlace(ctx, l, name, front.Endpoint()); err != nil {
		return nil, err
	}
	kubeconfig := ""
	if err := suite.Try(func() {
		r.registry, r.digests = openRegistry(t, cases)
		if name == "kubelet-api" {
			r.server, kubeconfig = startServer(t)
		}
	}); err != nil {
		return nil, err
	}
	if name == "nodectl" {
		if r.agent, err = arm.NewNodectl(ctx, o.Keep, o.Nodectl); err == nil {
			r.agent.Args, r.agent.LogLevel = nodectlFlags, "debug"
		}
	} else {
		r.agent, err = newKubelet(o.Kubelet, kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	r.agent.KeepLogs = o.Keep
	r.record = &Recording{Arm: name, Began: began, Cases: map[string]*CaseRecord{}, Paths: r.place.paths()}
	r.record.Paths[r.registry] = "$REGISTRY"
	if r.record.Version, err = r.agent.Version(); err != nil {
		return nil, err
	}
	return r.record, r.cases(ctx, cases)
}
