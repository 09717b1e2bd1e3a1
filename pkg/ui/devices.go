package ui

import (
	"cmp"
	"fmt"
	"strings"
)

// DeviceList is the answer of get devices.
type DeviceList struct {
	Document
	Items []DeviceResource `json:"items"`
}

// DeviceResource is an extended resource that a device plugin serves or served.
type DeviceResource struct {
	Name      string   `json:"name"`
	Connected bool     `json:"connected"` // the plugin is connected
	Socket    string   `json:"socket,omitempty"`
	Devices   []Device `json:"devices"`
}

// Device is a device of a plugin, with its health and the containers that have it.
type Device struct {
	ID        string       `json:"id"`
	Health    string       `json:"health"`
	NUMANodes []int        `json:"numaNodes,omitempty"`
	UsedBy    []DeviceUser `json:"usedBy,omitempty"`
}

// DeviceUser is a container that has a device.
type DeviceUser struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
}

// Devices returns the table of get devices, or "" without resources. It has a row for each device,
// and one for each resource without devices.
func (v *View) Devices(d DeviceList, wide bool) string {
	if len(d.Items) == 0 {
		return ""
	}
	header := []cell{{text: "RESOURCE"}, {text: "PLUGIN"}, {text: "DEVICE"}, {text: "HEALTH"}, {text: "USED BY"}}
	if wide {
		header = append(header, cell{text: "NUMA"}, cell{text: "SOCKET"})
	}
	rows := [][]cell{header}
	for _, r := range d.Items {
		plugin := cell{"away", bad}
		if r.Connected {
			plugin = cell{"connected", good}
		}
		devices := r.Devices
		if len(devices) == 0 {
			devices = []Device{{}}
		}
		for _, one := range devices {
			tone := good
			if one.Health != "Healthy" {
				tone = change
			}
			var users []string
			for _, u := range one.UsedBy {
				users = append(users, u.Namespace+"/"+u.Pod+"/"+u.Container)
			}
			row := []cell{{text: r.Name}, plugin, {text: one.ID}, {one.Health, tone}, {text: strings.Join(users, ",")}}
			if wide {
				row = append(row, cell{text: strings.Trim(fmt.Sprint(one.NUMANodes), "[]")}, cell{text: r.Socket})
			}
			for i := range row {
				row[i].text = cmp.Or(Clean(row[i].text), "-")
			}
			rows = append(rows, row)
		}
	}
	return lines(v.columns("", []int{3}, rows))
}

// DeviceNames returns the resources of devices, a line each.
func DeviceNames(d DeviceList) string {
	var all []string
	for _, r := range d.Items {
		all = append(all, Clean(r.Name))
	}
	return lines(all)
}
