package http

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/source"
)

const (
	// longestHold is the longest time for which the version in force is held against an
	// earlier one.
	longestHold = 5 * time.Minute
	// calm is how long nothing but the version in force is served before earlier
	// ones are forgotten.
	calm = 5 * time.Minute
	// remembered is how many versions are remembered: more than a server is likely to
	// alternate between.
	remembered = 32
)

// version identifies the content of a document, not its bytes: a time stamp in each
// answer, or another order of the same pods, is no new version.
type version [sha256.Size]byte

// versionOf returns the version that f is.
func versionOf(f source.File) version {
	var lines []string
	for _, p := range f.Pods {
		lines = append(lines, fmt.Sprintf("pod %q %q %q\n", p.Namespace, p.Name, p.Hash))
	}
	for _, o := range f.Objects {
		lines = append(lines, fmt.Sprintf("object %q %q %q %q\n", o.Kind, o.Namespace, o.Name, o.Hash))
	}
	for _, k := range f.Broken {
		lines = append(lines, fmt.Sprintf("broken %q %q\n", k.Namespace, k.Name))
	}
	for _, k := range f.BrokenObjects {
		lines = append(lines, fmt.Sprintf("broken %q %q %q\n", k.Kind, k.Namespace, k.Name))
	}
	slices.Sort(lines)
	sum := sha256.New()
	for _, l := range lines {
		sum.Write([]byte(l))
	}
	return version(sum.Sum(nil))
}

// harmless reports whether f changes none of the last good set, so that it may be
// yielded each time.
func harmless(f source.File) bool { return f.Incomplete && len(f.Pods)+len(f.Objects) == 0 }

// pacer decides when a served version takes effect (F63). A version that was not in
// force lately does at once, and so does the first return to an earlier one, which is a
// rollback. From then on the version in force is held, for two polls at first and
// longer with every return:
//
//	served              returns   in force for   then
//	the one in force    any       any            after calm, earlier versions are forgotten
//	a new one           any       any            in force
//	an earlier one      0         any            in force, one return more
//	an earlier one      n > 0     < hold(n)      held, and said
//	an earlier one      n > 0     ≥ hold(n)      in force, one return more
//
// It belongs to the goroutine of its poller.
type pacer struct {
	poll    time.Duration   // the time between two polls
	arrived map[version]int // how often each version came after another one
	last    version         // the last served content
	force   version         // the content in force
	since   time.Time       // since when it is
	alone   time.Time       // since when nothing else was served
	returns int
	held    bool // something was held since force is
}

// alternation is the error of a source that alternates between versions.
type alternation struct {
	versions int
	hold     time.Duration
}

func (e *alternation) Error() string {
	return fmt.Sprintf("content alternates between %d versions; the one in use is kept for at least %v", e.versions, e.hold)
}

// serve notes that v is served at now and decides which version is in force. The error
// says that content alternates. It stays the same until the hold grows, and is nil once
// another version took effect or no other was served for as long as the hold.
func (p *pacer) serve(v version, now time.Time) error {
	if p.arrived == nil {
		p.forget(v)
		p.enforce(v, now)
		return nil
	}
	known := p.arrived[v] > 0
	if v != p.last {
		p.arrived[v]++
		p.last = v
	}
	if v == p.force {
		return p.settle(now)
	}
	p.alone = now
	if known && p.returns > 0 && now.Sub(p.since) < p.hold() {
		p.held = true
		return p.alternates()
	}
	if known {
		p.returns++
	}
	if len(p.arrived) > remembered {
		p.forget(v)
	}
	p.enforce(v, now)
	return nil
}

// settle handles the case that the version in force is served.
func (p *pacer) settle(now time.Time) error {
	quiet := now.Sub(p.alone)
	if quiet >= calm {
		p.forget(p.force)
		p.returns = 0
	}
	p.held = p.held && quiet < min(p.hold(), calm)
	if p.held {
		return p.alternates()
	}
	return nil
}

func (p *pacer) enforce(v version, now time.Time) {
	p.force, p.since, p.alone, p.held = v, now, now, false
}

// forget forgets every version but v.
func (p *pacer) forget(v version) {
	p.arrived, p.last = map[version]int{v: 1}, v
}

// hold returns how long the version in force stays at least.
func (p *pacer) hold() time.Duration {
	hold := p.poll
	for range p.returns {
		if hold = 2 * hold; hold >= longestHold {
			return longestHold
		}
	}
	return hold
}

func (p *pacer) alternates() error {
	e := &alternation{hold: p.hold()}
	for _, n := range p.arrived {
		if n > 1 {
			e.versions++
		}
	}
	return e
}
