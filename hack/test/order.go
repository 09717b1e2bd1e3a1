package main

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// usual are the seconds that the longest jobs of a tier take, from the tables of whole runs on two
// cores; below 150 in the first tier they are estimates from CPU time. The longest job starts
// first, so that short ones fill the lanes at the end. A job that is not here takes unknown or,
// below test/, unknownSuite.
var usual = map[string]map[string]int{
	"first": {
		"test/e2e": 300, "test/kube": 260, "pkg/engine": 225, "lint": 190, "cmd": 175,
		"test/identity": 100, "test/bundle": 90, "pkg/server": 80, "pkg/manifest": 70, "pkg/sink/apiserver": 60,
		"pkg/source/apiserver": 60, "pkg/podconfig": 50, "pkg/volume": 50, "pkg/source/file": 45, "pkg/agent": 45,
	},
	"full": {
		"test/kube": 1700, "test/e2e": 1490, "e2e-node": 1200, "cross": 900, "cmd": 800, "release": 420, "site": 300,
		"fuzz": 250, "lint": 200, "pkg/workload": 250, "pkg/manifest": 230, "pkg/upkeep": 225, "pkg/podconfig": 180,
		"pkg/source/etcd": 140, "pkg/volume": 100, "pkg/engine": 90, "test/apisource": 80,
		"pkg/source/http": 57, "pkg/cgroup": 54, "pkg/stats": 51,
	},
}

const (
	unknown      = 5
	unknownSuite = 40 // it starts servers
)

// usually returns the seconds that a job is expected to take.
func usually(tier, name string) int {
	if n, ok := usual[tier][name]; ok {
		return n
	}
	if strings.HasPrefix(name, "test/") {
		return unknownSuite
	}
	return unknown
}

// order sorts jobs, the longest first.
func order(tier string, jobs []job) {
	slices.SortStableFunc(jobs, func(a, b job) int { return cmp.Compare(usually(tier, b.name), usually(tier, a.name)) })
}

// idle returns how much time the lanes spend without a job at the end of a run.
func idle(lanes []lane) (sum time.Duration) {
	var end time.Duration
	for _, l := range lanes {
		end = max(end, l.took)
	}
	for _, l := range lanes {
		sum += end - l.took
	}
	return sum
}
