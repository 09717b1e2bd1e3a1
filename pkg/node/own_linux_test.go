package node

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

// TestC_1_25_2_OwnAddressesAreThoseOfTheDevices: one read of all addresses gives the same result as
// one read for each device.
//
// Shows: C-1.25.2
func TestC_1_25_2_OwnAddressesAreThoseOfTheDevices(t *testing.T) {
	t.Parallel()
	want := func() []netip.Addr {
		devices, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		var all []netip.Addr
		for _, d := range devices {
			addrs, err := d.Addrs()
			if err != nil || d.Flags&net.FlagUp == 0 || d.Flags&net.FlagLoopback != 0 {
				continue
			}
			for _, a := range addrs {
				if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
					ip, _ := netip.AddrFromSlice(n.IP)
					all = append(all, ip.Unmap())
				}
			}
		}
		slices.SortFunc(all, netip.Addr.Compare)
		return all
	}
	for range 20 { // other tests make devices and take them away
		before := want()
		got, err := ownIPs()
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(before, want()) {
			continue
		}
		if !slices.Equal(got, before) {
			t.Errorf("own addresses %v, want %v", got, before)
		}
		return
	}
	t.Error("the machine's devices never stood still")
}
