package cmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/policy"
	"github.com/nodectl/nodectl/pkg/source"
)

// maxPolicySize is how large a policy may be, in bytes.
const maxPolicySize = 1 << 20

// sourcePolicy reads --source-policy, nil where there is none. It is read once, and
// whatever is wrong with it is the end: a node that is to have a policy never runs
// without.
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

// readPolicy reads the file of a policy, which nobody but root and owners may be
// able to write or to replace.
func readPolicy(path string, owners []int) ([]byte, error) {
	wrong := func(err error, hint string) error {
		if at, ok := errors.AsType[*fs.PathError](err); ok { // not what was done to it on the way
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
	if st, err := os.Stat(real); err == nil && !st.Mode().IsRegular() { // a pipe would be waited for
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

// held returns sources that are held to a policy, the sources themselves without
// one.
func held(all []source.Source, to *policy.Policy) []source.Source {
	if to == nil {
		return all
	}
	for i, s := range all {
		kind, location, _ := strings.Cut(s.Name(), ":")
		if kind == "file" || kind == "api" {
			if abs, err := filepath.Abs(location); err == nil {
				location = abs
			}
		}
		all[i] = policy.Source(s, to, kind, location)
	}
	return all
}

// visible returns whose config objects pods may name: those of their own source
// kind, and what a policy adds.
func visible(to *policy.Policy) podconfig.Visible {
	if to == nil {
		return nil
	}
	return to.Visible
}
