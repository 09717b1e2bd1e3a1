package file

import (
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/trust"
)

// Permissions is what becomes of a manifest that others could have written: it, or a
// directory above it, can be written by everybody or by a group that is not root's (a
// directory with the sticky bit cannot), or is owned by neither root nor one of
// Config.Owners. Of a symbolic link that is the link, the directories above it, and the
// same of what it leads to. See package trust.
//
// Where the system does not tell who may write, outside Linux, Refuse refuses
// everything and Say says nothing.
type Permissions int

const (
	// Refuse does not read it: a bad file, or one in a bad directory below Path,
	// is a problem of that file and its last good pods stay; of a bad directory
	// at Path nothing is believed at all. It is the zero value.
	Refuse Permissions = iota
	// Say reads it and says so in Snapshot.Skipped.
	Say
	// Ignore reads it.
	Ignore
)

// lifted names the way around Refuse.
const lifted = "--insecure-manifest-permissions lifts this"

// complaint is what is wrong with who may write; the zero complaint is nothing.
type complaint struct {
	what string // a predicate: "can be written by everybody"
	fix  string // a command line
}

func (c complaint) none() bool { return c == complaint{} }

// at returns the problem of file that c is under p.
func (c complaint) at(file string, p Permissions) pod.Problem {
	if p == Say {
		return pod.Problem{File: file, Msg: c.what + "; serve refuses it", Hint: c.fix}
	}
	return pod.Problem{File: file, Msg: c.what, Hint: c.fix + "; " + lifted}
}

// err returns what c is to the whole source.
func (c complaint) err() error {
	return &lookError{c.what + " (" + c.fix + "; " + lifted + ")", nil}
}

// of makes a complaint about the directory path one about a file in it.
func (c complaint) of(path string) complaint {
	if c.none() {
		return c
	}
	return complaint{"lies in " + path + ", which " + c.what, c.fix}
}

// judge says what is wrong with who may write to what st describes. path is for
// the text only: st is what was opened.
func (cfg *Config) judge(path string, st *state) complaint {
	if cfg.Permissions == Ignore || !tellsWriters {
		return complaint{}
	}
	p := trust.Judge(path, trust.Entry{Mode: st.mode, UID: st.uid, GID: st.gid, Dir: st.kind == directory, Link: st.kind == symlink, FD: st.fd}, cfg.Owners)
	if p == nil {
		return complaint{}
	}
	return complaint{p.What, p.Fix}
}

// judgeWay is judge, of a directory with those above it and the links on the way to it.
func (cfg *Config) judgeWay(path string, st *state) complaint {
	c := cfg.judge(path, st)
	if !c.none() || st.kind != directory || cfg.Permissions == Ignore || !tellsWriters {
		return c
	}
	switch p, err := trust.Above(path, cfg.Owners); {
	case err != nil:
		return complaint{"lies where it cannot be told who may write: " + reason(err), "ls -ld " + path}
	case p != nil:
		return complaint{p.What, p.Fix}.of(p.Path)
	}
	return complaint{}
}
