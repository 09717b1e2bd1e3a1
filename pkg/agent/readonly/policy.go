package readonly

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
	"github.com/nodectl/nodectl/pkg/suggest"
	"github.com/nodectl/nodectl/pkg/trust"
)

// maxPolicySize is the maximal size of a policy in bytes.
const maxPolicySize = 1 << 20

// sourcePolicy reads --source-policy once; nil means that there is none. Any error ends the
// command: a node must not run without its configured policy.
func (c Config) sourcePolicy() (*policy.Policy, error) {
	path := c.SourcePolicy
	if path == "" {
		if c.PolicyGiven { // such as an unset variable of a script
			return nil, Fail(Usage, errors.New("--source-policy: the path is empty"), "leave the flag out to run without a policy")
		}
		return nil, nil
	}
	data, err := readPolicy(path, c.Owners)
	if err != nil {
		return nil, err
	}
	all, problems := policy.Parse(data, path, suggest.Similar)
	if len(problems) > 0 {
		return nil, &Error{Kind: Usage, Problems: problems}
	}
	return all, nil
}

// readPolicy reads the file of a policy. It returns an error if users other than root and owners
// could write or replace the file.
func readPolicy(path string, owners []int) ([]byte, error) {
	wrong := func(err error, hint string) error {
		if at, ok := errors.AsType[*fs.PathError](err); ok { // omit the operation
			err = fmt.Errorf("%s: %w", path, at.Err)
		}
		return Fail(Usage, fmt.Errorf("--source-policy: %w", err), hint)
	}
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, wrong(err, "without its policy nothing runs: write it, or leave out --source-policy")
	case err != nil:
		return nil, wrong(fmt.Errorf("%s: %w", path, err), AsRoot(err))
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(real)} {
		st, err := os.Stat(dir)
		if err != nil {
			return nil, wrong(err, AsRoot(err))
		}
		if what, fix := writers(st, owners); what != "" {
			return nil, wrong(fmt.Errorf("%s lies in %s, which %s", path, dir, what), fix+" "+dir)
		}
	}
	switch p, err := trust.ParentPath(path, owners); {
	case err != nil:
		return nil, wrong(err, AsRoot(err))
	case p != nil:
		return nil, wrong(fmt.Errorf("%s lies in %s, which %s", path, p.Path, p.What), p.Fix)
	}
	if st, err := os.Stat(real); err == nil && !st.Mode().IsRegular() { // opening a pipe would block
		return nil, wrong(fmt.Errorf("%s is not a regular file", path), "")
	}
	f, err := os.Open(real)
	if err != nil {
		return nil, wrong(err, AsRoot(err))
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

// Rules are the source policy of a node; the zero Rules allow everything.
type Rules struct{ policy *policy.Policy }

// underPolicy returns the sources with the policy applied, or unchanged without a policy.
func (r Rules) underPolicy(all []source.Source) []source.Source {
	if r.policy == nil {
		return all
	}
	for i, s := range all {
		kind, location, _ := strings.Cut(s.Name(), ":")
		all[i] = policy.Source(s, r.policy, kind, policyLocation(kind, location))
	}
	return all
}

// withoutForbidden returns last good sets without the config objects and workloads that the policy
// forbids: the policy may be newer than the sets. Otherwise such an object would stay while its source
// does not answer. A config object would then hide the allowed object of a later source, and a
// workload would have pods. A forbidden pod stays in the set, because it may run: see Forbids. The
// pods of a forbidden workload stay, too, and the set has the workload in Forbidden.
func (r Rules) withoutForbidden(sets map[string]podconfig.Restored) map[string]podconfig.Restored {
	if r.policy == nil {
		return sets
	}
	out := make(map[string]podconfig.Restored, len(sets))
	for layer, set := range sets {
		set.Files = slices.Clone(set.Files)
		for i := range set.Files {
			f := &set.Files[i]
			f.Objects = slices.DeleteFunc(slices.Clone(f.Objects), func(o *pod.Object) bool {
				if len(r.policy.CheckObject(o, policyLocation(o.Origin.Source, o.Origin.Location))) == 0 {
					return false
				}
				if pod.IsWorkload(o.Kind) {
					set.Forbidden = append(set.Forbidden, o)
				}
				return true
			})
		}
		out[layer] = set
	}
	return out
}

// policyLocation returns the location of a source in the form of policies: with an absolute path.
func policyLocation(kind, location string) string {
	if kind == "file" || kind == pod.SourceAPI {
		if abs, err := filepath.Abs(location); err == nil {
			return abs
		}
	}
	return location
}

// Forbids returns the reason why no container of a pod may start, or "". It also validates the pod:
// the policy may be newer than the pod's record, and an earlier agent may have written the record
// without validation.
func (r Rules) Forbids(want *pod.Spec) string {
	problems := append(pod.IdentityProblems(want.Pod), pod.StructureProblems(&want.Pod.Spec)...)
	if r.policy != nil {
		problems = append(problems, r.policy.Check(want, policyLocation(want.Origin.Source, want.Origin.Location))...)
	}
	return firstProblem(problems)
}

// ForbidsWorkload returns the reason why the policy forbids a workload, or "". The workload may differ
// from its source by a command or an override.
func (r Rules) ForbidsWorkload(o *pod.Object) string {
	if r.policy == nil {
		return ""
	}
	return firstProblem(r.policy.CheckObject(o, policyLocation(o.Origin.Source, o.Origin.Location)))
}

// Allows returns an error if a volume of a pod must not mount a path of this node. followed
// means that the links of the path are resolved.
func (r Rules) Allows(want *pod.Spec, volume string, at *v1.HostPathVolumeSource, followed bool) error {
	if r.policy == nil {
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
	if why := firstProblem(r.policy.CheckPath(want, policyLocation(want.Origin.Source, want.Origin.Location), volume, at, follow)); why != "" {
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

// Visible returns a function that decides which config objects a pod may use: objects of its own
// source kind, and objects that the policy adds.
func (r Rules) Visible() podconfig.Visible {
	if r.policy == nil {
		return nil
	}
	return r.policy.Visible
}
