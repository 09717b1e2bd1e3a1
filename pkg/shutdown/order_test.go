package shutdown

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
)

var start = time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)

// fakePod is a pod of a simulated node: it ends some time after its stop began, and is killed
// at the end of its grace.
type fakePod struct {
	name     string
	priority int32
	grace    int64 // own, in seconds
	takes    int64 // seconds to end after SIGTERM; above the grace: it is killed
	hangs    bool  // it never ends
	on       []string
}

// simulate stops the pods of a node and returns one line for each stop and end, with the second.
func simulate(o Order, list ...fakePod) string {
	pods := make([]Pod, len(list))
	due := make([]time.Time, len(list)) // when it ends; zero: never, or it has not begun
	for i, f := range list {
		pods[i] = Pod{Key: pod.Key{Name: f.name}, Priority: f.priority, Grace: f.grace}
		for j, g := range list {
			if slices.Contains(g.on, f.name) {
				pods[i].Dependents = append(pods[i].Dependents, j)
			}
		}
	}
	var out strings.Builder
	var p Progress
	for now := start; ; {
		second := int(now.Sub(start).Seconds())
		d := o.Next(pods, &p, now)
		for _, s := range d.Stops {
			grace := min(list[s.Pod].grace, s.Limit)
			fmt.Fprintf(&out, "%d stop %s grace=%d\n", second, list[s.Pod].name, grace)
			pods[s.Pod].Begun = now
			if !list[s.Pod].hangs {
				due[s.Pod] = now.Add(time.Duration(min(list[s.Pod].takes, grace)) * time.Second)
			}
		}
		if d.Done {
			fmt.Fprintf(&out, "%d done\n", second)
			return out.String()
		}
		next := d.Again
		for i := range pods {
			if !pods[i].Ended && !due[i].IsZero() && (next.IsZero() || due[i].Before(next)) {
				next = due[i]
			}
		}
		if next.Before(now) {
			return out.String() + "no progress\n"
		}
		now = next
		for i := range pods {
			if !pods[i].Ended && !due[i].IsZero() && !due[i].After(now) {
				pods[i].Ended = true
				fmt.Fprintf(&out, "%d ended %s\n", int(now.Sub(start).Seconds()), list[i].name)
			}
		}
	}
}

// TestNext_Nodes_StopInOrder shows the course of a stop for nodes with classes, dependencies and
// pods that do not end.
//
// Shows: C-1.36.2, C-1.36.3
func TestNext_Nodes_StopInOrder(t *testing.T) {
	t.Parallel()
	two := Order{Classes: Classes(30*time.Second, 10*time.Second)}
	ten := int64(10)
	for name, c := range map[string]struct {
		order Order
		pods  []fakePod
		want  string
	}{
		"the critical class follows when the regular one has ended": {two, []fakePod{
			{name: "dns", priority: CriticalPriority, grace: 30, takes: 3},
			{name: "web", grace: 30, takes: 5},
			{name: "app", priority: 1000, grace: 7, takes: 9},
		}, "0 stop web grace=20|0 stop app grace=7|5 ended web|7 ended app|7 stop dns grace=10|10 ended dns|10 done|"},
		"a class ends with its period": {two, []fakePod{
			{name: "dns", priority: CriticalPriority + 5, grace: 30, takes: 3},
			{name: "web", grace: 600, hangs: true},
		}, "0 stop web grace=20|20 stop dns grace=10|23 ended dns|23 done|"},
		"below the lowest class": {Order{Classes: []Class{{100, 5 * time.Second}, {200, 6 * time.Second}}}, []fakePod{
			{name: "low", priority: -5, grace: 30, takes: 1}, {name: "between", priority: 199, grace: 30, takes: 2}, {name: "high", priority: 900, grace: 30, takes: 1},
		}, "0 stop low grace=5|0 stop between grace=5|1 ended low|2 ended between|2 stop high grace=6|3 ended high|3 done|"},
		"without classes each priority follows": {Order{}, []fakePod{
			{name: "b", priority: 10, grace: 30, takes: 2}, {name: "a", grace: 30, takes: 4}, {name: "c", priority: 20, grace: 0},
		}, "0 stop a grace=30|4 ended a|4 stop b grace=30|6 ended b|6 stop c grace=0|6 ended c|6 done|"},
		"a limit of the drain": {Order{MaxGrace: &ten}, []fakePod{
			{name: "a", grace: 600, takes: 600}, {name: "b", grace: 5, takes: 600},
		}, "0 stop a grace=10|0 stop b grace=5|5 ended b|10 ended a|10 done|"},
		"dependents first": {Order{}, []fakePod{
			{name: "db", grace: 30, takes: 1}, {name: "app", grace: 30, takes: 2, on: []string{"db"}}, {name: "web", grace: 30, takes: 3, on: []string{"app"}},
		}, "0 stop web grace=30|3 ended web|3 stop app grace=30|5 ended app|5 stop db grace=30|6 ended db|6 done|"},
		"a dependent that hangs is waited for with its grace and a minute": {Order{}, []fakePod{
			{name: "db", grace: 30, takes: 1}, {name: "app", grace: 30, hangs: true, on: []string{"db"}},
		}, "0 stop app grace=30|90 stop db grace=30|91 ended db|91 done|"},
		"in a class with a period the own grace is kept, even against the order": {two, []fakePod{
			{name: "db", grace: 8, takes: 9}, {name: "app", grace: 20, hangs: true, on: []string{"db"}},
		}, "0 stop app grace=20|12 stop db grace=8|20 ended db|20 done|"},
		"a dependency of a critical pod stops with the critical pods": {two, []fakePod{
			{name: "db", grace: 4, takes: 1}, {name: "app", priority: CriticalPriority, grace: 5, takes: 2, on: []string{"db"}}, {name: "web", grace: 9, takes: 3},
		}, "0 stop web grace=9|3 ended web|3 stop app grace=5|5 ended app|5 stop db grace=4|6 ended db|6 done|"},
		"a circle waits only for others": {Order{}, []fakePod{
			{name: "a", grace: 5, takes: 1, on: []string{"b"}}, {name: "b", grace: 5, takes: 1, on: []string{"a"}}, {name: "c", grace: 5, takes: 1, on: []string{"a"}},
		}, "0 stop b grace=5|0 stop c grace=5|1 ended b|1 ended c|1 stop a grace=5|2 ended a|2 done|"},
		"a circle below priority 0 stops before higher priorities": {Order{}, []fakePod{
			{name: "high", priority: -5, grace: 5, takes: 1},
			{name: "a", priority: -10, grace: 5, takes: 1, on: []string{"b"}}, {name: "b", priority: -10, grace: 5, takes: 1, on: []string{"a"}},
		}, "0 stop a grace=5|0 stop b grace=5|1 ended a|1 ended b|1 stop high grace=5|2 ended high|2 done|"},
		"a long grace delays the next priority by ten minutes": {Order{}, []fakePod{
			{name: "vm", grace: 86400, takes: 3600}, {name: "web", priority: 10, grace: 30, takes: 2},
		}, "0 stop vm grace=86400|600 stop web grace=30|602 ended web|3600 ended vm|3600 done|"},
		"a long grace delays the pods that this one depends on, of each priority": {Order{}, []fakePod{
			{name: "vm", grace: 86400, takes: 3600, on: []string{"db", "disk"}}, {name: "db", grace: 30, takes: 2}, {name: "disk", priority: 10, grace: 30, takes: 3},
		}, "0 stop vm grace=86400|3600 ended vm|3600 stop db grace=30|3600 stop disk grace=30|3602 ended db|3603 ended disk|3603 done|"},
		"no pods": {two, nil, "0 done|"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := strings.ReplaceAll(simulate(c.order, c.pods...), "\n", "|"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestNext_RandomNodes_KeepTheLaws: whatever the pods are, each one that does not hang ends, a
// higher class begins only after the lower one, a class takes no longer than its period, and the
// whole order ends.
//
// Shows: C-1.36.2
func TestNext_RandomNodes_KeepTheLaws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var o Order
		if rapid.Bool().Draw(t, "classes") {
			o.Classes = Classes(30*time.Second, time.Duration(rapid.IntRange(0, 30).Draw(t, "critical"))*time.Second)
		}
		n := rapid.IntRange(0, 6).Draw(t, "n")
		list := make([]fakePod, n)
		for i := range list {
			list[i] = fakePod{
				name:     string(rune('a' + i)),
				priority: rapid.SampledFrom([]int32{-1, 0, 7, CriticalPriority}).Draw(t, "priority"),
				grace:    rapid.Int64Range(0, 40).Draw(t, "grace"), takes: rapid.Int64Range(0, 50).Draw(t, "takes"),
				hangs: rapid.IntRange(0, 4).Draw(t, "hangs") == 0,
			}
			for j := range n {
				if j != i && rapid.IntRange(0, 3).Draw(t, "on") == 0 {
					list[i].on = append(list[i].on, string(rune('a'+j)))
				}
			}
		}
		course := simulate(o, list...)
		for _, f := range list {
			if n := strings.Count(course, " stop "+f.name+" "); n != 1 {
				t.Fatalf("pod %s was stopped %d times:\n%s", f.name, n, course)
			}
			if ended := strings.Contains(course, "ended "+f.name+"\n"); !ended && !f.hangs && !strings.Contains(course, "stop "+f.name+" grace=0\n") {
				t.Fatalf("pod %s has not ended:\n%s", f.name, course)
			}
		}
		var end int
		if _, err := fmt.Sscanf(course[strings.LastIndex(strings.TrimSpace(course), "\n")+1:], "%d done", &end); err != nil {
			t.Fatalf("%v:\n%s", err, course)
		}
		if total := Total(o.Classes); total > 0 && end > int(total/time.Second) {
			t.Fatalf("it took %d s of %s:\n%s", end, total, course)
		}
	})
}
