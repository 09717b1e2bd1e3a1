package ui

import (
	"io"
	"testing"
)

// The table has a row for each device, and one for a resource without devices. Names that a plugin
// chose cannot act on the terminal.
func TestDevices_ResourcesOfPlugins_OneRowForEachDevice(t *testing.T) {
	t.Parallel()
	d := DeviceList{Items: []DeviceResource{
		{Name: "x.com/gpu", Connected: true, Socket: "/k/gpu.sock", Devices: []Device{
			{ID: "a\x1b[2J", Health: "Healthy", NUMANodes: []int{0, 1}, UsedBy: []DeviceUser{{"shop", "web", "main"}, {"shop", "web", "init"}}},
			{ID: "b", Health: "Unhealthy"},
		}},
		{Name: "x.com/nic", Devices: nil},
	}}
	v := New(io.Discard, Screen{})
	for wide, want := range map[bool]string{
		false: `RESOURCE    PLUGIN      DEVICE     HEALTH      USED BY
x.com/gpu   connected   a\x1b[2J   Healthy     shop/web/main,shop/web/init
x.com/gpu   connected   b          Unhealthy   -
x.com/nic   away        -          -           -
`,
		true: `RESOURCE    PLUGIN      DEVICE     HEALTH      USED BY                       NUMA   SOCKET
x.com/gpu   connected   a\x1b[2J   Healthy     shop/web/main,shop/web/init   0 1    /k/gpu.sock
x.com/gpu   connected   b          Unhealthy   -                             -      /k/gpu.sock
x.com/nic   away        -          -           -                             -      -
`,
	} {
		if got := v.Devices(d, wide); got != want {
			t.Errorf("wide %t:\n%s\nwant:\n%s", wide, got, want)
		}
	}
	if got := DeviceNames(d); got != "x.com/gpu\nx.com/nic\n" {
		t.Errorf("names %q", got)
	}
	if got := v.Devices(DeviceList{}, false); got != "" {
		t.Errorf("without resources: %q", got)
	}
}
