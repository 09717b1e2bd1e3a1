package file

import (
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/trust"
)

// Permissions says how to treat a manifest that others could have written: it, or a
// directory above it, can be written by everybody or by a group that is not root's (a
// directory with the sticky bit cannot), or is owned by neither root nor one of
// Config.Owners. For a symbolic link this applies to the link, the directories above
// it, and its target. See package trust.
//
// Outside Linux, where the permissions are not known, Refuse refuses everything and Say
// reports nothing.
type Permissions int

const (
	// Refuse does not read it: a bad file, or one in a bad directory below Path, is a
	// problem of that file and its last good pods stay; a bad directory at Path is not
	// trusted at all. It is the zero value.
	Refuse Permissions = iota
	// Say reads it and reports it in Snapshot.Skipped.
	Say
	// Ignore reads it.
	Ignore
)

// insecureHint names the flag that disables Refuse.
const insecureHint = "--insecure-manifest-permissions turns this check off"

// violation is a problem of the permissions of a path; the zero violation is none.
type violation struct {
	text string // a predicate: "can be written by everybody"
	fix  string // a command line
}

func (c violation) none() bool { return c == violation{} }

// at returns the problem of file that c is under p.
func (c violation) at(file string, p Permissions) pod.Problem {
	if p == Say {
		return pod.Problem{File: file, Msg: c.text + "; serve refuses it", Hint: c.fix}
	}
	return pod.Problem{File: file, Msg: c.text, Hint: c.fix + "; " + insecureHint}
}

// err returns c as an error of the whole source.
func (c violation) err() error {
	return &lookError{c.text + " (" + c.fix + "; " + insecureHint + ")", nil}
}

// of converts a violation of the directory path to one about a file in it.
func (c violation) of(path string) violation {
	if c.none() {
		return c
	}
	return violation{"lies in " + path + ", which " + c.text, c.fix}
}

// judge returns the violation of the permissions in st. path is for the text only:
// st is of the opened file.
func (cfg *Config) judge(path string, st *state) violation {
	if cfg.Permissions == Ignore || !knowsWriters {
		return violation{}
	}
	p := trust.Judge(path, trust.Entry{Mode: st.mode, UID: st.uid, GID: st.gid, Dir: st.kind == directory, Link: st.kind == symlink, FD: st.fd}, cfg.Owners)
	if p == nil {
		return violation{}
	}
	return violation{p.What, p.Fix}
}

// judgeWay is judge for a directory, those above it and the links on the path to it.
func (cfg *Config) judgeWay(path string, st *state) violation {
	c := cfg.judge(path, st)
	if !c.none() || st.kind != directory || cfg.Permissions == Ignore || !knowsWriters {
		return c
	}
	switch p, err := trust.Above(path, cfg.Owners); {
	case err != nil:
		return violation{"is below directories whose permissions cannot be read: " + reason(err), "ls -ld " + path}
	case p != nil:
		return violation{p.What, p.Fix}.of(p.Path)
	}
	return violation{}
}
