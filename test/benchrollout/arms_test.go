package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/report"
)

func TestArms_Names_AreChecked(t *testing.T) {
	b, err := parse([]string{"--arm", "kubelet,podman", "--rounds", "100"})
	if err != nil {
		t.Fatal(err)
	}
	var taken []string
	for _, k := range kinds {
		if b.takes(k) {
			taken = append(taken, k.name)
		}
	}
	if !slices.Equal(taken, []string{"kubelet", "podman"}) || b.Kubelet == "" {
		t.Errorf("the arms are %q, the kubelet is %q", taken, b.Kubelet)
	}
	if b.roundsOf(kinds[0]) != 100 || b.roundsOf(kinds[1]) != mostCompared {
		t.Errorf("%d and %d rounds", b.roundsOf(kinds[0]), b.roundsOf(kinds[1]))
	}
	if b, err := parse([]string{"--arm", "nodectl"}); err != nil || b.Kubelet != "" {
		t.Errorf("nodectl alone measures the kubelet %q: %v", b.Kubelet, err)
	}
	for _, wrong := range []string{"", "docker", "nodectl,docker"} {
		if _, err := parse([]string{"--arm", wrong}); err == nil {
			t.Errorf("--arm %q is taken", wrong)
		}
	}
}

// deployment is a Deployment of a version with all its pods, and its condition Progressing.
func deployment(version string, generation, seen int64, progressing v1.ConditionStatus, reason string) *appsv1.Deployment {
	d := &appsv1.Deployment{}
	d.Generation = generation
	d.Spec.Template.Labels = map[string]string{"version": version}
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: seen, Replicas: replicas, UpdatedReplicas: replicas, AvailableReplicas: replicas,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: progressing, Reason: reason}},
	}
	return d
}

func TestObserved_Deployment_IsCompleteOrFailedInItsNewestGeneration(t *testing.T) {
	const exceeded = "ProgressDeadlineExceeded"
	surge := deployment("v1", 2, 2, v1.ConditionTrue, "ReplicaSetUpdated")
	surge.Status.Replicas++
	for name, tt := range map[string]struct {
		d        *appsv1.Deployment
		complete string
		failed   []string
	}{
		"complete":      {deployment("v1", 2, 2, v1.ConditionTrue, "NewReplicaSetAvailable"), "v1", nil},
		"not observed":  {deployment("v1", 3, 2, v1.ConditionTrue, "NewReplicaSetAvailable"), "", nil},
		"old one there": {surge, "", nil},
		"failed":        {deployment("v1", 2, 2, v1.ConditionFalse, exceeded), "v1", []string{"v1"}},
		"failed before": {deployment("v1", 3, 2, v1.ConditionFalse, exceeded), "", nil},
	} {
		if s := observed(tt.d); s.complete != tt.complete || !slices.Equal(s.failed, tt.failed) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// pages serves a version's page, and is ready or not.
func pages(t *testing.T, title string, ready bool) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ready" && !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(title + "\nThis is pod x.\n"))
	}))
	t.Cleanup(s.Close)
	return s.URL + "/"
}

func TestEngine_State_IsThatOfTheAnswerAndTheDeadline(t *testing.T) {
	fault := errors.New("no such image")
	for name, tt := range map[string]struct {
		title    string
		ready    bool
		asked    version
		ago      time.Duration
		fault    error
		complete string
		failed   bool
	}{
		"ready":           {"v1", true, good(1), 0, nil, "v1", false},
		"not ready":       {"v1", false, good(1), 0, nil, "", false},
		"old version":     {"v0", true, good(1), 0, nil, "", false},
		"bad version":     {bad(1).name, true, bad(1), 0, nil, "", false},
		"after deadline":  {"v0", true, bad(0), time.Hour, nil, "", true},
		"command failed":  {"v0", true, bad(3), 0, fault, "", true},
		"good and failed": {"v0", false, good(1), 0, fault, "", true},
	} {
		e := newEngine()
		e.deadline = time.Minute
		e.at, e.asked, e.since, e.fault = pages(t, tt.title, tt.ready), tt.asked, time.Now().Add(-tt.ago), tt.fault
		s, err := e.state(t.Context())
		if err != nil || s.complete != tt.complete || s.hasFailed(tt.asked) != tt.failed || s.available != unknown {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func TestComposeFile_Versions_DifferAsInTheManifest(t *testing.T) {
	for n := range badKinds {
		v := bad(n)
		text := composeFile(v)
		if !strings.Contains(text, "image: "+v.image+"\n") || !strings.Contains(text, "{version: "+v.name+"}") || strings.Contains(text, "command: [") != (v.args != "") {
			t.Errorf("%s:\n%s", v.kind, text)
		}
	}
	if text := manifest(good(0), settings{}, where{clusterIP: address, hostPort: hostPort}); !strings.Contains(text, "containerPort: 8080, hostPort: 8080}") {
		t.Errorf("no host port:\n%s", text)
	}
}

func TestComparison_TwoArms_HasRatiosOfMedians(t *testing.T) {
	r := &report.Report{}
	for i, took := range map[int]time.Duration{0: time.Second, 1: 4 * time.Second} {
		m := r.Begin(updatesOf(i), "updates", "how")
		m.Arm(updateTook).Add(took)
		m.Arm(failedKept).Value(0)
		m.Arm(failedFresh).Value(float64(7 * i))
		m.Arm(sent).Value(100)
		m.Arm(leftOut).Value(0)
		m = r.Begin(badOf(i), "bad versions", "how")
		m.Arm(failedKept).Value(1)
		m.Arm(failedFresh).Value(2)
		m.Arm(sent).Value(50)
		for _, kind := range badKinds {
			m.Arm(backTook + kind).Add(2 * took)
			m.Arm("failed requests a round, " + kind).Value(2.5)
		}
	}
	page := comparison(r)
	for _, want := range []string{
		"|  | nodectl | kubelet |\n| --- | --- | --- |\n",
		"| updates | 1 | 1 |\n", "| bad versions | 4 | 4 |\n",
		"| failed requests, updates | 0 of 100 | 7 of 100 |\n", "| failed requests, bad versions | 3 of 50 | 3 of 50 |\n",
		"| an update, median | 1.0 s | 4.0 s (0.25) |\n",
		"| crash: failed requests a version, mean | 2.5 | 2.5 |\n", "| crash: complete again, median | 2.0 s | 8.0 s (0.25) |\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the table lacks %q:\n%s", want, page)
		}
	}
	r.Measures = slices.DeleteFunc(r.Measures, func(m *report.Measure) bool { return m.ID > firstIDs })
	if page := comparison(r); page != "" {
		t.Errorf("nodectl is compared with itself:\n%s", page)
	}
}
