package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// A normaliser replaces what differs between two runs of the same agent by a fixed word.
type normaliser struct {
	paths []string // longest first, each followed by its replacement
}

var (
	idHex     = regexp.MustCompile(`[0-9a-f]{64}`)
	podHex    = regexp.MustCompile(`/pod([0-9a-f]{32}|[0-9a-f-]{36})\b`) // cgroups
	uidHex    = regexp.MustCompile(`[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	message   = regexp.MustCompile(`(/containers/[^/ ]+)/([0-9a-f]{8}|[0-9]+)\b`) // termination logs
	clockTime = regexp.MustCompile(`\b\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\b`)
	timestamp = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\b`)
	volume    = regexp.MustCompile(`\.\.\d{4}(_\d\d){5}\.\d+`) // what ..data points to
	instance  = regexp.MustCompile(`(\$ROOT/pods/\$UID)/\d+/`) // nodectl keeps those of one UID apart
	rotated   = regexp.MustCompile(`\.\d{8}-\d{6}\b`)          // logs
	nanos     = regexp.MustCompile(`\b1\d{18}\b`)
	logLine   = regexp.MustCompile(`(?m)^\S+ (stdout|stderr) [FP] `)
)

func newNormaliser(r *Recording) *normaliser {
	n := &normaliser{}
	var paths []string
	for p := range r.Paths {
		paths = append(paths, p)
	}
	slices.SortFunc(paths, func(a, b string) int { return len(b) - len(a) })
	for _, p := range paths {
		n.paths = append(n.paths, p, r.Paths[p])
	}
	return n
}

// text normalises any text.
func (n *normaliser) text(s string) string {
	s = strings.NewReplacer(n.paths...).Replace(s)
	s = idHex.ReplaceAllString(s, "$$ID")
	s = podHex.ReplaceAllString(s, "/pod$$UID")
	s = uidHex.ReplaceAllString(s, "$$UID")
	s = instance.ReplaceAllString(s, "$1/")
	s = message.ReplaceAllString(s, "$1/$$RANDOM")
	s = clockTime.ReplaceAllString(s, "$$TIME")
	s = timestamp.ReplaceAllString(s, "$$TIME")
	s = volume.ReplaceAllString(s, "..$$TIME")
	s = rotated.ReplaceAllString(s, ".$$TIME")
	s = nanos.ReplaceAllString(s, "$$NS")
	return subnetAddress.ReplaceAllString(s, "$$IP")
}

var subnetAddress = regexp.MustCompile(`\$SUBNET\.\d+`)

func (n *normaliser) facts(f Facts) Facts {
	out := Facts{}
	for k, v := range f {
		if users.MatchString(k) {
			v = block(v)
		}
		out[n.text(k)] = n.text(v)
	}
	return out
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
		out = append(out, n.text(strings.TrimRight(l, "\n")))
	}
	slices.Sort(out)
	return out
}

// log returns a container's log without the times in it.
func (n *normaliser) log(s string) string { return n.text(logLine.ReplaceAllString(s, "$1 ")) }

// dropped are the values of a status that are moments or names of one run.
var dropped = regexp.MustCompile(`(startTime|startedAt|finishedAt|lastTransitionTime|lastProbeTime|containerID)$`)

// status splits a status into facts. Of moments it keeps only that they are set.
func (n *normaliser) status(s v1.PodStatus) Facts {
	facts := n.facts(flatten("", s))
	for k := range facts {
		if dropped.MatchString(k) {
			facts[k] = "set"
		}
	}
	return facts
}

// A stretch is how long a value stayed the same.
type stretch struct {
	what     string
	from, to time.Duration // since the case began
}

func (s stretch) length() time.Duration { return s.to - s.from }

// stretches returns how a value of a pod's status changed until the case's manifests were
// removed. It leaves out "".
func (n *normaliser) stretches(c *CaseRecord, p *PodRecord, of func(*v1.PodStatus) string) []stretch {
	var out []stretch
	for i := range p.Seen {
		s := &p.Seen[i]
		if !s.From.Before(c.Gone) {
			break
		}
		what := of(&s.Status)
		if what == "" {
			continue
		}
		what = n.text(what)
		from, to := s.From.Sub(c.Zero), s.To.Sub(c.Zero)
		if to > c.Gone.Sub(c.Zero) {
			to = c.Gone.Sub(c.Zero)
		}
		if last := len(out) - 1; last >= 0 && out[last].what == what {
			out[last].to = to
			continue
		}
		out = append(out, stretch{what, from, to})
	}
	return out
}
