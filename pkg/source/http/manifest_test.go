package http

import (
	"bytes"
	"fmt"
	"log/slog"
	nethttp "net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/said"
)

// The parser and the memory that serve really has.

func realParse(data []byte, file string) (source.File, []pod.Problem) {
	return manifest.Parse(data, manifest.Options{Node: "n1", Source: "http", Location: file, File: file, Static: true})
}

func realistic(c *Config) { c.Parse = realParse }

// one returns the manifest of a pod.
func one(name, image string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: %s}]}\n", name, image)
}

func list(pods ...string) string {
	text := "apiVersion: v1\nkind: PodList\nitems:\n"
	for _, p := range pods {
		text += "- " + strings.ReplaceAll(strings.TrimSuffix(p, "\n"), "\n", "\n  ") + "\n"
	}
	return text
}

// memory is a podconfig layer that receives a source's yields.
type memory struct {
	*sourcetest.Listener
	layer podconfig.Layer
}

func remember(t *testing.T, s *site) *memory {
	t.Helper()
	src := s.source(t, realistic)
	return &memory{sourcetest.Listen(t, src), podconfig.NewLayer(src.Name(), nil)}
}

// stands receives the next yield and returns the set after it: "name=image".
func (m *memory) stands() []string {
	w := m.Next()
	if w.Err != nil {
		m.layer = m.layer.Failed(w.Err, time.Now())
	} else {
		m.layer = m.layer.Read(w.Snapshot, time.Now())
	}
	out := []string{}
	for p := range merge(m.layer).Pods.All() {
		out = append(out, p.Name+"="+p.Pod.Spec.Containers[0].Image)
	}
	slices.Sort(out)
	return out
}

func (m *memory) stand(t *testing.T, want ...string) {
	t.Helper()
	if got := m.stands(); !slices.Equal(got, append([]string{}, want...)) {
		t.Errorf("%q stand, want %q", got, want)
	}
}

// Shows: F64
func TestF64_OneBadPodDoesNotLoseTheOthers(t *testing.T) {
	for name, change := range map[string]func(b string) string{
		"invalid":       func(b string) string { return strings.Replace(b, "name: c,", "name: C_,", 1) },
		"a wrong type":  func(b string) string { return strings.Replace(b, "image: i:2", "image: [i]", 1) },
		"unknown field": func(b string) string { return strings.Replace(b, "image:", "imagee:", 1) },
		"another kind":  func(b string) string { return strings.Replace(b, "kind: Pod", "kind: Deployment", 1) },
		"no name":       func(b string) string { return strings.Replace(b, "{name: b}", "{}", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.says(list(one("a", "i:1"), one("b", "i:1"), one("c", "i:1")))
			m := remember(t, s)
			m.stand(t, "a-n1=i:1", "b-n1=i:1", "c-n1=i:1")
			s.says(list(one("a", "i:2"), change(one("b", "i:2")), one("d", "i:1")))
			// A list with a mistake lacks c: the source removes nothing.
			m.stand(t, "a-n1=i:2", "b-n1=i:1", "c-n1=i:1", "d-n1=i:1")
			if len(merge(m.layer).Problems) == 0 {
				t.Error("no problem is reported")
			}
			s.says(list(one("a", "i:2"), one("b", "i:2"), one("d", "i:1")))
			m.stand(t, "a-n1=i:2", "b-n1=i:2", "d-n1=i:1")
		})
	}
}

// Shows: F60
func TestF60_OnlyAnExplicitEmptyListIsNothing(t *testing.T) {
	s := newSite(t)
	s.says(one("a", "i:1"))
	m := remember(t, s)
	m.stand(t, "a-n1=i:1")
	for n, body := range []string{
		"", "\n \n", "# nothing\n", "---\n---\n", "null", "{}", "[]", "\"\"", "items: []", "<html>It works</html>", "\x00\x01",
		"kind: PodList\napiVersion: v1\nitems:", "kind: List\nitems: {}", "apiVersion: v1\nkind: Pod", strings.Repeat("[", 100_000),
	} {
		s.says(body)
		m.stand(t, "a-n1=i:1")
		if l := m.layer.State(); l.Error == "" && len(merge(m.layer).Problems) == 0 {
			t.Errorf("%.20q: no problem is reported", body)
		}
		s.says(one("a", "i:1") + strings.Repeat("#", n))
		m.stand(t, "a-n1=i:1")
	}
	for _, body := range []string{"apiVersion: v1\nkind: List\nitems: []\n", `{"apiVersion":"v1","kind":"PodList","items":[]}`} {
		s.says(body)
		m.stand(t)
		if state := merge(m.layer); len(state.Problems) > 0 || !state.Layers[0].LastGood.After(time.Time{}) {
			t.Errorf("%q: %+v", body, state)
		}
		s.says(one("a", fmt.Sprint("i:", len(body)))) // a version of its own: nothing here alternates
		m.stand(t, fmt.Sprint("a-n1=i:", len(body)))
	}
}

// Of a body the log contains only the names and field values that a user needs to repair it.
// It never contains a Secret's data, an environment or a whole line.
//
// Shows: F61
func TestF61_NoBodyIsLogged(t *testing.T) {
	const canary = "s3cr3t-4f1d"
	var log said.Log
	s := newSite(t)
	s.says(one("a", "i:1"))
	src := s.source(t, realistic, func(c *Config) {
		c.Header = nethttp.Header{"Authorization": {"Bearer " + canary}}
		c.Log = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug - 100}))
	})
	l := sourcetest.Listen(t, src)
	printed := map[string]string{"a good pod": fmt.Sprint(l.Set().Skipped)}
	for name, body := range map[string]string{
		"no YAML":        "password: [" + canary,
		"a scalar":       canary,
		"another thing":  "password: " + canary + "\n",
		"JSON cut off":   `{"apiVersion":"v1","kind":"Secret","stringData":{"password":"` + canary,
		"a tab":          "kind: Secret\n\tpassword: " + canary,
		"a bad Secret":   "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {password: " + canary + "}\n",
		"a Secret's map": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: [" + canary + "]\n",
		"a pod's env":    strings.Replace(one("a", "i:1"), "image: i:1", "image: i:1, env: [{name: P, value: {x: "+canary+"}}]", 1),
		"a bad name":     strings.Replace(one("a", "i:1"), "image: i:1", "image: i:1, env: [{name: P, value: "+canary+"}, {name: '', value: "+canary+"}]", 1),
	} {
		s.says(body)
		w := l.Next()
		printed[name] = fmt.Sprintln(w.Err)
		for f := range w.Files.All() {
			if len(f.Problems) == 0 && len(f.Objects) == 0 {
				t.Errorf("%s: neither a problem nor an object", name)
			}
			for _, p := range f.Problems {
				printed[name] += fmt.Sprintf("%+v\n", p)
			}
		}
	}
	l.Leave()
	l.Ended()
	printed["the log"] = log.String()
	for name, text := range printed {
		if at := strings.Index(text, canary); at >= 0 {
			t.Errorf("%s: the secret is shown: %s", name, text[max(0, at-200):at+len(canary)])
		}
	}
}

// The log has enough of a body to find it again.
//
// Shows: F61
func TestF61_DigestIsLogged(t *testing.T) {
	var log bytes.Buffer
	s := newSite(t)
	s.says("]garbage[")
	l := s.listen(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	l.Next()
	l.Leave()
	l.Ended()
	for _, want := range []string{"Read changed document", "bytes=9", "sha256=", "problems=1"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
}

func merge(l podconfig.Layer) *podconfig.Merged { return podconfig.Merge([]podconfig.Layer{l}) }
