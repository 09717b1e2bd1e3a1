package http

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/source"
)

const (
	// longestHold is the longest time for which the version in force stays although the server
	// serves an earlier one.
	longestHold = 5 * time.Minute
	// calm is how long the server has to serve only the version in force before the pacer
	// forgets earlier ones.
	calm = 5 * time.Minute
	// remembered is how many versions the pacer remembers. A server hardly alternates between more.
	remembered = 32
)

// version identifies the content of a document, not its bytes. An answer with another time
// stamp, or with the same pods in another order, has the same version.
type version [sha256.Size]byte

// versionOf returns the version of f.
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

// harmless reports whether f changes nothing in the last good set: the source may yield it at each poll.
func harmless(f source.File) bool { return f.Incomplete && len(f.Pods)+len(f.Objects) == 0 }

// pacer decides when a version that the server serves takes effect (F63). A version that the pacer
// does not remember takes effect at once. So does the first return to an earlier version, which is
// a rollback. From then on the pacer holds the version in force against earlier ones: for two polls
// at first, and longer after every return.
//
//	served version      returns   in force for   then
//	the one in force    any       any            stays; after calm, the pacer forgets earlier ones
//	a new one           any       any            takes effect
//	an earlier one      0         any            takes effect, one return more
//	an earlier one      n > 0     < hold         has no effect; serve returns an error
//	an earlier one      n > 0     ≥ hold         takes effect, one return more
//
// Only the goroutine of its poller uses it.
type pacer struct {
	poll    time.Duration   // the time between two polls
	arrived map[version]int // how often each version followed another one
	last    version         // the last served version
	force   version         // the version in force
	since   time.Time       // when force took effect
	alone   time.Time       // since this time the server has served only force
	returns int             // how often an earlier version took effect again
	held    bool            // since force took effect, the pacer has ignored an earlier version
}

// alternation is the error of a source that alternates between versions.
type alternation struct {
	versions int
	hold     time.Duration
}

func (e *alternation) Error() string {
	return fmt.Sprintf("content alternates between %d versions; the one in use is kept for at least %v", e.versions, e.hold)
}

// serve notes that the server serves v at now, and decides which version is in force. An error says that
// content alternates. Its text changes only when the hold grows. The error is nil again when another
// version takes effect, or when the server has served only the version in force during the hold.
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
		return p.serveCurrent(now)
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

// serveCurrent handles the case that the server serves the version in force.
func (p *pacer) serveCurrent(now time.Time) error {
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

// hold returns the least time for which the version in force stays although the server serves an earlier
// one.
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
