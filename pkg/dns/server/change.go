package server

import (
	"net/netip"
	"slices"

	"github.com/nodectl/nodectl/pkg/dns"
)

// MaxRecords is how many records a Change may have. For more, the server gets the whole State.
const MaxRecords = 4096

// Change is the difference between two States.
type Change struct {
	Records dns.Change `json:"records"`
	// Serial, Known and Upstreams are the values of the second State.
	Serial    uint32           `json:"serial"`
	Known     bool             `json:"known"`
	Upstreams []netip.AddrPort `json:"upstreams"`
}

// Difference returns the difference between two States. ok is false if a server needs the whole second
// State.
func Difference(before, after *State) (c Change, ok bool) {
	if !sameZone(before, after) {
		return Change{}, false
	}
	c = Change{
		Records: dns.Difference(after.Domain, before.Services, after.Services),
		Serial:  after.Serial, Known: after.Known, Upstreams: after.Upstreams,
	}
	return c, c.Records.Len() <= MaxRecords
}

// sameZone reports whether the zones of two States have the same records without their Services.
func sameZone(a, b *State) bool {
	return a.Domain == b.Domain && slices.Equal(a.Ranges, b.Ranges) && slices.Equal(a.Servers, b.Servers)
}

// Same reports whether two States give the same answers, with the exception of the serial number.
// It does not look into Services whose pointers differ.
func (s *State) Same(o *State) bool {
	return sameZone(s, o) && s.Known == o.Known && slices.Equal(s.Services, o.Services) && slices.Equal(s.Upstreams, o.Upstreams)
}
