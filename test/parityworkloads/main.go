// Command parityworkloads compares workloads of nodectl with those of Kubernetes' controllers. Each
// scenario in testdata is a workload and a script: edits, commands, statuses of pods, time. The
// command plays it on a real kube-controller-manager and records which pods were created and
// deleted after each step. A test of the first tier plays the same script on workload.Next in
// fake time.
//
// No kubelet runs: the scripts give pods their statuses, and end pods that were deleted.
//
// nodectl's course is equal to the recorded one, or the scenario's file has the difference and its
// reason.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
)

// options are the command's flags.
type options struct {
	match *regexp.Regexp
	write bool
	keep  bool
}

func main() { program.Main(parse, run) }

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("parityworkloads", flag.ContinueOnError)
	match := f.String("run", "", "the scenarios whose name matches")
	f.BoolVar(&o.write, "write", false, "write the recorded rounds into testdata, and the page into docs")
	f.BoolVar(&o.keep, "recorded", false, "record nothing: compare with what testdata has")
	if err := program.Flags(f, args); err != nil {
		return o, err
	}
	var err error
	if o.match, err = regexp.Compile(*match); err != nil {
		return o, fmt.Errorf("--run: %w", err)
	}
	return o, nil
}

// here is a path in this package's directory.
func here(name ...string) string {
	return filepath.Join(append([]string{node.Repo(), "test/parityworkloads"}, name...)...)
}

func run(ctx context.Context, o *options) (fine bool, err error) {
	all, err := readScenarios(here("testdata"))
	if err != nil {
		return false, err
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(s *Scenario) bool { return !o.match.MatchString(s.Name) })
	// Scenarios with a schedule take minutes: they begin first.
	slices.SortStableFunc(chosen, func(a, b *Scenario) int { return rank(a) - rank(b) })
	fine = true
	if !o.keep {
		if fine, err = recordAll(ctx, o, chosen); err != nil {
			return false, err
		}
	}
	for _, s := range chosen {
		problem, err := compareOne(s, o.write)
		if err != nil {
			return false, err
		}
		if problem != "" {
			fine = false
			fmt.Printf("%s: %s\n", s.Name, problem)
		}
	}
	if o.write {
		return fine, os.WriteFile(filepath.Join(node.Repo(), document), []byte(markdown(all)), 0o644)
	}
	return fine, nil
}

func rank(s *Scenario) int {
	if strings.HasPrefix(s.Name, "cronjob") {
		return 0
	}
	return 1
}

// recordAll records scenarios. Without --write it reports those whose rounds are not those of
// testdata.
func recordAll(ctx context.Context, o *options, chosen []*Scenario) (fine bool, err error) {
	dir, err := os.MkdirTemp("", "parityworkloads-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	began := time.Now()
	rounds, failed := record(ctx, dir, chosen, func(name string) {
		fmt.Fprintf(os.Stderr, "%6.1fs %s\n", time.Since(began).Seconds(), name)
	})
	if rounds == nil || ctx.Err() != nil {
		return false, errors.Join(failed, ctx.Err())
	}
	fine = true
	if failed != nil {
		fine = false
		fmt.Println(failed)
	}
	for _, s := range chosen {
		got, ended := rounds[s.Name]
		if !ended {
			continue // the error has been printed
		}
		if d := difference(s.Kubernetes, got); d != "" && len(s.Kubernetes) > 0 {
			fmt.Printf("%s: recorded otherwise than before: %s\n", s.Name, d)
			fine = fine && o.write
		}
		s.Kubernetes = got
		s.Set(sectionKubernetes, got.String())
		if o.write {
			if err := s.Write(); err != nil {
				return false, err
			}
		}
	}
	return fine, nil
}

// notCompared is the problem of a scenario that make parity-workloads has to record first.
const notCompared = "it is not recorded"

// compareOne returns the problem of a scenario, "" for none: nodectl's rounds are neither
// the recorded ones nor those that have a reason. With write, the file gets nodectl's rounds; a
// person writes the reason.
func compareOne(s *Scenario, write bool) (problem string, err error) {
	got, err := play(s)
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.Name, err)
	}
	want := s.Kubernetes
	if s.Nodectl != nil {
		want = s.Nodectl
	}
	switch different := difference(s.Kubernetes, got); {
	case !s.isRecorded():
		problem = notCompared
	case different == "" && (s.Nodectl != nil || s.Reason != ""):
		problem = "nodectl's rounds are equal to the recorded ones: remove the sections nodectl and reason"
	case different != "" && s.Reason == "":
		problem = "it differs without a reason: " + different
	case difference(want, got) != "":
		problem = difference(want, got)
	}
	if write && s.isRecorded() {
		s.Nodectl = nil
		s.Set(sectionNodectl, "")
		if difference(s.Kubernetes, got) != "" {
			s.Nodectl = got
			s.Set(sectionNodectl, got.String())
		}
		err = s.Write()
	}
	return problem, err
}

// difference returns the first round that differs, "" for none.
func difference(want, got Rounds) string {
	for i := range max(len(want), len(got)) {
		at := func(r Rounds) string {
			if i < len(r) {
				return r[i]
			}
			return "no round"
		}
		if at(want) != at(got) {
			return fmt.Sprintf("round %d is %q, want %q", i+1, at(got), at(want))
		}
	}
	return ""
}
