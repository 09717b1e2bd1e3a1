package main

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/compare"
)

// A normaliser is that of one recording.
type normaliser struct{ *compare.Normaliser }

var (
	own = []compare.Rule{
		{What: regexp.MustCompile(`(\$ROOT/pods/\$UID)/\d+/`), By: "$1/"},                            // nodectl keeps instances of one UID apart
		{What: regexp.MustCompile(`(/containers/[^/ ]+)/([0-9a-f]{8}|[0-9]+)\b`), By: "$1/$$RANDOM"}, // termination logs
		{What: regexp.MustCompile(`\b\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\b`), By: "$$TIME"},
		{What: regexp.MustCompile(`\.\.\d{4}(_\d\d){5}\.\d+`), By: "..$$TIME"}, // what ..data points to
		{What: regexp.MustCompile(`\.\d{8}-\d{6}\b`), By: ".$$TIME"},           // rotated logs
	}
	logLine = regexp.MustCompile(`(?m)^\S+ (stdout|stderr) [FP] `)
)

func newNormaliser(r *Recording) *normaliser {
	return &normaliser{compare.NewNormaliser(r.Paths, own...)}
}

// Facts normalises facts of requests and of processes.
func (n *normaliser) Facts(f compare.Facts) compare.Facts {
	f = maps.Clone(f)
	for k, v := range f {
		if users.MatchString(k) {
			f[k] = block(v)
		}
	}
	return n.Normaliser.Facts(f, nil)
}

// users matches the values with a range of the node's user IDs: the agent chooses the range,
// but the value must begin where a range does.
var users = regexp.MustCompile(`userns_options\.[ug]ids\[\d\]\.host_id$|^[ug]id_map$`)

func block(v string) string {
	f := strings.Fields(v)
	at := min(1, len(f)-1) // "0 65536 65536" in a map
	if at < 0 {
		return v
	}
	if first, err := strconv.ParseInt(f[at], 10, 64); err == nil && first > 0 && first%65536 == 0 {
		f[at] = "$BLOCK"
	}
	return strings.Join(f, " ")
}

func (n *normaliser) lines(lines []string) []string {
	var out []string
	for _, l := range lines {
		out = append(out, n.Text(strings.TrimRight(l, "\n")))
	}
	slices.Sort(out)
	return out
}

// log returns a container's log without the times in it.
func (n *normaliser) log(s string) string { return n.Text(logLine.ReplaceAllString(s, "$1 ")) }

// dropped are the values of a status that are moments or names of one run.
var dropped = regexp.MustCompile(`(startTime|startedAt|finishedAt|lastTransitionTime|lastProbeTime|containerID)$`)

// status splits a status into facts. Of moments it keeps only that they are set.
func (n *normaliser) status(s v1.PodStatus) compare.Facts {
	return n.Normaliser.Facts(flatten("", s), dropped)
}

// stretches returns how a value of a pod's status changed until the case's manifests were
// removed. It leaves out "".
func (n *normaliser) stretches(c *CaseRecord, p *PodRecord, of func(*v1.PodStatus) string) []compare.Stretch {
	var out []compare.Stretch
	for i := range p.Seen {
		s := &p.Seen[i]
		if !s.From.Before(c.Gone) {
			break
		}
		what := of(&s.Status)
		if what == "" {
			continue
		}
		what = n.Text(what)
		from, to := s.From.Sub(c.Zero), s.To.Sub(c.Zero)
		if to > c.Gone.Sub(c.Zero) {
			to = c.Gone.Sub(c.Zero)
		}
		if last := len(out) - 1; last >= 0 && out[last].Is == what {
			out[last].To = to
			continue
		}
		out = append(out, compare.Stretch{Is: what, From: from, To: to})
	}
	return out
}
