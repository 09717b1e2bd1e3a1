package file_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/file"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

// otherUser is a user that is neither root nor the user of the tests.
const otherUser = 12345

// give makes the other user the owner of path, not following links.
func give(t *testing.T, path string) {
	t.Helper()
	if err := os.Lchown(path, otherUser, -1); err != nil {
		t.Fatalf("%v", err)
	}
}

// crew gives path to a group other than root's.
func crew(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	must(t, os.Lchown(path, -1, 23456))
	chmod(t, path, mode)
}

// asRoot skips a case where the kernel forbids it: only root can create a file of
// another user. CI runs as root and skips none; the cases about modes run for every
// user.
func asRoot(t *testing.T) bool {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("chown(2) to another user needs root; make test, as CI runs it, is root")
	}
	return true
}

// newGuarded is a place with one good manifest and room beside it.
func newGuarded(t *testing.T) place {
	t.Helper()
	p := newPlace(t)
	p.put("good.yaml", "pod good x")
	return p
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	must(t, os.Chmod(path, mode))
}

func recursive(c *file.Config) { c.Recursive = true }

func TestPermissionsZeroRefuses(t *testing.T) {
	t.Parallel()
	var c file.Config
	if c.Permissions != file.Refuse {
		t.Errorf("the zero Permissions is %v", c.Permissions)
	}
}

// The permissions that make one file a problem, and do not affect the others.
func TestPermissionsOfFilesAreRefused(t *testing.T) {
	t.Parallel()
	const root = "; --insecure-manifest-permissions turns this check off"
	cases := map[string]struct {
		as0  bool // needs files of others
		make func(t *testing.T, p place)
		want string // problem and hint, with P for the place and Q for the directory beside it
	}{
		"world-writable": {false, func(t *testing.T, p place) {
			p.put("odd.yaml", "pod odd x")
			chmod(t, p.path("odd.yaml"), 0o646)
		}, "can be written by all users (mode 0646) (chmod o-w P/odd.yaml" + root + ")"},
		"of a group": {true, func(t *testing.T, p place) {
			p.put("odd.yaml", "pod odd x")
			crew(t, p.path("odd.yaml"), 0o664)
		}, "can be written by group 23456 (mode 0664) (chmod g-w P/odd.yaml" + root + ")"},
		"a link below a directory of a group": {true, func(t *testing.T, p place) {
			p.beside("q", 0o750, "pod odd x", 0o600)
			must(t, os.Mkdir(filepath.Dir(p.dir)+"/above", 0o700))
			must(t, os.Rename(filepath.Dir(p.dir)+"/q", filepath.Dir(p.dir)+"/above/q"))
			crew(t, filepath.Dir(p.dir)+"/above", 0o770)
			must(t, os.Symlink("../above/q/real", p.path("odd.yaml")))
		}, "lies in Q/above/q, which lies in Q/above, which can be written by group 23456 (mode 0770) (chmod g-w Q/above" + root + ")"},
		"of another user": {true, func(t *testing.T, p place) {
			p.put("odd.yaml", "pod odd x")
			give(t, p.path("odd.yaml"))
		}, "belongs to uid 12345, neither root nor the caller (chown root P/odd.yaml" + root + ")"},
		"a link to a world-writable file": {false, func(t *testing.T, p place) {
			place{t, p.dir}.beside("q", 0o700, "pod odd x", 0o666)
			must(t, os.Symlink("../q/real", p.path("odd.yaml")))
		}, "leads to Q/q/real, which can be written by all users (mode 0666) (chmod o-w Q/q/real" + root + ")"},
		"a link into a world-writable directory": {false, func(t *testing.T, p place) {
			p.beside("q", 0o777, "pod odd x", 0o600)
			must(t, os.Symlink(filepath.Join(filepath.Dir(p.dir), "q/real"), p.path("odd.yaml")))
		}, "lies in Q/q, which can be written by all users (mode 0777) (chmod o-w Q/q" + root + ")"},
		"links through a world-writable directory": {false, func(t *testing.T, p place) {
			p.beside("r", 0o700, "pod odd x", 0o600)
			p.beside("q", 0o777, "", 0o600)
			must(t, os.Symlink("../r/real", filepath.Dir(p.dir)+"/q/hop"))
			must(t, os.Symlink("../q/hop", p.path("odd.yaml")))
		}, "lies in Q/q, which can be written by all users (mode 0777) (chmod o-w Q/q" + root + ")"},
		"another user's link": {true, func(t *testing.T, p place) {
			must(t, os.Symlink("good.yaml", p.path("odd.yaml")))
			give(t, p.path("odd.yaml"))
		}, "is a symbolic link of uid 12345, neither root nor the caller (chown -h root P/odd.yaml" + root + ")"},
		"in a world-writable directory below": {false, func(t *testing.T, p place) {
			must(t, os.Mkdir(p.path("sub"), 0o700))
			p.put("sub/odd.yaml", "pod odd x")
			chmod(t, p.path("sub"), 0o777)
		}, "lies in P/sub, which can be written by all users (mode 0777) (chmod o-w P/sub" + root + ")"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.as0 && !asRoot(t) {
				return
			}
			p := newGuarded(t)
			c.make(t, p)
			w := p.listen(recursive).Set()
			w.Holds(t, "good", "!")
			for f := range w.Files.All() {
				if !f.Incomplete {
					continue
				}
				got := f.Problems[0].Msg + " (" + f.Problems[0].Hint + ")"
				got = strings.ReplaceAll(strings.ReplaceAll(got, p.dir, "P"), filepath.Dir(p.dir), "Q")
				if got != c.want {
					t.Errorf("problem\n%s\nwant\n%s", got, c.want)
				}
			}
			// Warn and Ignore both read it.
			w = p.listen(recursive, func(c *file.Config) { c.Permissions = file.Warn }).Set()
			if len(w.Contents()) != 2 || w.Contents()[0] == "!" || len(w.Skipped) != 1 || !strings.HasSuffix(w.Skipped[0].Msg, "; serve refuses it") {
				t.Errorf("Warn: %q, notices %v", w.Contents(), w.Skipped)
			}
			w = p.listen(recursive, func(c *file.Config) { c.Permissions = file.Ignore }).Set()
			if len(w.Contents()) != 2 || w.Contents()[0] == "!" || len(w.Skipped) != 0 {
				t.Errorf("Ignore: %q, notices %v", w.Contents(), w.Skipped)
			}
		})
	}
}

// beside makes a directory beside p that holds the file real.
func (p place) beside(name string, dirMode os.FileMode, text string, mode os.FileMode) {
	p.t.Helper()
	dir := filepath.Join(filepath.Dir(p.dir), name)
	must(p.t, os.Mkdir(dir, 0o700))
	must(p.t, os.WriteFile(filepath.Join(dir, "real"), []byte(text), 0o600))
	must(p.t, os.Chmod(filepath.Join(dir, "real"), mode))
	must(p.t, os.Chmod(dir, dirMode))
}

func TestPermissionsThatAreFine(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		as0  bool
		make func(t *testing.T, p place)
	}{
		"a sticky directory":      {false, func(t *testing.T, p place) { chmod(t, p.dir, 0o777|os.ModeSticky) }},
		"root's group may write":  {true, func(t *testing.T, p place) { chmod(t, p.path("good.yaml"), 0o660); chmod(t, p.dir, 0o770) }},
		"a sticky parent":         {false, func(t *testing.T, p place) { chmod(t, filepath.Dir(p.dir), 0o777|os.ModeSticky) }},
		"a group that may read":   {true, func(t *testing.T, p place) { crew(t, p.path("good.yaml"), 0o640); crew(t, p.dir, 0o750) }},
		"an owner who is trusted": {true, func(t *testing.T, p place) { give(t, p.path("good.yaml")); give(t, p.dir) }},
		"a skipped file":          {false, func(t *testing.T, p place) { p.put("notes.txt", "x"); chmod(t, p.path("notes.txt"), 0o666) }},
		"a link in a mounted ConfigMap": {false, func(t *testing.T, p place) {
			p.remove("good.yaml")
			(&configMap{place: p, files: map[string]string{"good.yaml": "pod good x"}}).publish()
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.as0 && !asRoot(t) {
				return
			}
			p := newGuarded(t)
			c.make(t, p)
			p.listen(func(c *file.Config) { c.Owners = append(c.Owners, otherUser) }).Set().Holds(t, "good")
		})
	}
}

// A bad directory is not trusted: its previous readings stay.
func TestPermissionsOfTheDirectoryAreAnError(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		as0       bool
		bad, mend func(t *testing.T, dir string)
		want      string
	}{
		"world-writable": {false, func(t *testing.T, dir string) { chmod(t, dir, 0o777) }, func(t *testing.T, dir string) { chmod(t, dir, 0o700) },
			"can be written by all users (mode 0777) (chmod o-w P; --insecure-manifest-permissions turns this check off)"},
		"of a group": {true, func(t *testing.T, dir string) { crew(t, dir, 0o770) }, func(t *testing.T, dir string) { chmod(t, dir, 0o750) },
			"can be written by group 23456 (mode 0770) (chmod g-w P; --insecure-manifest-permissions turns this check off)"},
		"of another user": {true, give, func(t *testing.T, dir string) { must(t, os.Chown(dir, os.Getuid(), -1)) },
			"belongs to uid 12345, neither root nor the caller (chown root P; --insecure-manifest-permissions turns this check off)"},
		"of another user, sticky": {true, func(t *testing.T, dir string) { give(t, dir); chmod(t, dir, 0o777|os.ModeSticky) },
			func(t *testing.T, dir string) { must(t, os.Chown(dir, os.Getuid(), -1)) },
			"belongs to uid 12345, neither root nor the caller (chown root P; --insecure-manifest-permissions turns this check off)"},
	}
	for name, c := range cases {
		for _, single := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				if c.as0 && !asRoot(t) {
					return
				}
				p := newGuarded(t)
				path, want := p.dir, c.want
				if single {
					path, want = p.path("good.yaml"), "lies in P, which "+c.want
				}
				at := func(c *file.Config) { c.Path = path }
				l := p.listen(at)
				first := l.Set()
				c.bad(t, p.dir)
				for _, listener := range []*sourcetest.Listener{l, p.listen(at)} {
					if got := strings.ReplaceAll(listener.Error().Error(), p.dir, "P"); got != want {
						t.Errorf("error\n%s\nwant\n%s", got, want)
					}
				}
				if !single {
					p.remove("good.yaml") // is not accepted
				}
				p.put("good.yaml", "pod good x")
				c.mend(t, p.dir)
				w := l.Set()
				w.Holds(t, "good")
				w.Names(t)
				if w.Pod("good") != first.Pod("good") {
					t.Error("the pod is another pointer")
				}
				// Warn reports the directory once, not every file.
				c.bad(t, p.dir)
				w = p.listen(at, func(c *file.Config) { c.Permissions = file.Warn }).Set()
				w.Holds(t, "good")
				if len(w.Skipped) != 1 || w.Skipped[0].File != p.dir {
					t.Errorf("notices: %v", w.Skipped)
				}
			})
		}
	}
}

// A user that may write above the directory can replace it: then it is not trusted. No
// event comes for a change up there; the rescan finds it.
//
// Shows: D1
func TestPermissions_AncestorOfOthers_IsAnError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		as0  bool
		bad  func(t *testing.T, dir string)
		want string
	}{
		"of a group":        {true, func(t *testing.T, dir string) { crew(t, dir, 0o770) }, "lies in Q, which can be written by group 23456 (mode 0770) (chmod g-w Q"},
		"for everybody":     {false, func(t *testing.T, dir string) { chmod(t, dir, 0o777) }, "lies in Q, which can be written by all users (mode 0777) (chmod o-w Q"},
		"of another user's": {true, give, "lies in Q, which belongs to uid 12345, neither root nor the caller (chown root Q"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.as0 && !asRoot(t) {
				return
			}
			p := newGuarded(t)
			above := filepath.Dir(p.dir)
			l := p.listen(func(c *file.Config) { c.CheckFrequency = 10 * time.Millisecond })
			first := l.Set()
			c.bad(t, above)
			if got := strings.ReplaceAll(l.Error().Error(), above, "Q"); !strings.HasPrefix(got, c.want) {
				t.Errorf("error\n%s\nwant\n%s", got, c.want)
			}
			must(t, os.Chown(above, os.Getuid(), os.Getgid()))
			chmod(t, above, 0o755)
			if w := l.Set(); w.Pod("good") != first.Pod("good") {
				t.Error("the pod is another pointer")
			}
		})
	}
}

// A file that turns bad keeps its pods, and one chmod repairs it; the notice of Warn
// comes and goes the same way.
//
// Shows: I9
func TestI9_PermissionsKeepTheLastGoodPods(t *testing.T) {
	t.Parallel()
	p := newGuarded(t)
	refuses := p.listen()
	says := p.listen(func(c *file.Config) { c.Permissions = file.Warn })
	first, firstSaid := refuses.Set(), says.Set()
	for range 2 {
		chmod(t, p.path("good.yaml"), 0o666)
		w := refuses.Set()
		w.Holds(t, "!")
		w.Names(t, "good") // the reading lacks it; podconfig keeps it
		if w = says.Set(); len(w.Skipped) != 1 || w.Pod("good") != firstSaid.Pod("good") {
			t.Errorf("Warn: %q, notices %v", w.Contents(), w.Skipped)
		}
		w.Names(t)
		chmod(t, p.path("good.yaml"), 0o644)
		w = refuses.Set()
		w.Holds(t, "good")
		if w.Pod("good") != first.Pod("good") {
			t.Error("the pod is another pointer")
		}
		if w = says.Set(); len(w.Skipped) != 0 || w.Pod("good") != firstSaid.Pod("good") {
			t.Errorf("Warn: %q, notices %v", w.Contents(), w.Skipped)
		}
	}
}

// In a bad directory below Path, and in those below it, the source does not even accept a
// removal. It judges the directories beside it separately.
//
// Shows: I9
func TestI9_PermissionsOfADirectoryBelowKeepItsFiles(t *testing.T) {
	t.Parallel()
	p := newGuarded(t)
	must(t, os.MkdirAll(p.path("sub/below"), 0o700))
	p.put("sub/a.yaml", "pod a x")
	p.put("sub/b.yaml", "pod b x")
	p.put("sub/below/c.yaml", "pod c x")
	l := p.listen(recursive)
	first := l.Set()
	first.Holds(t, "good", "a", "b", "c")
	chmod(t, p.path("sub"), 0o777)
	w := l.Set()
	w.Holds(t, "good", "!", "!", "!")
	p.remove("sub/a.yaml")
	p.put("sub/b.yaml", "pod evil x")
	p.put("sub/evil.yaml", "pod evil x")
	w = l.Set()
	w.Holds(t, "good", "!", "!", "!", "!")
	chmod(t, p.path("sub"), 0o700)
	for len(w.Contents()) != 4 || w.Pod("b") != nil || w.Pod("a") != nil {
		w = l.Set()
		if w.Pod("good") != first.Pod("good") || w.Pod("c") != first.Pod("c") {
			t.Fatal("a good pod is another pointer")
		}
	}
	w.Holds(t, "good", "evil", "evil", "c")
}

// No event says that the target directory of a link has become writable; the rescan
// finds it.
func TestPermissionsBehindLinksAreLookedAtAgain(t *testing.T) {
	t.Parallel()
	p := newGuarded(t)
	p.beside("q", 0o700, "pod linked x", 0o600)
	must(t, os.Symlink("../q/real", p.path("linked.yaml")))
	l := p.listen(func(c *file.Config) { c.CheckFrequency = 10 * time.Millisecond })
	first := l.Set()
	first.Holds(t, "good", "linked")
	chmod(t, filepath.Dir(p.dir)+"/q", 0o777)
	l.Set().Holds(t, "good", "!")
	chmod(t, filepath.Dir(p.dir)+"/q", 0o700)
	w := l.Set()
	w.Holds(t, "good", "linked")
	if w.Pod("linked") != first.Pod("linked") {
		t.Error("the pod is another pointer")
	}
}

// The source does not follow a directory below Path that becomes a link during the scan. The
// owner of a directory in a sticky one could point such a link anywhere.
func TestPermissionsBelowNoLinkIsFollowed(t *testing.T) {
	t.Parallel()
	p := newGuarded(t)
	must(t, os.Mkdir(p.path("sub"), 0o700))
	p.beside("elsewhere", 0o700, "pod odd x", 0o600)
	must(t, os.Rename(filepath.Join(filepath.Dir(p.dir), "elsewhere/real"), filepath.Join(filepath.Dir(p.dir), "elsewhere/odd.yaml")))
	swapped := false
	w := p.listen(recursive, func(c *file.Config) {
		parse := c.Parse
		c.Parse = func(data []byte, name string) (source.File, []pod.Problem) {
			if !swapped { // the directory was seen, and is not yet open
				swapped = true
				must(t, os.Remove(p.path("sub")))
				must(t, os.Symlink("../elsewhere", p.path("sub")))
			}
			return parse(data, name)
		}
	}).Set()
	w.Holds(t, "good")
}
