package file_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/source/file"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// place is a directory of manifests and ways to change it.
type place struct {
	t   testing.TB
	dir string
}

func newPlace(t testing.TB) place {
	t.Helper()
	p := place{t, filepath.Join(t.TempDir(), "manifests")}
	must(t, os.Mkdir(p.dir, 0o700))
	return p
}

func (p place) path(name string) string { return filepath.Join(p.dir, name) }

// put renames a finished file into place, from a name that the source ignores.
func (p place) put(name, text string) {
	p.t.Helper()
	temp := filepath.Join(filepath.Dir(p.path(name)), "..put")
	must(p.t, os.WriteFile(temp, []byte(text), 0o600))
	must(p.t, os.Rename(temp, p.path(name)))
}

// rewrite opens the existing file and writes it again.
func (p place) rewrite(name, text string) {
	p.t.Helper()
	must(p.t, os.WriteFile(p.path(name), []byte(text), 0o600))
}

func (p place) remove(name string) {
	p.t.Helper()
	must(p.t, os.Remove(p.path(name)))
}

func (p place) move(from, to string) {
	p.t.Helper()
	must(p.t, os.Rename(from, to))
}

func (p place) source(change ...func(*file.Config)) *file.Source {
	c := file.Config{Path: p.dir, CheckFrequency: time.Hour, Owners: []int{os.Getuid()}, Parse: sourcetest.Parse("file", p.dir)}
	for _, f := range change {
		f(&c)
	}
	return file.New(c)
}

func (p place) listen(change ...func(*file.Config)) *sourcetest.Listener {
	return sourcetest.Listen(p.t, p.source(change...))
}

// patient is listen with a source that accepts no bad reading for a while: the steps of
// a test count as one change.
func (p place) patient() *sourcetest.Listener {
	return sourcetest.Listen(p.t, p.source().Hold(5*time.Second, 5*time.Second))
}

// hasty makes a source accept bad readings soon, for tests that wait for them often.
func hasty(s *file.Source) *file.Source { return s.Hold(20*time.Millisecond, 20*time.Millisecond) }

func TestDirectoryConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		p := newPlace(t)
		return sourcetest.Fixture{
			Source: p.source(),
			Put:    func(name, text string) { p.put(name+".yaml", text) },
			Remove: func(name string) { p.remove(name + ".yaml") },
			Break:  func() { p.move(p.dir, p.dir+".away") },
			Mend:   func() { p.move(p.dir+".away", p.dir) },
		}
	})
}

func TestDirectoryRewrittenInPlaceConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		p := newPlace(t)
		return sourcetest.Fixture{
			Source: hasty(p.source()),
			Put:    func(name, text string) { p.rewrite(name+".yml", text) },
			Remove: func(name string) { p.remove(name + ".yml") },
			Break:  func() { p.move(p.dir, p.dir+".away") },
			Mend:   func() { p.move(p.dir+".away", p.dir) },
		}
	})
}

func TestRecursiveDirectoryConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		p := newPlace(t)
		return sourcetest.Fixture{
			Source: hasty(p.source(func(c *file.Config) { c.Recursive = true })),
			Put: func(name, text string) {
				must(t, os.MkdirAll(p.path("deep/"+name), 0o700))
				p.put("deep/"+name+"/pod.json", text)
			},
			Remove: func(name string) { must(t, os.RemoveAll(p.path("deep/"+name))) },
			Break:  func() { p.move(p.dir, p.dir+".away") },
			Mend:   func() { p.move(p.dir+".away", p.dir) },
		}
	})
}

func TestSingleFileConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		p := newPlace(t)
		p.dir = p.path("pods.conf") // read whatever its extension
		doc := sourcetest.Document{}
		write := func() {
			must(t, os.WriteFile(p.dir+".new", []byte(doc.Text()), 0o600))
			p.move(p.dir+".new", p.dir)
		}
		write()
		return sourcetest.Fixture{
			Source: hasty(p.source()),
			Put:    func(name, text string) { doc[name] = text; write() },
			Remove: func(name string) { delete(doc, name); write() },
			Break:  func() { p.move(p.dir, p.dir+".away") },
			Mend:   func() { p.move(p.dir+".away", p.dir) },
		}
	})
}

func TestSymlinkedDirectoryConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		real := newPlace(t)
		p := place{t, real.dir + ".link"}
		must(t, os.Symlink("manifests", p.dir))
		return sourcetest.Fixture{
			Source: hasty(p.source()),
			Put:    func(name, text string) { p.put(name+".yaml", text) },
			Remove: func(name string) { p.remove(name + ".yaml") },
			Break:  func() { p.remove("") },
			Mend:   func() { must(t, os.Symlink("manifests", p.dir)) },
		}
	})
}

// A mounted ConfigMap: every file is a link through ..data, which is swapped.
//
// Shows: F44
func TestF44_MountedConfigMapConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		p := newPlace(t)
		m := &configMap{place: p, files: map[string]string{}}
		m.publish()
		return sourcetest.Fixture{
			Source: hasty(p.source()),
			Put:    func(name, text string) { m.files[name+".yaml"] = text; m.publish() },
			Remove: func(name string) { delete(m.files, name+".yaml"); m.publish() },
			Break:  func() { p.move(p.dir, p.dir+".away") },
			Mend:   func() { p.move(p.dir+".away", p.dir) },
		}
	})
}
