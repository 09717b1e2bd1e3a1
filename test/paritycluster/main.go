// Command paritycluster gives the same pods once to a cluster whose node is the real kubelet and
// once to one whose node is nodectl. It records the objects at the API server, and compares: the
// sequence of each pod's statuses, how many patches they took, events, the node and its lease, and
// the answers of the node's own server. It writes docs/fidelity-cluster.md.
//
// Each recording has its own control plane, containerd and agent, from package stage; it
// observes everything through the API server. Recordings are kept in testdata for a test.
//
// The run fails unless a person has explained every difference in explained.yaml, and every
// explanation there explains one.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"

	"github.com/nodectl/nodectl/test/compare"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// options are the command's flags.
type options struct {
	compare.Options
	write bool
}

func main() { program.Main(parse, run) }

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("paritycluster", flag.ContinueOnError)
	f.BoolVar(&o.write, "write", false, "write testdata and docs/fidelity-cluster.md")
	if err := o.Parse(f, args); err != nil {
		return o, err
	}
	if o.write && !o.Whole() {
		return o, errors.New("--write: what is written is of all cases")
	}
	return o, nil
}

// here is this package's directory.
func here(name ...string) string {
	return filepath.Join(append([]string{node.Repo(), "test/paritycluster"}, name...)...)
}

func run(ctx context.Context, o *options) (fine bool, err error) {
	kubelet, nodectl, err := compare.Record(&o.Options, func(arm, _ string) (*Raw, error) { return record(ctx, o, arm) })
	if kubelet == nil || err != nil {
		return err == nil, err
	}
	explanations, err := compare.Read(here("explained.yaml"))
	if err != nil {
		return false, err
	}
	t := newTable(normalise(kubelet), normalise(nodectl), explanations)
	if o.write {
		if err := errors.Join(report.WriteJSON(here("testdata/kubelet.json"), t.kubelet), report.WriteJSON(here("testdata/nodectl.json"), t.nodectl),
			os.WriteFile(filepath.Join(node.Repo(), document), []byte(t.markdown()), 0o644)); err != nil {
			return false, err
		}
	}
	return t.Print(os.Stdout, &o.Options), nil
}

// document is the text for readers.
const document = "docs/fidelity-cluster.md"
