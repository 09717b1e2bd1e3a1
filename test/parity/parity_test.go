package main

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/test/compare"
)

func TestCasesCoverWhatIsPromised(t *testing.T) {
	cases, err := readCases("cases", regexp.MustCompile(""))
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) < 380 || len(numbers(cases)) < 140 {
		t.Errorf("%d cases with %d contract numbers, promised are 380 and 140", len(cases), len(numbers(cases)))
	}
	api := slices.DeleteFunc(slices.Clone(cases), func(c *Case) bool { return !c.API })
	if len(api) < 40 {
		t.Errorf("%d cases through an API server, promised are 40", len(api))
	}
}

// An explanation of cases that no longer exist is useless. A whole run checks that each of
// the others explains something.
func TestEveryExplanationIsOfCases(t *testing.T) {
	cases, err := readCases("cases", regexp.MustCompile(""))
	if err != nil {
		t.Fatal(err)
	}
	explanations, err := compare.Read("explained.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range explanations {
		for _, pattern := range e.Cases {
			if !slices.ContainsFunc(cases, func(c *Case) bool { ok, _ := path.Match(pattern, c.Name); return ok }) {
				t.Errorf("explanation %d is of %s, which is no case", i+1, pattern)
			}
		}
	}
}

func TestACaseWithAMistakeIsRefused(t *testing.T) {
	const pod = "\n---\nmetadata: {name: a}\n"
	const head = "shows: x\ncontract: [C-1.2]\nwatch: 5s\n"
	for name, text := range map[string]string{
		"no manifest":        head,
		"no contract number": "shows: x\ncontract: [1.2]\nwatch: 5s" + pod,
		"an unknown field":   head + "wach: 5s" + pod,
		"another pod's name": head + "\n---\nmetadata: {name: b}\n",
		"a script too late":  head + "script: [{at: 6s, kill: a/b}]" + pod,
		"a script backwards": head + "script: [{at: 2s, kill: a/b}, {at: 1s, kill: a/b}]" + pod,
	} {
		if _, err := readCase("a", []byte(text)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := readCase("a", []byte(head+pod)); err != nil {
		t.Errorf("without a mistake: %v", err)
	}
}

const second = time.Second

// recorded makes the record of a pod whose container fails after five seconds and restarts
// after nine, with a value of every aspect.
func recorded(zero time.Time) *CaseRecord {
	at := func(s float64) time.Time { return zero.Add(time.Duration(s * float64(second))) }
	said := func(from, to float64, cs v1.ContainerStatus) Seen {
		cs.Name = "app"
		ready := v1.ConditionFalse
		if cs.Ready {
			ready = v1.ConditionTrue
		}
		yes := cs.Ready
		cs.Started = &yes
		return Seen{From: at(from), To: at(to), Status: v1.PodStatus{
			Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}, ContainerStatuses: []v1.ContainerStatus{cs},
		}}
	}
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	waiting := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	failed := func() v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}}
	}
	container := func() compare.Facts {
		return compare.Facts{
			"args[0]": "forever", "envs[A].value": "1", "mounts[/d].readonly": "true", "linux.resources.cpu_shares": "2",
			"linux.security_context.privileged": "true", "labels.l": "1", "annotations.a": "1", "log_path": "app/0.log",
		}
	}
	return &CaseRecord{Zero: zero, Gone: at(20), End: at(90), Tiers: compare.Facts{"kubepods cpu.shares": "1024"}, Pods: map[string]*PodRecord{"a": {
		Seen: []Seen{
			said(0.2, 5, v1.ContainerStatus{Ready: true, State: running}),
			said(5, 9, v1.ContainerStatus{State: waiting, LastTerminationState: failed()}),
			said(9, 20, v1.ContainerStatus{Ready: true, State: running, LastTerminationState: failed(), RestartCount: 1}),
		},
		Sandboxes: []*Sandbox{{Created: at(0.1), Config: compare.Facts{
			"hostname": "a", "dns_config.servers[0]": "10.0.0.1", "port_mappings[0].host_port": "80", "linux.sysctls.x": "1", "linux.cgroup_parent": "/a",
		}}},
		Runs: []*Run{
			{Container: "app", Created: at(1), Started: at(1), Finished: at(5), Exit: 3, Reason: "Error", Config: container(), Log: "one"},
			{Container: "app", Created: at(9), Started: at(9), Attempt: 1, Config: container()},
		},
		Inside: map[string]Look{"app": {
			Files:  map[string]string{"/etc/hosts": "127.0.0.1 localhost", "/etc/resolv.conf": "nameserver 10.0.0.1", "/etc/hostname": "a"},
			Env:    []string{"A=1"},
			Mounts: []string{"/d ext4 / ro"},
			Cgroup: compare.Facts{"container cpu.shares": "2"},
			Proc:   compare.Facts{"Uid": "0"},

			Volumes: []string{"/d dir 0755 0:0"}, Devices: []string{"/dev/null device"}, Sysctls: compare.Facts{"kernel.sem": "1"}, Namespaces: compare.Facts{"pid": "the node's"},
		}},
		Pulls: []string{"example.org/x:1"}, Refused: map[string]compare.Facts{"app": {"args[0]": "none", "error": "no"}},
		Files: []string{"default_a_1/app/0.log", "/var/log/containers/a_default_app -> default_a_1/app/0.log"},
	}}}
}

func recordedCase() *Case {
	return &Case{
		Name: "a", manifests: []string{"metadata: {name: a}"},
		Within: metav1.Duration{Duration: defaultWithin}, After: metav1.Duration{Duration: collected},
	}
}

func aspects(found []compare.Difference) []string {
	var all []string
	for _, d := range found {
		all = append(all, d.Aspect)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// For every aspect: one difference is made, and the comparison reports it.
func TestCompareSeesEveryAspect(t *testing.T) {
	zero := time.Unix(1000, 0)
	later := func(t *time.Time, d time.Duration) { *t = t.Add(d) }
	status := func(p *PodRecord) *v1.PodStatus { return &p.Seen[1].Status }
	app := func(p *PodRecord) *v1.ContainerStatus { return &status(p).ContainerStatuses[0] }
	config := func(p *PodRecord) compare.Facts { return p.Runs[1].Config } // also of a second run
	look := func(p *PodRecord, change func(*Look)) {
		l := p.Inside["app"]
		change(&l)
		p.Inside["app"] = l
	}
	for _, tc := range []struct {
		aspects string
		change  func(p *PodRecord)
	}{
		{"", func(p *PodRecord) {}},
		{"", func(p *PodRecord) { later(&p.Runs[1].Started, second) }}, // within the tolerance
		{"times", func(p *PodRecord) { later(&p.Runs[1].Started, 4*second) }},
		{"order times", func(p *PodRecord) { later(&p.Runs[1].Started, -5*second) }},
		{"events", func(p *PodRecord) { p.Runs = p.Runs[:1] }},
		{"events", func(p *PodRecord) { p.Runs[1].Started = time.Time{} }},
		{"events", func(p *PodRecord) {
			p.Sandboxes = append(p.Sandboxes, &Sandbox{Created: zero.Add(second), Removed: zero.Add(2 * second)})
		}},
		{"exits", func(p *PodRecord) { p.Runs[0].Exit = 4 }},
		{"exits", func(p *PodRecord) { p.Runs[0].Reason = "OOMKilled" }},
		{"restarts", func(p *PodRecord) { p.Runs[1].Attempt = 2 }},
		{"stops", func(p *PodRecord) { p.Runs[0].Asked = zero.Add(4 * second) }},
		{"stops", func(p *PodRecord) { p.Runs[0].Grace = 30 }},
		{"phase", func(p *PodRecord) { status(p).Phase = v1.PodPending }},
		{"phase", func(p *PodRecord) { status(p).Reason = "Evicted" }},
		{"conditions", func(p *PodRecord) { status(p).Conditions[0].Status = v1.ConditionTrue }},
		{"conditions", func(p *PodRecord) { status(p).Conditions[0].Reason = "ContainersNotReady" }},
		{"conditions", func(p *PodRecord) { status(p).Conditions[0].Type = v1.PodInitialized }},
		{"states", func(p *PodRecord) { app(p).State.Waiting.Reason = "ErrImagePull" }},
		{"last states", func(p *PodRecord) { app(p).LastTerminationState.Terminated.ExitCode = 4 }},
		{"ready", func(p *PodRecord) { app(p).Ready = true }},
		{"started", func(p *PodRecord) { *app(p).Started = true }},
		{"restarts", func(p *PodRecord) { app(p).RestartCount = 5 }},
		{"status", func(p *PodRecord) { p.Seen[2].Status.QOSClass = v1.PodQOSBurstable }},
		{"asked for", func(p *PodRecord) { config(p)["args[0]"] = "sleep" }},
		{"env", func(p *PodRecord) { config(p)["envs[A].value"] = "2" }},
		{"env", func(p *PodRecord) { look(p, func(l *Look) { l.Env = nil }) }},
		{"mounts", func(p *PodRecord) { config(p)["mounts[/d].readonly"] = "false" }},
		{"mounts", func(p *PodRecord) { look(p, func(l *Look) { l.Mounts = append(l.Mounts, "/e ext4 / ro") }) }},
		{"cgroup", func(p *PodRecord) { config(p)["linux.resources.cpu_shares"] = "3" }},
		{"cgroup", func(p *PodRecord) { delete(p.Sandboxes[0].Config, "linux.cgroup_parent") }},
		{"cgroup", func(p *PodRecord) { look(p, func(l *Look) { l.Cgroup = nil }) }},
		{"identity", func(p *PodRecord) { config(p)["linux.security_context.run_as_user"] = "1" }},
		{"identity", func(p *PodRecord) { look(p, func(l *Look) { l.Proc = compare.Facts{"Uid": "1"} }) }},
		{"files", func(p *PodRecord) { look(p, func(l *Look) { l.Volumes = []string{"/d dir 0750 0:0"} }) }},
		{"devices", func(p *PodRecord) { look(p, func(l *Look) { l.Devices = nil }) }},
		{"sysctls", func(p *PodRecord) { look(p, func(l *Look) { l.Sysctls = compare.Facts{"kernel.sem": "2"} }) }},
		{"namespaces", func(p *PodRecord) { look(p, func(l *Look) { l.Namespaces = compare.Facts{"pid": "1 of the pod"} }) }},
		{"pulls", func(p *PodRecord) { p.Pulls[0] += " as x" }},
		{"asked for", func(p *PodRecord) { p.Refused["app"]["args[0]"] = "other" }},
		{"labels", func(p *PodRecord) { config(p)["labels.l"] = "2" }},
		{"annotations", func(p *PodRecord) { config(p)["annotations.b"] = "2" }},
		{"hostname", func(p *PodRecord) { p.Sandboxes[0].Config["hostname"] = "b" }},
		{"resolv.conf", func(p *PodRecord) { delete(p.Sandboxes[0].Config, "dns_config.servers[0]") }},
		{"ports", func(p *PodRecord) { p.Sandboxes[0].Config["port_mappings[0].host_port"] = "81" }},
		{"sysctls", func(p *PodRecord) { p.Sandboxes[0].Config["linux.sysctls.x"] = "2" }},
		{"/etc/hosts", func(p *PodRecord) { look(p, func(l *Look) { l.Files["/etc/hosts"] += "\n10.0.0.1 x" }) }},
		{"/etc/resolv.conf", func(p *PodRecord) { look(p, func(l *Look) { l.Files["/etc/resolv.conf"] = "" }) }},
		{"/etc/hostname", func(p *PodRecord) { look(p, func(l *Look) { delete(l.Files, "/etc/hostname") }) }},
		{"log files", func(p *PodRecord) { p.Files[0] = "default_a_1/app/1.log" }},
		{"log files", func(p *PodRecord) { config(p)["log_path"] = "1.log" }},
		{"log links", func(p *PodRecord) { p.Files = p.Files[:1] }},
		{"output", func(p *PodRecord) { p.Runs[0].Log = "two" }},
		{"output", func(p *PodRecord) { p.Runs[0].Log = "on" }}, // only a container that was killed at once may be cut short
		{"kept left", func(p *PodRecord) { p.Runs[0].Removed = zero.Add(6 * second) }},
		{"left", func(p *PodRecord) { p.Sandboxes[0].Removed = zero.Add(30 * second) }},
	} {
		b := recorded(zero)
		tc.change(b.Pods["a"])
		none := newNormaliser(&Recording{})
		found := compareCase(recordedCase(), recorded(zero.Add(-time.Hour)), b, none, none)
		if got := strings.Join(aspects(found), " "); got != tc.aspects {
			t.Errorf("want %q, found %v", tc.aspects, found)
		}
		// And with the two records exchanged.
		found = compareCase(recordedCase(), b, recorded(zero), none, none)
		if got := strings.Join(aspects(found), " "); got != tc.aspects {
			t.Errorf("the other way round: want %q, found %v", tc.aspects, found)
		}
	}
}

func TestCompareSeesTheGroupsAboveAllPods(t *testing.T) {
	zero := time.Unix(1000, 0)
	b := recorded(zero)
	b.Tiers = compare.Facts{"kubepods cpu.shares": "2"}
	none := newNormaliser(&Recording{})
	if got := aspects(compareCase(recordedCase(), recorded(zero), b, none, none)); strings.Join(got, " ") != "cgroup" {
		t.Errorf("found %v", got)
	}
}

func TestCompareSeesWhichAgentAcceptsAManifest(t *testing.T) {
	zero := time.Unix(1000, 0)
	none := newNormaliser(&Recording{})
	taken := recorded(zero)
	refused := &CaseRecord{Zero: zero, Gone: taken.Gone, Pods: map[string]*PodRecord{"a": {}}}
	unknown := &CaseRecord{Zero: zero, Gone: taken.Gone, Pods: map[string]*PodRecord{}}
	for _, tc := range []struct {
		a, b    *CaseRecord
		refused bool
		want    string
	}{
		{taken, refused, false, "refused"},
		{refused, taken, false, "refused"},
		{refused, taken, true, "refused"},
		{taken, unknown, false, "recorded"},
		{refused, refused, false, "recorded"},
		{refused, refused, true, ""},
		{taken, taken, true, "recorded"},
	} {
		c := recordedCase()
		c.Refused = tc.refused
		if got := aspects(compareCase(c, tc.a, tc.b, none, none)); strings.Join(got, " ") != tc.want && !slices.Contains(got, tc.want) {
			t.Errorf("want %q, found %v", tc.want, got)
		}
	}
}

func TestWhatIsExpectedOfNodectl(t *testing.T) {
	right := []string{
		"sandbox 1 is made", "app 1 starts", "app 1 ends with 3 Error at 4s", "app 2 starts at 8s",
		"the pod is Running, ready True", "app is running, restarts 1, last terminated 3 Error",
	}
	with := func(i int, line string) []string {
		lines := slices.Clone(right)
		lines[i] = line
		return lines
	}
	for _, tc := range []struct {
		lines []string
		fits  bool
	}{
		{right, true},
		{right[:5], false},
		{with(0, "sandbox 2 is made"), false},
		{with(2, "app 1 ends with 3 Error at 2s"), false},
		{with(2, "app 1 ends with 4 Error"), false},
		{with(4, "the pod is Running, ready False"), false},
		{with(5, "app is running, restarts 2, last terminated 3 Error"), false},
	} {
		c := recordedCase()
		c.Nodectl = tc.lines
		none := newNormaliser(&Recording{})
		found := compareCase(c, recorded(time.Unix(1000, 0)), recorded(time.Unix(2000, 0)), none, none)
		if got := len(found) == 0; got != tc.fits {
			t.Errorf("%q: %v", tc.lines, found)
		}
	}
}

func TestReportCountsWhatIsOpen(t *testing.T) {
	zero := time.Unix(1000, 0)
	other := recorded(zero)
	other.Pods["a"].Runs[0].Exit = 4
	cases := func(rec *CaseRecord) map[string]*CaseRecord { return map[string]*CaseRecord{"a": rec} }
	a, b, c := &Recording{Cases: cases(recorded(zero))}, &Recording{Cases: cases(recorded(zero))}, &Recording{Cases: cases(other)}
	exits := []*compare.Explanation{{Cases: []string{"a"}, Aspects: []string{"exits"}, Reason: "so be it"}}
	for _, tc := range []struct {
		nodectl     *Recording
		explained   []*compare.Explanation
		open, idle  int
		says, never string
	}{
		{b, nil, 0, 0, "1 cases are equal. 0 differ only for", "without a reason"},
		{c, nil, 1, 0, "0 cases are equal. 0 differ only for", "so be it"},
		{c, exits, 0, 0, "0 cases are equal. 1 differ only for", "without a reason"},
		{b, exits, 0, 1, "1 cases are equal. 0 differ only for", "so be it"},
		{&Recording{}, nil, 1, 0, "0 cases are equal. 0 differ only for", "so be it"},
	} {
		r := newTable([]*Case{recordedCase()}, a, tc.nodectl, tc.explained)
		if len(r.Open) != tc.open || len(r.Idle()) != tc.idle {
			t.Errorf("%d open and %d idle, want %d and %d", len(r.Open), len(r.Idle()), tc.open, tc.idle)
		}
		if text := r.markdown(); !strings.Contains(text, tc.says) || strings.Contains(text, tc.never) {
			t.Errorf("want %q and not %q in:\n%s", tc.says, tc.never, text)
		}
	}
}

func TestNormaliserHidesRunsNotFacts(t *testing.T) {
	n := newNormaliser(&Recording{Paths: map[string]string{"/tmp/x/root": "$ROOT", "/tmp/x": "$X", "10.9.8.": "$SUBNET."}})
	in := "/tmp/x/root/pods/00112233445566778899aabbccddeeff/containers/app/0a1b2c3d " + strings.Repeat("ab", 32) + " 10.9.8.7 port 8080 /pod" + strings.Repeat("e", 32) + "/x 0.log.20260102-030405.gz"
	const want = "$ROOT/pods/$UID/containers/app/$RANDOM $ID $IP port 8080 /pod$UID/x 0.log.$TIME.gz"
	if got := n.Text(in); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestBlocksOfUsersHaveNoNumber(t *testing.T) {
	n := newNormaliser(&Recording{})
	const id = "linux.namespace_options.userns_options.uids[0].host_id"
	for _, tc := range [][3]string{
		{"uid_map", "0 131072 65536", "0 $BLOCK 65536"}, {"uid_map", "0 0 4294967295", "0 0 4294967295"},
		{"gid_map", "0 131073 65536", "0 131073 65536"}, {id, "65536", "$BLOCK"}, {id, "1000", "1000"}, {"Uid", "65536", "65536"}, {id, "", ""},
	} {
		if got := n.Facts(compare.Facts{tc[0]: tc[1]})[tc[0]]; got != tc[2] {
			t.Errorf("%s %q is %q, want %q", tc[0], tc[1], got, tc[2])
		}
	}
}
