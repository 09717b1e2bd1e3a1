package file_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/file"
)

const realManifest = `apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  containers:
  - {name: c, image: "registry.example/café:1"}
`

// parsing makes a source read real manifests.
func (p place) parsing(c *file.Config) {
	c.Parse = func(data []byte, name string) (source.File, []pod.Problem) {
		return manifest.Parse(data, manifest.Options{Node: "n", Source: "file", Location: p.dir, File: name, Static: true})
	}
}

// Shows: F45
func TestF45_Encodings(t *testing.T) {
	t.Parallel()
	text := fmt.Sprintf(realManifest, "odd")
	for name, c := range map[string]struct{ text, want string }{
		"byte order mark": {"\xef\xbb\xbf" + text, "odd-n"},
		"CRLF":            {strings.ReplaceAll(text, "\n", "\r\n"), "odd-n"},
		"no UTF-8":        {strings.ReplaceAll(text, "é", "\xe9"), "!"},
		"NUL":             {text + "\x00", "!"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.put("good.yaml", fmt.Sprintf(realManifest, "good"))
			p.put("odd.yaml", c.text)
			w := p.listen(p.parsing).Set()
			w.Holds(t, "good-n", c.want)
		})
	}
}

// An alias bomb is a problem of its file; the others are still read, before and after
// it.
//
// Shows: F46
func TestF46_BombsAreProblemsOfTheirFiles(t *testing.T) {
	t.Parallel()
	aliases := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for n := range 9 {
		aliases += fmt.Sprintf("a%d: &a%d [%s]\n", n+1, n+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", n), 9), ","))
	}
	for name, text := range map[string]string{
		"aliases": aliases,
		"depth":   strings.Repeat("[", 100_000),
		"keys":    "k: 0\n" + manyKeys(1_000_000),
		"lists":   "a: " + strings.Repeat("{a: ", 5000) + strings.Repeat("}", 5000),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.put("good.yaml", fmt.Sprintf(realManifest, "good"))
			p.put("odd.yaml", fmt.Sprintf(realManifest, "odd"))
			l := p.listen(p.parsing)
			l.Set().Holds(t, "good-n", "odd-n")
			p.put("odd.yaml", text)
			l.Set().Holds(t, "good-n", "!")
			p.put("good.yaml", fmt.Sprintf(realManifest, "better"))
			l.Set().Holds(t, "better-n", "!")
			p.put("odd.yaml", fmt.Sprintf(realManifest, "odd"))
			l.Set().Holds(t, "better-n", "odd-n")
		})
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d:\n", i)
	}
	return b.String()
}

// A script deletes and writes one file as fast as it can. Every set has a written version of
// the pod, or lacks the pod. The last set has the last version.
//
// Shows: F49
func TestF49_FlippedFastEndsWithTheLastWord(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]time.Duration{"believed at once": 0, "believed after a while": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			latest := map[string]string{}
			s := p.source(func(c *file.Config) {
				parse := c.Parse
				c.Parse = func(data []byte, name string) (source.File, []pod.Problem) {
					f, notices := parse(data, name)
					for _, s := range f.Pods {
						latest[s.Name] = strings.Fields(string(data))[2]
					}
					return f, notices
				}
			}).Hold(hold, hold)
			p.put("web.yaml", "pod one first")
			words := make(chan source.Snapshot, 1) // the newest set; the test receives
			done := make(chan struct{})
			go func() {
				defer close(done)
				for set, err := range s.Sets(t.Context()) {
					if err != nil {
						t.Errorf("error %v", err)
					}
					if n := set.Files.Len(); n > 2 || (n > 0 && len(set.Files.At(n-1).Pods) > 1) {
						t.Errorf("%d files", n)
					}
					words <- set
					// The source yields a last set, which has the pod if it was written
					// last.
					if set.Files.Len() > 0 && set.Files.At(0).File == p.path("end.yaml") && (set.Files.Len() == 1) == (latest["end"] == "absent") {
						return
					}
				}
			}()
			go func() {
				<-done
				close(words)
			}()
			random := rand.New(rand.NewPCG(1, 2))
			last := ""
			for n := range 1000 {
				switch random.IntN(3) {
				case 0:
					if last != "absent" {
						p.remove("web.yaml")
					}
					last = "absent"
				case 1:
					last = fmt.Sprint("v", n)
					p.put("web.yaml", "pod one "+last)
				case 2:
					last = fmt.Sprint("v", n%3)
					p.rewrite("web.yaml", "pod one "+last)
				}
				select {
				case <-words:
				default:
				}
			}
			p.put("end.yaml", "pod end "+last)
			var final source.Snapshot
			for set := range words {
				final = set
			}
			pods := []string{}
			for f := range final.Files.All() {
				for _, s := range f.Pods {
					pods = append(pods, s.Name)
				}
			}
			want := []string{"end", "one"}
			if last == "absent" {
				want = want[:1]
			}
			if !slices.Equal(pods, want) || (last != "absent" && latest["one"] != last) {
				t.Errorf("the last set has %q as %q, want %q as %q", pods, latest["one"], want, last)
			}
		})
	}
}
