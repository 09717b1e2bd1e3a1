package nft

import (
	"net/netip"
	"slices"
	"testing"
)

// TestOverlap_WiderRoute_IsNone: a wider route, such as that of a VPN, is no overlap: the route of
// Serve takes precedence.
func TestOverlap_WiderRoute_IsNone(t *testing.T) {
	t.Parallel()
	cidr := netip.MustParsePrefix("10.96.0.0/16")
	for route, want := range map[string][2]bool{ // overlaps, is wider
		"0.0.0.0/0":    {},
		"10.0.0.0/8":   {false, true},
		"10.96.0.0/16": {true, false},
		"10.96.7.0/24": {true, false},
		"10.97.0.0/16": {},
	} {
		all := []Route{{To: netip.MustParsePrefix(route), Device: "tun0"}, {To: cidr, Device: "lo", Own: true}}
		_, overlaps := Overlap(all, cidr)
		_, wider := Wider(all, cidr)
		if got := [2]bool{overlaps, wider}; got != want {
			t.Errorf("%s: %v, want %v", route, got, want)
		}
	}
}

// TestStale_ChangedRange_NamesTheOldRouteAlone: Stale returns no route of other programs.
func TestStale_ChangedRange_NamesTheOldRouteAlone(t *testing.T) {
	t.Parallel()
	old, now := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.112.0.0/16")
	all := []Route{{To: old, Device: "lo", Own: true}, {To: now, Device: "lo", Own: true}, {To: netip.MustParsePrefix("10.88.0.0/16"), Device: "br0"}}
	if got := Stale(all, []netip.Prefix{now, netip.MustParsePrefix("fd01::/112")}); !slices.Equal(got, []netip.Prefix{old}) {
		t.Errorf("%v", got)
	}
}

// TestRestore_NamesOfOtherFiles_AreNotTouched: a missing device is not an error either.
func TestRestore_NamesOfOtherFiles_AreNotTouched(t *testing.T) {
	t.Parallel()
	if err := Restore([]string{"..", ".", "", "../../ipv4", "gone-device0"}); err != nil {
		t.Error(err)
	}
}
