package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/report"
)

// measured is a report with failed requests of new connections, and a slowest rollback.
func measured(failed int, worst float64) *report.Report {
	r := &report.Report{Machine: map[string]string{}}
	for _, id := range section.Needs {
		m := r.Begin(id, fmt.Sprintf("measure %d", id), "how")
		m.Arm(failedKept).Value(0)
		m.Arm(failedFresh).Value(float64(failed))
		m.Arm(updateTook).Add(time.Second)
		m.Arm(slowest).Value(worst)
	}
	addFigures(r, 10*time.Second)
	return r
}

func TestFigures_FailedRequestOrLateRollback_MissTheLimit(t *testing.T) {
	for _, tt := range []struct {
		failed int
		worst  float64
		missed int
		row    string
	}{
		{0, 11, 0, "| measure 2 | " + slowest + " | 11.0 s | 11.0 s–11.0 s | ≤ 11.0 s | met |"},
		{0, 11.2, 1, "| measure 2 | " + slowest + " | 11.2 s | 11.2 s–11.2 s | ≤ 11.0 s | **not met** |"},
		{1, 5, 2, "| measure 1 | " + failedFresh + " | 1.0 requests | 1.0 requests–1.0 requests | 0 | **not met** |"},
	} {
		r := measured(tt.failed, tt.worst)
		if r.Missed() != tt.missed {
			t.Errorf("%d failed, %v s: %d limits are missed, want %d", tt.failed, tt.worst, r.Missed(), tt.missed)
		}
		if page := text(r); !strings.Contains(page, tt.row) {
			t.Errorf("the page lacks %q:\n%s", tt.row, page)
		}
	}
}

func TestFlags_ShortRun_IsNotPublished(t *testing.T) {
	for _, wrong := range [][]string{{"--rounds", "0"}, {"--rate", "1"}, {"--deadline", "3s"}, {"--deadline", "10500ms"}, {"--only", "3"}, {"more"}} {
		if _, err := parse(wrong); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
	for rounds, short := range map[string]bool{"5": true, "100": false, "120": false} {
		if b, err := parse([]string{"--rounds", rounds}); err != nil || b.Quick != short {
			t.Errorf("--rounds %s: short is %t, want %t; %v", rounds, b.Quick, short, err)
		}
	}
	r := measured(0, 1)
	r.Quick = true
	if section.Whole(r) == nil {
		t.Error("a short run is published")
	}
}

func TestManifest_EveryBadKind_DiffersFromTheGoodOne(t *testing.T) {
	var kinds []string
	for n := range 2 * len(badKinds) {
		v := bad(n)
		kinds = append(kinds, v.kind)
		other := v
		g := good(0)
		other.name, other.kind = g.name, g.kind
		if other == g {
			t.Errorf("the version %q is like the good one", v.kind)
		}
		if !strings.Contains(manifest(v, settings{10 * time.Second, minReady}, where{clusterIP: address}), "version: "+v.name+"}") {
			t.Errorf("the manifest does not name version %s", v.name)
		}
	}
	if !slices.Equal(kinds, slices.Concat(badKinds, badKinds)) {
		t.Errorf("the kinds are %q", kinds)
	}
}

func TestAsk_StatusIsNotOK_Fails(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	for _, kept := range []bool{true, false} {
		for path, fine := range map[string]bool{"/": true, "/other": false} {
			l := newLoad(s.URL+path, netip.MustParsePrefix("127.0.0.0/8"))
			if err := ask(t.Context(), l.client(kept), l.url); (err == nil) != fine {
				t.Errorf("%s, kept %t: %v", path, kept, err)
			}
		}
	}
}

func TestNote_Failures_AreCountedByTheirConnection(t *testing.T) {
	l := newLoad("", netip.Prefix{})
	l.note(true, time.Millisecond, 0, nil)
	l.note(true, time.Millisecond, 2, errors.New("dial tcp 198.18.40.20:80: refused"))
	l.note(false, time.Millisecond, 0, errors.New("read 10.0.0.1:4711->198.18.40.20:80: reset"))
	l.note(false, time.Millisecond, 0, errors.New("read 10.0.0.1:4712->198.18.40.20:80: reset"))
	w := l.Take()
	if w.Kept != 2 || w.Fresh != 2 || w.KeptFailed != 1 || w.FreshFailed != 2 || w.Failed() != 3 || w.Late != 2 || len(w.Took) != 4 {
		t.Errorf("%+v", w)
	}
	got := l.Errors()
	slices.Sort(got)
	want := []string{"1 × kept connection: dial tcp ADDRESS: refused", "2 × new connection: read ADDRESS->ADDRESS: reset"}
	if !slices.Equal(got, want) || len(l.Errors()) > 0 || l.Take().Kept > 0 {
		t.Errorf("%q, want %q once", got, want)
	}
}
