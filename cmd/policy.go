package cmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/policy"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/trust"
)

// maxPolicySize is the maximal size of a policy in bytes.
const maxPolicySize = 1 << 20

// sourcePolicy reads --source-policy once; nil means that there is none. Any error ends the
// command: a node with a configured policy never runs without it.
func (p *program) sourcePolicy() (*policy.Policy, error) {
	path := p.cfg.SourcePolicy
	if path == "" {
		if p.origins["source-policy"].Kind == "flag" { // a script's variable that is not set
			return nil, failed(exitUsage, errors.New("--source-policy: the path is empty"), "leave the flag out to run without a policy")
		}
		return nil, nil
	}
	data, err := readPolicy(path, trustedOwners(p.env))
	if err != nil {
		return nil, err
	}
	all, problems := policy.Parse(data, path, similar)
	for _, problem := range problems {
		p.say(p.err.Problem(problem))
	}
	if len(problems) > 0 {
		return nil, ended(exitUsage)
	}
	return all, nil
}

// readPolicy reads the file of a policy. It refuses a file that users other than root
// and owners could write or replace.
func readPolicy(path string, owners []int) ([]byte, error) {
	wrong := func(err error, hint string) error {
		if at, ok := errors.AsType[*fs.PathError](err); ok { // without the operation of package trust
			err = fmt.Errorf("%s: %w", path, at.Err)
		}
		return failed(exitUsage, fmt.Errorf("--source-policy: %w", err), hint)
	}
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, wrong(err, "without its policy nothing runs: write it, or leave out --source-policy")
	case err != nil:
		return nil, wrong(fmt.Errorf("%s: %w", path, err), asRoot(err))
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(real)} {
		st, err := os.Stat(dir)
		if err != nil {
			return nil, wrong(err, asRoot(err))
		}
		if what, fix := writers(st, owners); what != "" {
			return nil, wrong(fmt.Errorf("%s lies in %s, which %s", path, dir, what), fix+" "+dir)
		}
	}
	switch p, err := trust.Above(path, owners); {
	case err != nil:
		return nil, wrong(err, asRoot(err))
	case p != nil:
		return nil, wrong(fmt.Errorf("%s lies in %s, which %s", path, p.Path, p.What), p.Fix)
	}
	if st, err := os.Stat(real); err == nil && !st.Mode().IsRegular() { // opening a pipe would block
		return nil, wrong(fmt.Errorf("%s is not a regular file", path), "")
	}
	f, err := os.Open(real)
	if err != nil {
		return nil, wrong(err, asRoot(err))
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, wrong(err, "")
	}
	if what, fix := writers(st, owners); what != "" {
		return nil, wrong(fmt.Errorf("%s %s", path, what), fix+" "+real)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPolicySize+1))
	switch {
	case err != nil:
		return nil, wrong(err, "")
	case len(data) > maxPolicySize:
		return nil, wrong(fmt.Errorf("%s is larger than 1 MiB", path), "")
	}
	return data, nil
}

// held returns the sources with a policy applied, or unchanged without one.
func held(all []source.Source, to *policy.Policy) []source.Source {
	if to == nil {
		return all
	}
	for i, s := range all {
		kind, location, _ := strings.Cut(s.Name(), ":")
		all[i] = policy.Source(s, to, kind, judgedLocation(kind, location))
	}
	return all
}

// heldSets returns last good sets without the config objects that a policy forbids; the policy
// may be newer than the sets. Such an object would stay while its source is away or its file
// broken, and hide the allowed object of a later source. A forbidden pod stays in the set,
// because it may run: see forbids.
func heldSets(sets map[string]podconfig.Restored, to *policy.Policy) map[string]podconfig.Restored {
	if to == nil {
		return sets
	}
	out := make(map[string]podconfig.Restored, len(sets))
	for layer, set := range sets {
		set.Files = slices.Clone(set.Files)
		for i := range set.Files {
			f := &set.Files[i]
			f.Objects = slices.DeleteFunc(slices.Clone(f.Objects), func(o *pod.Object) bool {
				return len(to.JudgeObject(o, judgedLocation(o.Origin.Source, o.Origin.Location))) > 0
			})
		}
		out[layer] = set
	}
	return out
}

// judgedLocation returns the location of a source as policies name it: with an absolute path.
func judgedLocation(kind, location string) string {
	if kind == "file" || kind == pod.SourceAPI {
		if abs, err := filepath.Abs(location); err == nil {
			return abs
		}
	}
	return location
}

// forbids returns why no container of a pod may start, or "". The policy may be newer than
// the record of the pod, and the agent that wrote the record may not have validated it.
func (p *program) forbids(want *pod.Spec) string {
	problems := append(pod.IdentityProblems(want.Pod), pod.StructureProblems(&want.Pod.Spec)...)
	if p.policy != nil {
		problems = append(problems, p.policy.Judge(want, judgedLocation(want.Origin.Source, want.Origin.Location))...)
	}
	return firstProblem(problems)
}

// allows returns an error if a volume of a pod must not mount a path of this node; followed
// means that the links of the path are resolved.
func (p *program) allows(want *pod.Spec, volume string, at *v1.HostPathVolumeSource, followed bool) error {
	if p.policy == nil {
		return nil
	}
	var follow func(string) string
	if followed {
		follow = func(prefix string) string {
			if real, err := filepath.EvalSymlinks(prefix); err == nil {
				return real
			}
			return prefix
		}
	}
	if why := firstProblem(p.policy.JudgePath(want, judgedLocation(want.Origin.Source, want.Origin.Location), volume, at, follow)); why != "" {
		return errors.New(why)
	}
	return nil
}

// firstProblem returns the text of a pod's first problem, or "".
func firstProblem(problems []pod.Problem) string {
	if len(problems) == 0 {
		return ""
	}
	why := problems[0].Msg
	if problems[0].Path != "" {
		why = problems[0].Path + ": " + why
	}
	if rest := len(problems) - 1; rest > 0 {
		why += fmt.Sprintf(" (and %d more)", rest)
	}
	return why
}

// visible returns which config objects pods may use: those of their own source kind, and
// those that a policy adds.
func visible(to *policy.Policy) podconfig.Visible {
	if to == nil {
		return nil
	}
	return to.Visible
}
