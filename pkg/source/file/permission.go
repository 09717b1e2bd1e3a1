package file

import (
	"fmt"
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Permissions is what becomes of a manifest that others could have written: it,
// or the directory it lies in, is world-writable (a directory with the sticky
// bit is not) or owned by neither root nor one of Config.Owners. Of a symbolic
// link that is the link, the directory it lies in, and the same of what it leads
// to. Directories higher up and the group's rights are not judged.
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
	const sticky, others = 0o1000, 0o002
	switch {
	case st.kind == symlink: // its mode means nothing
	case st.mode&others == 0, st.kind == directory && st.mode&sticky != 0:
	default:
		return complaint{fmt.Sprintf("can be written by everybody (mode %04o)", st.mode), "chmod o-w " + path}
	}
	if st.uid == 0 || slices.Contains(cfg.Owners, int(st.uid)) {
		return complaint{}
	}
	switch st.kind {
	case symlink:
		return complaint{fmt.Sprintf("is a symbolic link of uid %d, neither root nor the caller", st.uid), "chown -h root " + path}
	default:
		return complaint{fmt.Sprintf("belongs to uid %d, neither root nor the caller", st.uid), "chown root " + path}
	}
}
