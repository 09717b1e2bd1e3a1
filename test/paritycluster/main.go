// Command paritycluster gives the same pods once to a cluster whose node is the real kubelet
// and once to one whose node is nodectl. It records what the API server shows, and compares:
// the sequence of each pod's statuses, how many patches they took, events, the node and its
// lease, and the answers of the node's own server. It writes docs/fidelity-cluster.md.
//
// Each recording has its own control plane, containerd and agent, from package stage; it
// observes everything through the API server. Recordings are kept in testdata for a test.
//
// The one rule: a person has explained every difference in explained.yaml, and every
// explanation there explains one, or the run fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/nodectl/nodectl/test/explained"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
)

// options are the command's flags.
type options struct {
	match    *regexp.Regexp
	arms     []string
	keep     string
	write    bool
	verbose  bool
	kubelet  string
	nodectl  string
	progress bool
}

func main() { program.Main(parse, run) }

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("paritycluster", flag.ContinueOnError)
	match := f.String("run", "", "the cases whose name matches; nothing is written then")
	arm := f.String("arm", "both", "kubelet, nodectl, both; or none, to compare what was recorded before")
	f.StringVar(&o.keep, "keep", filepath.Join(node.Repo(), "bin/paritycluster"), "directory for whole recordings and the agents' logs")
	f.BoolVar(&o.write, "write", false, "write testdata and docs/fidelity-cluster.md")
	f.BoolVar(&o.verbose, "v", false, "print explained differences too")
	f.BoolVar(&o.progress, "progress", false, "say when a case ends")
	f.StringVar(&o.kubelet, "kubelet", filepath.Join(node.Repo(), "bin/kubelet/kubelet"), "the kubelet")
	f.StringVar(&o.nodectl, "nodectl", "", "the nodectl (default: built from this tree)")
	if err := program.Flags(f, args); err != nil {
		return o, err
	}
	var err error
	if o.match, err = regexp.Compile(*match); err != nil {
		return o, fmt.Errorf("--run: %w", err)
	}
	if o.write && *match != "" {
		return o, errors.New("--write: what is written is of all cases")
	}
	arms := map[string][]string{"both": {"kubelet", "nodectl"}, "kubelet": {"kubelet"}, "nodectl": {"nodectl"}, "none": nil}
	var ok bool
	if o.arms, ok = arms[*arm]; !ok {
		return o, fmt.Errorf("--arm: %q is no arm", *arm)
	}
	return o, nil
}

// here is this package's directory.
func here(name ...string) string {
	return filepath.Join(append([]string{node.Repo(), "test/paritycluster"}, name...)...)
}

func run(ctx context.Context, o options) (fine bool, err error) {
	if err := os.MkdirAll(o.keep, 0o755); err != nil {
		return false, err
	}
	for _, arm := range o.arms {
		raw, err := record(ctx, o, arm)
		if err != nil {
			return false, fmt.Errorf("%s: %w", arm, err)
		}
		if err := writeJSON(filepath.Join(o.keep, arm+".json"), raw); err != nil {
			return false, err
		}
	}
	var both [2]*Recording
	for i, arm := range []string{"kubelet", "nodectl"} {
		var raw Raw
		err := readJSON(filepath.Join(o.keep, arm+".json"), &raw)
		if errors.Is(err, fs.ErrNotExist) && len(o.arms) == 1 {
			return true, nil // one arm alone, for now
		}
		if err != nil {
			return false, err
		}
		both[i] = normalise(&raw)
	}
	explanations, err := explained.Read(here("explained.yaml"))
	if err != nil {
		return false, err
	}
	r := newReport(both[0], both[1], explanations)
	r.print(os.Stdout, o.verbose)
	if o.write {
		for i, arm := range []string{"kubelet", "nodectl"} {
			if err := writeJSON(here("testdata", arm+".json"), both[i]); err != nil {
				return false, err
			}
		}
		if err := os.WriteFile(filepath.Join(node.Repo(), document), []byte(r.markdown()), 0o644); err != nil {
			return false, err
		}
	}
	if o.match.String() != "" {
		return r.unexplained() == 0, nil
	}
	return r.unexplained() == 0 && len(r.idle()) == 0, nil
}

// document is what is written for readers.
const document = "docs/fidelity-cluster.md"
