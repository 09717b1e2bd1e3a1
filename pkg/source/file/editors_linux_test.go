package file_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

// Shows: F44
func TestF44_EditorsAndCopiers(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, path, text string) { must(t, os.WriteFile(path, []byte(text), 0o600)) }
	cases := map[string]func(t *testing.T, p place, text string){
		"vim": func(t *testing.T, p place, text string) {
			write(t, p.path(".web.yaml.swp"), "swap")
			write(t, p.path("4913"), "")
			p.remove("4913")
			p.move(p.path("web.yaml"), p.path("web.yaml~"))
			write(t, p.path("web.yaml"), text)
			p.remove("web.yaml~")
			p.remove(".web.yaml.swp")
		},
		"emacs": func(t *testing.T, p place, text string) {
			must(t, os.Symlink("user@host.1:1", p.path(".#web.yaml")))
			write(t, p.path("#web.yaml#"), text)
			must(t, os.Link(p.path("web.yaml"), p.path("web.yaml~")))
			write(t, p.path("web.yaml"), text)
			p.remove("#web.yaml#")
			p.remove(".#web.yaml")
		},
		"sed -i": func(t *testing.T, p place, text string) {
			write(t, p.path("sedA1b2C3"), text)
			p.move(p.path("sedA1b2C3"), p.path("web.yaml"))
		},
		"rsync": func(t *testing.T, p place, text string) {
			write(t, p.path(".web.yaml.Ab12Cd"), text)
			must(t, os.Chtimes(p.path(".web.yaml.Ab12Cd"), time.Now(), time.Now().Add(-24*time.Hour)))
			p.move(p.path(".web.yaml.Ab12Cd"), p.path("web.yaml"))
		},
		"vim, backupcopy": func(t *testing.T, p place, text string) {
			write(t, p.path("web.yaml~"), "pod one x")
			write(t, p.path("web.yaml"), text)
			p.remove("web.yaml~")
		},
		"nano": func(t *testing.T, p place, text string) {
			write(t, p.path(".web.yaml.swp"), "lock")
			write(t, p.path("web.yaml"), text)
			p.remove(".web.yaml.swp")
		},
		"an IDE's safe write": func(t *testing.T, p place, text string) {
			write(t, p.path("web.yaml___jb_tmp___"), text)
			p.move(p.path("web.yaml"), p.path("web.yaml___jb_old___"))
			p.move(p.path("web.yaml___jb_tmp___"), p.path("web.yaml"))
			p.remove("web.yaml___jb_old___")
		},
		"rsync --inplace": func(t *testing.T, p place, text string) {
			f, err := os.OpenFile(p.path("web.yaml"), os.O_RDWR, 0)
			must(t, err)
			_, err = f.WriteAt([]byte(text), 0)
			must(t, err)
			must(t, f.Truncate(int64(len(text))))
			must(t, f.Close())
		},
		"rsync --delay-updates": func(t *testing.T, p place, text string) {
			must(t, os.Mkdir(p.path(".~tmp~"), 0o700))
			write(t, p.path(".~tmp~/web.yaml"), text)
			p.move(p.path(".~tmp~/web.yaml"), p.path("web.yaml"))
			must(t, os.Remove(p.path(".~tmp~")))
		},
		"mv from elsewhere": func(t *testing.T, p place, text string) {
			write(t, p.dir+".next", text)
			p.move(p.dir+".next", p.path("web.yaml"))
		},
		"install": func(t *testing.T, p place, text string) {
			p.remove("web.yaml")
			write(t, p.path("web.yaml"), text)
			must(t, os.Chmod(p.path("web.yaml"), 0o644))
		},
		"cp":  func(t *testing.T, p place, text string) { write(t, p.path("web.yaml"), text) },
		"git": func(t *testing.T, p place, text string) { p.remove("web.yaml"); write(t, p.path("web.yaml"), text) },
		"ln -sf": func(t *testing.T, p place, text string) {
			write(t, p.dir+".target", text)
			p.remove("web.yaml")
			must(t, os.Symlink(p.dir+".target", p.path("web.yaml")))
		},
	}
	for name, save := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.put("other.yaml", "pod two x")
			p.put("web.yaml", "pod one x")
			l := p.patient()
			first := l.Set()
			save(t, p, "pod one y")
			w := l.Set() // the next set: none without the pod came in between
			w.Holds(t, "one", "two")
			w.Names(t, "one")
			if w.Pod("one").Hash == first.Pod("one").Hash {
				t.Error("the pod is as it was")
			}
		})
	}
}

// Renaming a manifest shows its pods under the new name at once, and never
// under both.
//
// Shows: F44
func TestF44_RenamedManifestIsOneSet(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("a.yaml", "pod one x")
	l := p.listen()
	l.Set()
	for _, name := range []string{"b.yaml", "0.yaml"} {
		old, err := filepath.Glob(p.path("*.yaml"))
		must(t, err)
		p.move(old[0], p.path(name))
		w := l.Set()
		w.Holds(t, "one")
		w.Names(t, "one")
		if got := w.Files.At(0).File; got != p.path(name) {
			t.Errorf("the pod is in %s", got)
		}
	}
	p.move(p.path("0.yaml"), p.path("0.yaml.bak"))
	l.Set().Holds(t)
}

// A single file that is a link into a mounted ConfigMap follows its swaps.
//
// Shows: F44
func TestF44_SingleFileOfAMountedConfigMap(t *testing.T) {
	t.Parallel()
	m := &configMap{place: newPlace(t), files: map[string]string{"web.yaml": "pod one x"}}
	m.publish()
	single := place{t, m.path("web.yaml")}
	l := single.listen()
	l.Set()
	m.files["web.yaml"] = "pod one y"
	m.publish()
	w := l.Set()
	w.Holds(t, "one")
	w.Names(t, "one")
}

// The kubelet removes the link of a removed key after the swap; until then it is
// dangling, which is not reported.
//
// Shows: F44
func TestF44_KeyRemovedFromAMountedConfigMap(t *testing.T) {
	t.Parallel()
	m := &configMap{place: newPlace(t), files: map[string]string{"a.yaml": "pod one x", "b.yaml": "pod two x"}, late: true}
	m.publish()
	l := sourcetest.Listen(t, m.source().Hold(0, 5*time.Second))
	l.Set().Holds(t, "one", "two")
	delete(m.files, "b.yaml")
	m.files["a.yaml"] = "pod one y"
	m.publish()
	w := l.Set()
	w.Holds(t, "one", "two")
	w.Names(t, "one")
	m.tidy()
	l.Set().Holds(t, "one")
}

// vim moves a single file aside, too.
//
// Shows: F44
func TestF44_SingleFileSavedByVim(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.dir = p.path("web.yaml")
	p.put("", "pod one x")
	l := p.patient()
	l.Set()
	for _, content := range []string{"y", "z"} {
		p.move(p.dir, p.dir+"~")
		must(t, os.WriteFile(p.dir, []byte("pod one "+content), 0o600))
		p.remove("../web.yaml~")
		w := l.Set()
		w.Holds(t, "one")
		w.Names(t, "one")
	}
}
