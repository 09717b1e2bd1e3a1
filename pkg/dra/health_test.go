package dra

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

const (
	healthy   = drahealth.HealthStatus_HEALTHY
	unhealthy = drahealth.HealthStatus_UNHEALTHY
)

// says returns the report of a device's health.
func says(pool, device string, health drahealth.HealthStatus, seconds int64) *drahealth.DeviceHealth {
	return &drahealth.DeviceHealth{Device: &drahealth.DeviceIdentifier{PoolName: pool, DeviceName: device}, Health: health, HealthCheckTimeoutSeconds: seconds}
}

// healthOfGPU returns the health of the device gpu-0 of the claim gpu; "" is not known.
func healthOfGPU(c *Claims, driver string) string {
	h := c.Health("u1")["uid-gpu"][pod.DeviceName{Driver: driver, Pool: "n1", Device: "gpu-0"}]
	if h.Message != "" {
		return string(h.Status) + ": " + h.Message
	}
	return string(h.Status)
}

// becomes waits for the health of the device gpu-0.
func becomes(t *testing.T, c *Claims, driver, want string) {
	t.Helper()
	wait.Until(t, "the device is "+want, func() (string, bool) {
		got := healthOfGPU(c, driver)
		return got, got == want
	})
}

// reportsUntil has a driver report until the device gpu-0 has this health: a stream that has just ended may
// take a report with it.
func reportsUntil(t *testing.T, c *Claims, f *fake, want string, list ...*drahealth.DeviceHealth) {
	t.Helper()
	wait.Until(t, "the device of "+f.name+" is "+want, func() (string, bool) {
		select {
		case f.reports <- report{list: list}:
		default:
		}
		got := healthOfGPU(c, f.name)
		return got, got == want
	})
}

// fast are the settings of tests: the limits of time are tested in fake time.
var fast = pace{retry: time.Millisecond, absent: time.Millisecond, interval: time.Millisecond}

// A report expires after the time that the driver names, else after 30 s. A device that the next report
// does not list keeps its health until then. The texts are cut as in the kubelet.
func TestNextHealth_Reports_ExpireAsInTheKubelet(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	long := strings.Repeat("x", v1.ResourceHealthMessageMaxLength-4) + "é" + "yzw"
	said := says("n1", "gpu-4", unhealthy, 0)
	said.Message = long
	first, err := nextHealth(driverName, nil, []*drahealth.DeviceHealth{
		says("n1", "gpu-0", healthy, 0), says("n1", "gpu-1", unhealthy, 10), says("n1", "gpu-2", 7, -5), says("n1", "gpu-3", healthy, 1<<62), said,
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	name := func(i int) pod.DeviceName {
		return pod.DeviceName{Driver: driverName, Pool: "n1", Device: fmt.Sprint("gpu-", i)}
	}
	for i, want := range []struct {
		status v1.ResourceHealthStatus
		after  time.Duration
	}{{"Healthy", 30 * time.Second}, {"Unhealthy", 10 * time.Second}, {"Unknown", 30 * time.Second}, {"Healthy", healthLast}, {"Unhealthy", 30 * time.Second}} {
		if got := first[name(i)]; got.Status != want.status || got.until.Sub(now) != want.after {
			t.Errorf("%d: %+v, want %v", i, got, want)
		}
	}
	if got := first[name(4)].Message; len(got) > v1.ResourceHealthMessageMaxLength || !utf8.ValidString(got) || got != strings.Repeat("x", v1.ResourceHealthMessageMaxLength-4)+"..." {
		t.Errorf("message of %d bytes: %.20q", len(got), got[1000:])
	}
	for seconds, left := range map[int]int{9: 5, 10: 4, 29: 4, 30: 1} {
		next, err := nextHealth(driverName, first, nil, now.Add(time.Duration(seconds)*time.Second))
		if err != nil || len(next) != left {
			t.Errorf("after %d s: %d are left, %v; want %d", seconds, len(next), err, left)
		}
	}
	next, err := nextHealth(driverName, first, []*drahealth.DeviceHealth{says("n1", "gpu-0", unhealthy, 0)}, now.Add(20*time.Second))
	if err != nil || next[name(0)].Status != "Unhealthy" || next[name(0)].until != now.Add(50*time.Second) || len(next) != 4 {
		t.Errorf("%+v, %v", next, err)
	}
	if first[name(0)].Status != "Healthy" {
		t.Error("a report has changed an earlier state")
	}
}

// A report that names too many devices, or something that is no name, is refused as a whole. Devices of
// later reports count with those that have not expired.
func TestNextHealth_DriverLies_ReportIsRefused(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	many := func(pool string, n int) (all []*drahealth.DeviceHealth) {
		for i := range n {
			all = append(all, says(pool, fmt.Sprint("gpu-", i), healthy, 1<<40))
		}
		return all
	}
	full, err := nextHealth(driverName, nil, many("n1", maxHealthStates), now)
	if err != nil || len(full) != maxHealthStates {
		t.Fatalf("%d, %v", len(full), err)
	}
	for want, list := range map[string][]*drahealth.DeviceHealth{
		"8193 devices are listed, more than 8192":     many("n1", maxHealthStates+1),
		"8193 devices have a health":                  many("n2", 1),
		`"a\x1b[2J" is not the name of a pool`:        {says("n1", "gpu-0", unhealthy, 0), says("a\x1b[2J", "gpu-0", healthy, 0)},
		`xxx" is not the name of a pool, a device or`: {says("n1", strings.Repeat("x", maxText+1), healthy, 0)},
	} {
		if next, err := nextHealth(driverName, full, list, now); err == nil || !strings.Contains(err.Error(), want) || next != nil {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	if next, err := nextHealth(driverName, nil, []*drahealth.DeviceHealth{nil, {}}, now); err != nil || len(next) != 1 {
		t.Errorf("an empty report: %v, %v", next, err)
	}
}

// A driver that says nothing more has said nothing about its devices after the time of its last report.
// HealthChanged has a value whenever the health of a device in use changes, and only then.
func TestHealth_DriverFallsSilent_ReportExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
		d := &driver{name: driverName}
		c.drivers[driverName] = []*driver{d}
		device := pod.ClaimDevice{Driver: driverName, Pool: "n1", Device: "gpu-0"}
		r := record{UID: "uid-gpu"}.withDrivers([]string{driverName}).with(driverName, Done, []pod.ClaimDevice{device}, c.boot)
		c.claims["uid-gpu"] = r.withPod("u1", "gpu")
		after := func(what string, passed time.Duration, want string, woken bool) {
			t.Helper()
			time.Sleep(passed)
			synctest.Wait()
			got := false
			select {
			case <-c.HealthChanged():
				got = true
			default:
			}
			if is := healthOfGPU(c, driverName); is != want || got != woken {
				t.Errorf("%s: %q, changed %t; want %q, %t", what, is, got, want, woken)
			}
		}
		say := func(list ...*drahealth.DeviceHealth) {
			t.Helper()
			if err := c.reportHealth(d, list); err != nil {
				t.Fatal(err)
			}
		}
		say(says("n1", "gpu-0", healthy, 0))
		after("first report", 0, "Healthy", true)
		after("still valid", 20*time.Second, "Healthy", false)
		say(says("n1", "gpu-0", healthy, 0), says("n1", "gpu-9", unhealthy, 1))
		after("the same, and a device that no claim has", 5*time.Second, "Healthy", false)
		after("almost expired", 24*time.Second, "Healthy", false)
		after("expired", 2*time.Second, "", true)
		after("still unknown", time.Hour, "", false)
		say(says("n1", "gpu-0", unhealthy, 100))
		after("another report", time.Second, "Unhealthy", true)
		say(says("n1", "gpu-1", healthy, 0))
		after("a report without the device", 98*time.Second, "Unhealthy", false)
		after("expired", 2*time.Second, "", true)
		if len(c.Health("u2")) > 0 {
			t.Error("a pod sees claims of another one")
		}
	})
}

// The health of a driver's devices follows its reports. It is not known while the stream has ended, and
// known again as soon as the driver reports again. Claims are prepared meanwhile.
func TestHealth_DriverReports_IsKnownWhileItsStreamLasts(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	c.pace = fast
	f.reports = make(chan report)
	stop := m.plug(c, f)
	m.claim("gpu", []string{driverName}, "u1")
	if c.Health("u1") != nil {
		t.Error("a claim is shown that is not prepared")
	}
	prepare(t, c, podOf("u1", "gpu"))
	if all := c.Health("u1"); len(all) != 1 || len(all["uid-gpu"]) > 0 {
		t.Errorf("before a report: %v", all)
	}
	f.reports <- report{list: []*drahealth.DeviceHealth{says("n1", "gpu-0", healthy, 0)}}
	becomes(t, c, driverName, "Healthy")
	sick := says("n1", "gpu-0", unhealthy, 0)
	sick.Message = "too hot"
	f.reports <- report{list: []*drahealth.DeviceHealth{sick}}
	becomes(t, c, driverName, "Unhealthy: too hot")
	f.reports <- report{end: errors.New("the driver is confused")}
	becomes(t, c, driverName, "")
	reportsUntil(t, c, f, "Healthy", says("n1", "gpu-0", healthy, 0))
	stop()
	becomes(t, c, driverName, "")
	stop = f.serve(t, m.socket(driverName))
	reportsUntil(t, c, f, "Healthy", says("n1", "gpu-0", healthy, 0))
	c.Unregister(driverName, m.socket(driverName))
	if got := healthOfGPU(c, driverName); got != "" {
		t.Errorf("of a driver that is not registered: %s", got)
	}
	stop()
}

// Two plugins of a driver report, as during an update: the newest one counts, and the other one once the
// newest is silent.
func TestHealth_TwoPluginsOfADriver_NewestCounts(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, old, next := m.agent(), newFake(), newFake()
	c.pace = fast
	old.reports, next.reports = make(chan report), make(chan report)
	m.plug(c, old)
	next.serve(t, m.socket("next"))
	if err := c.Register(t.Context(), driverName, m.socket("next"), known); err != nil {
		t.Fatal(err)
	}
	m.claim("gpu", []string{driverName}, "u1")
	prepare(t, c, podOf("u1", "gpu"))
	next.reports <- report{list: []*drahealth.DeviceHealth{says("n1", "gpu-0", unhealthy, 0)}}
	becomes(t, c, driverName, "Unhealthy")
	old.reports <- report{list: []*drahealth.DeviceHealth{says("n1", "gpu-0", healthy, 0)}}
	old.reports <- report{list: nil} // keeps the one before
	if got := healthOfGPU(c, driverName); got != "Unhealthy" {
		t.Errorf("%s", got)
	}
	c.Unregister(driverName, m.socket("next"))
	becomes(t, c, driverName, "Healthy")
}

// A driver that sends too much, too many devices, or names that are none, loses the health of its own
// devices. One that lists the devices of another driver changes nothing about them, and neither does one
// that never reports, or does not have the service. All go on preparing claims.
func TestHealth_DriverLies_OnlyItsOwnDevicesAreUnknown(t *testing.T) {
	t.Parallel()
	huge := says("n1", "gpu-0", healthy, 0)
	huge.Message = strings.Repeat("x", maxHealth+1)
	many := make([]*drahealth.DeviceHealth, maxHealthStates+1)
	for i := range many {
		many[i] = says("n1", fmt.Sprint("gpu-", i), healthy, 0)
	}
	for what, lie := range map[string][]*drahealth.DeviceHealth{
		"a message above the limit": {huge}, "too many devices": many, "a name that is none": {says("n1", "gpu-0", healthy, 0), says("\n", "x", healthy, 0)},
	} {
		m := newMachine(t)
		c, good, bad, silent := m.agent(), newFake(), newFake(), newFake()
		c.pace = fast
		bad.name, silent.name = "bad.test", "silent.test"
		good.reports, bad.reports = make(chan report), make(chan report)
		for _, f := range []*fake{good, bad, silent} {
			m.plug(c, f)
		}
		m.claim("gpu", []string{driverName, bad.name, silent.name}, "u1")
		prepare(t, c, podOf("u1", "gpu"))
		list := []*drahealth.DeviceHealth{says("n1", "gpu-0", healthy, 0)}
		good.reports <- report{list: list}
		bad.reports <- report{list: []*drahealth.DeviceHealth{says("n1", "gpu-0", unhealthy, 0)}}
		becomes(t, c, bad.name, "Unhealthy")
		becomes(t, c, driverName, "Healthy")
		bad.reports <- report{list: lie}
		becomes(t, c, bad.name, "")
		if got := healthOfGPU(c, driverName) + healthOfGPU(c, silent.name); got != "Healthy" {
			t.Errorf("%s: the other drivers' devices are %q", what, got)
		}
		reportsUntil(t, c, bad, "Healthy", list...) // on another stream
		release(t, c, "u1")
		if c.Health("u1") != nil {
			t.Errorf("%s: health of a claim that is unprepared", what)
		}
	}
}
