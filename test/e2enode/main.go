// Command e2enode runs test/e2e_node, the suite by which Kubernetes tests its kubelet, once
// with the real kubelet and once with nodectl in its place, and keeps each case's outcome:
//
//	go run ./test/e2enode -agent nodectl -focus 'ConfigMap should be consumable'
//	go run ./test/e2enode -shard 2/6
//	go run ./test/e2enode -again failed
//	go run ./test/e2enode -subset
//	go run ./test/e2enode -page
//
// The suite is unmodified (hack/e2enode builds it) and believes that it runs on a machine
// with systemd: programs named sudo and systemctl, first in its PATH, let it stop and start
// the agent. Everything runs in namespaces and cgroups of its own; nothing of the machine's
// /var/lib/kubelet is touched, and all processes end with the run.
//
// If the kubelet passes a case, every other outcome of nodectl counts against it, also a
// skip.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
)

// options are the command's flags.
type options struct {
	agent    string
	focus    string
	skip     string
	class    string
	shard    string
	cases    string
	parallel int
	again    string
	subset   bool
	limit    time.Duration
	list     bool
	page     bool
	results  string
	logs     string

	focused, skipped *regexp.Regexp
	part, parts      int
}

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "sudo", "systemctl":
		os.Exit(standIn(name, os.Args[1:]))
	case insideName:
		os.Exit(initMain())
	case childName:
		program.Main(parse, runInside)
	}
	program.Main(parse, run)
}

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("e2enode", flag.ContinueOnError)
	f.StringVar(&o.agent, "agent", "both", "the agent: kubelet, nodectl, or both in turn")
	f.StringVar(&o.focus, "focus", "", "run the cases whose name matches this expression")
	f.StringVar(&o.skip, "skip", "", "do not run the cases whose name matches this expression")
	f.StringVar(&o.class, "class", "", "run these cases: fast (neither Serial nor Slow), serial, slow (not Serial), or all; fast by default, all with -again=failed")
	f.StringVar(&o.shard, "shard", "1/1", "run part I of N, as I/N")
	f.StringVar(&o.cases, "cases", "", "run the cases that this file names, one a line, instead of a class")
	f.IntVar(&o.parallel, "parallel", 3, "how many cases run at once, of those that are not Serial")
	f.StringVar(&o.again, "again", "", "run cases again that have a result: failed (only those that did not pass) or all (beside those that have none)")
	f.BoolVar(&o.subset, "subset", false, "run a subset of the fast cases that the kubelet has passed, in at most 20 minutes, with nodectl; record the results, and fail if a case does not pass")
	f.DurationVar(&o.limit, "limit", 0, "begin no case after this time with each agent, as 45m; the same command continues; 0 is no limit")
	f.BoolVar(&o.list, "list", false, "print the names of the cases and exit")
	f.BoolVar(&o.page, "page", false, "write docs/conformance.md from the results and exit")
	f.StringVar(&o.results, "results", here("results"), "directory of the results")
	f.StringVar(&o.logs, "logs", filepath.Join(bin(), "logs"), "directory for logs")
	if err := program.Flags(f, args); err != nil {
		return o, err
	}
	return o, o.check()
}

func (o *options) check() (err error) {
	if o.agent != "both" && o.agent != kubelet && o.agent != nodectl {
		return fmt.Errorf("-agent: %q is not kubelet, nodectl or both", o.agent)
	}
	if o.class != "" && classes[o.class] == nil {
		return fmt.Errorf("-class: %q is not fast, serial, slow or all", o.class)
	}
	if o.again != "" && o.again != failed && o.again != "all" {
		return fmt.Errorf("-again: %q is not failed or all", o.again)
	}
	if _, err := fmt.Sscanf(o.shard, "%d/%d", &o.part, &o.parts); err != nil || o.part < 1 || o.part > o.parts {
		return fmt.Errorf("-shard: %q is not I/N with I from 1 to N", o.shard)
	}
	if o.focused, err = regexp.Compile(o.focus); err != nil {
		return fmt.Errorf("-focus: %w", err)
	}
	if o.skipped, err = regexp.Compile(o.skip); err != nil {
		return fmt.Errorf("-skip: %w", err)
	}
	return nil
}

// here is this package's directory.
func here(name ...string) string {
	return filepath.Join(append([]string{node.Repo(), "test/e2enode"}, name...)...)
}

// bin is where hack/e2enode puts the suite.
func bin(name ...string) string {
	return filepath.Join(append([]string{node.Repo(), "bin/e2enode"}, name...)...)
}

// run runs each agent in namespaces of its own.
func run(ctx context.Context, o *options) (fine bool, err error) {
	if o.page {
		return true, writePage(o.results)
	}
	all, err := cases(ctx)
	if err != nil {
		return false, err
	}
	if o.list {
		for _, c := range all {
			if o.wants(c) {
				fmt.Println(c)
			}
		}
		return true, nil
	}
	if os.Geteuid() != 0 {
		return false, errors.New("needs root: it makes namespaces and cgroups")
	}
	if err := buildImages(); err != nil {
		return false, err
	}
	if o.subset {
		return runSubset(ctx, o)
	}
	if err := os.MkdirAll(o.results, 0o755); err != nil {
		return false, err
	}
	if err := os.WriteFile(filepath.Join(o.results, "cases.txt"), []byte(strings.Join(all, "\n")+"\n"), 0o644); err != nil {
		return false, err
	}
	for _, agent := range []string{kubelet, nodectl} {
		if err == nil && (o.agent == agent || o.agent == "both") {
			err = enter(ctx, agent, o)
		}
	}
	// The results so far count, also after an error or an interruption.
	if o.results == here("results") {
		err = errors.Join(err, writePage(o.results))
	}
	return err == nil, errors.Join(err, sayLeft(o.results))
}

// sayLeft prints how many claimed cases have no result yet.
func sayLeft(dir string) error {
	c, err := compare(dir)
	if err != nil {
		return err
	}
	for _, agent := range []string{kubelet, nodectl} {
		if n := c.count(agent, "", c.claimed); n > 0 {
			fmt.Printf("%s: %d claimed cases have not run; make e2e-node continues with them\n", agent, n)
		}
	}
	return nil
}
