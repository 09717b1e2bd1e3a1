package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/wait"
)

// sourceState is one source in get sources -o json.
type sourceState struct {
	Source, Location, State, Since, LastRead, Error string
	Pods                                            int
	Heard, Restored, Stale                          bool
	Problems, Skipped                               []problem
	Conflicts                                       []struct{ Winner, Loser struct{ File string } }
}

type problem struct {
	File, Path, Message string
	Line                int
}

// sources asks the running agent for its sources.
func (s *stage) sources() ([]sourceState, error) {
	s.Helper()
	var list struct {
		Kind  string
		Items []sourceState
	}
	if err := s.ask("/v1/sources", &list); err != nil {
		return nil, err
	}
	if list.Kind != "SourceList" {
		s.Fatalf("sources are printed as %q", list.Kind)
	}
	return list.Items, nil
}

// ask reads a document of the running agent, as nodectl's commands do.
func (s *stage) ask(path string, into any) error {
	ctx, cancel := context.WithTimeout(s.Context(), wait.Limit)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nodectl"+path, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(s.root, "nodectl.sock"))
	}}}
	answer, err := client.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// awaitSource returns the source of a kind, or at a location, as soon as ok
// accepts it.
func (s *stage) awaitSource(source, what string, ok func(sourceState) bool) sourceState {
	s.Helper()
	var found sourceState
	s.eventually(func() error {
		all, err := s.sources()
		if err != nil {
			return err
		}
		for _, it := range all {
			if it.Source != source && it.Location != source {
				continue
			}
			if found = it; ok(it) {
				return nil
			}
		}
		return fmt.Errorf("source %s: %s: is %+v", source, what, found)
	})
	return found
}

// awaitOK returns a source when it is read without errors and rejections.
func (s *stage) awaitOK(source string) sourceState {
	s.Helper()
	return s.awaitSource(source, "well", func(it sourceState) bool {
		return it.State == "ok" && it.Error == "" && it.Since == "" && len(it.Problems) == 0
	})
}

// awaitStale returns a source when it cannot be read and its pods are kept, with the reason,
// and since when.
func (s *stage) awaitStale(source string, pods int, begin time.Time, words ...string) sourceState {
	s.Helper()
	it := s.awaitSource(source, "stale: "+strings.Join(words, " … "), func(it sourceState) bool {
		return it.State == "stale" && it.Stale && holds(it.Error, words)
	})
	if it.Pods != pods {
		s.Errorf("source %s: %d pods stand, want %d", source, it.Pods, pods)
	}
	s.since(it, begin)
	return it
}

// since fails unless the source's state has a start time, after begin.
func (s *stage) since(it sourceState, begin time.Time) {
	s.Helper()
	since, err := time.Parse(time.RFC3339, it.Since)
	if err != nil || since.Before(begin.Truncate(time.Second)) || since.After(time.Now()) {
		s.Errorf("source %s is %s since %q, want a time after %s (%v)", it.Location, it.State, it.Since, begin.UTC().Format(time.RFC3339), err)
	}
}

// atClock returns a time of a document as tables show a time of today.
func atClock(rfc string) string {
	at, _ := time.Parse(time.RFC3339, rfc) // since has checked it
	return at.Local().Format(time.TimeOnly)
}

// awaitRejected returns the problem of a file as soon as its source reports it.
func (s *stage) awaitRejected(source, file string, words ...string) problem {
	s.Helper()
	var found problem
	s.awaitSource(source, "rejects "+file, func(it sourceState) bool {
		for _, p := range it.Problems {
			if strings.HasSuffix(p.File, file) && holds(p.Message, words) {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

// awaitLines returns when the agent has logged n lines that contain the words.
func (a *agent) awaitLines(n int, words ...string) {
	a.Helper()
	a.eventually(func() error {
		if found := a.linesWith(words...); len(found) < n {
			return fmt.Errorf("the agent said %s %d times, want %d", strings.Join(words, " … "), len(found), n)
		}
		return nil
	})
}

// inPlace overwrites a manifest, as careless programs do.
func (s *stage) inPlace(file, text string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.manifests, file), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

// scene runs a part of a scenario as a subtest, after all parts before it.
func (s *stage) scene(name string, f func()) {
	whole := s.T
	whole.Run(name, func(t *testing.T) {
		s.T = t
		defer func() { s.T = whole }()
		f()
	})
}

// must fails the scenario with the first error.
func (s *stage) must(errs ...error) {
	s.Helper()
	if err := errors.Join(errs...); err != nil {
		s.Fatal(err)
	}
}
