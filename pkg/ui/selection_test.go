package ui

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// labelled is pod NAMESPACE/NAME of a source, with label app.
func labelled(source, namespace, name, app string) *pod.Spec {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}}}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{Source: source, Location: "x"}}
}

func TestSelectionOfAStream(t *testing.T) {
	t.Parallel()
	web, db := labelled("file", "default", "web", "web"), labelled("http", "kube-system", "db", "db")
	other := labelled("file", "default", "web", "other")
	stream := []feed.Update{
		{Op: podconfig.RESTORE, Source: "http", Pods: []*pod.Spec{db}, Last: true},
		{Op: podconfig.ADD, Source: "file", Pods: []*pod.Spec{web}, First: true},
		{Op: feed.REJECT, Source: "file", Problem: pod.Problem{Msg: "bad"}},
		{Op: feed.NOTICE, Source: "file", Problem: pod.Problem{Msg: "skipped"}, Last: true},
		{Op: podconfig.ADD, Source: "http", First: true},
		{Op: feed.CONFLICT, Source: "http", Key: db.Key, Problem: pod.Problem{Msg: "loses"}, Last: true},
		{Op: podconfig.UPDATE, Source: "file", Pods: []*pod.Spec{other}, Old: []*pod.Spec{web}, Last: true},
		{Op: podconfig.RECONCILE, Source: "http", Pods: []*pod.Spec{db}, Old: []*pod.Spec{db}, Last: true},
		{Op: feed.DROPPED, Source: podconfig.AllSources, Dropped: 9},
		{Op: podconfig.SET, Source: podconfig.AllSources, Pods: []*pod.Spec{other, db}},
		{Op: feed.ERROR, Source: "http", Problem: pod.Problem{Msg: "timeout"}, Last: true},
		{Op: podconfig.REMOVE, Source: "file", Pods: []*pod.Spec{other}, Last: true},
	}
	for _, test := range []struct {
		name string
		Selection
		want string
	}{
		{"everything", Selection{},
			"1 RESTORE db, 2 ADD web, 3 REJECT, 4 ADD, 5 CONFLICT db, 6 UPDATE web, 7 RECONCILE db, 8 DROPPED, 9 SET web db, 10 ERROR, 11 REMOVE web"},
		{"notices", Selection{Notices: true, Max: 2},
			"1 RESTORE db, 2 ADD web, 3 REJECT, 0 NOTICE"},
		{"--source", Selection{Kinds: []string{"file"}, Notices: true},
			"1 ADD web, 2 REJECT, 0 NOTICE, 3 UPDATE web, 4 DROPPED, 5 SET web, 6 REMOVE web"},
		{"-n: the first update is printed, a later empty one is not", Selection{Namespace: "kube-system"},
			"1 RESTORE db, 2 ADD, 3 REJECT, 4 ADD, 5 CONFLICT db, 6 RECONCILE db, 7 DROPPED, 8 SET db, 9 ERROR"},
		{"-l: a pod that stops matching is printed", Selection{Labels: "app=web"},
			"1 ADD web, 2 REJECT, 3 ADD, 4 CONFLICT db, 5 UPDATE web, 6 DROPPED, 7 SET, 8 ERROR"},
		{"--max-events counts updates; the problems of the last one follow", Selection{Max: 3},
			"1 RESTORE db, 2 ADD web, 3 REJECT, 4 ADD, 5 CONFLICT db"},
		{"--max-events 1", Selection{Max: 1}, "1 RESTORE db"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := test.Check(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for d := range test.Documents(slices.Values(stream)) {
				line := []string{fmt.Sprint(d.Seq), d.Op}
				for _, p := range d.Pods {
					line = append(line, p.Name)
				}
				got = append(got, strings.Join(line, " "))
			}
			if got := strings.Join(got, ", "); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestSelectionTravels: the agent reads the same selection from the query.
func TestSelectionTravels(t *testing.T) {
	t.Parallel()
	for _, s := range []Selection{
		{},
		{Mode: podconfig.SnapshotAndUpdates, Full: true, Notices: true, Kinds: []string{"file", "api"}, Namespace: "kube-system", Labels: "app in (web,db),!x", Max: 7},
	} {
		got, err := ParseSelection(s.Query())
		if err != nil {
			t.Errorf("%+v: %v", s, err)
		}
		got.selector = nil
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", s) {
			t.Errorf("got %+v, want %+v", got, s)
		}
	}
	for query, says := range map[string]string{
		"mode=everything": "unknown mode", "full=perhaps": "full: ", "max=-1": "must not be negative", "max=x": "max: ", "source=missing": "not one of",
		"selector=a+in": "--selector", "mode=snapshot&mode=snapshot": "more than once", "other=1": "other: ",
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseSelection(q); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", query, err)
		}
	}
}
