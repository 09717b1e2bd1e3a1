package file

import (
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/trust"
)

// Permissions says how to treat a manifest that other users than root and Config.Owners could have
// written. They could if they own the manifest or a directory above it, or may write one of these. In a
// directory with the sticky bit they cannot replace a file of root or an owner. The rule also applies to
// a symbolic link on the path, the directories above it, and its target. Package trust has the exact
// rules.
//
// On systems other than Linux the permissions are not known: Refuse refuses every manifest, and
// Warn reports none.
type Permissions int

const (
	// Refuse does not read such a manifest. It becomes a problem of its file, and its last
	// good pods stay. This also applies to the files of a directory below Path that others can
	// write. If they can write a directory at Path or above it, the source yields an error.
	// Refuse is the zero value.
	Refuse Permissions = iota
	// Warn reads the manifest and reports it in Snapshot.Skipped.
	Warn
	// Ignore reads the manifest and reports nothing.
	Ignore
)

// insecureHint names the flag that disables Refuse.
const insecureHint = "--insecure-manifest-permissions turns this check off"

// violation is a problem of the permissions of a path; the zero violation is none.
type violation struct {
	text string // a predicate, such as "can be written by all users"
	fix  string // a command that removes the violation
}

func (c violation) none() bool { return c == violation{} }

// at returns c as a problem of file; p is Refuse or Warn.
func (c violation) at(file string, p Permissions) pod.Problem {
	if p == Warn {
		return pod.Problem{File: file, Msg: c.text + "; serve refuses it", Hint: c.fix}
	}
	return pod.Problem{File: file, Msg: c.text, Hint: c.fix + "; " + insecureHint}
}

// err returns c as an error of the whole source.
func (c violation) err() error {
	return &scanError{c.text + " (" + c.fix + "; " + insecureHint + ")", nil}
}

// of converts a violation of the directory path to one about a file in it.
func (c violation) of(path string) violation {
	if c.none() {
		return c
	}
	return violation{"lies in " + path + ", which " + c.text, c.fix}
}

// judge returns the violation of the permissions in st, the state of an open file. path is only for the
// text.
func (cfg *Config) judge(path string, st *state) violation {
	if cfg.Permissions == Ignore || !knowsWriters {
		return violation{}
	}
	p := trust.Check(path, trust.Entry{Mode: st.mode, UID: st.uid, GID: st.gid, Dir: st.kind == directory, Link: st.kind == symlink, FD: st.fd}, cfg.Owners)
	if p == nil {
		return violation{}
	}
	return violation{p.What, p.Fix}
}

// judgePath is judge for a directory, those above it and the links on the path to it.
func (cfg *Config) judgePath(path string, st *state) violation {
	c := cfg.judge(path, st)
	if !c.none() || st.kind != directory || cfg.Permissions == Ignore || !knowsWriters {
		return c
	}
	switch p, err := trust.ParentPath(path, cfg.Owners); {
	case err != nil:
		return violation{"is below directories whose permissions cannot be read: " + reason(err), "ls -ld " + path}
	case p != nil:
		return violation{p.What, p.Fix}.of(p.Path)
	}
	return violation{}
}
