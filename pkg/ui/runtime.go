//go:build linux

package ui

import (
	"fmt"

	"github.com/nodectl/nodectl/pkg/bundle"
)

// RuntimeStatus is the answer of runtime status.
type RuntimeStatus struct {
	Document
	Running  bool   `json:"running"`
	Ready    bool   `json:"ready"`
	PID      int    `json:"pid"`
	Pods     int    `json:"pods"`
	Version  string `json:"version"`
	Endpoint string `json:"endpoint"`
	Root     string `json:"root"`
	RunDir   string `json:"runDir"`
	LogFile  string `json:"logFile"`
	Digest   string `json:"digest"`  // of the bundle it runs from
	Carried  string `json:"carried"` // digest of the bundle in this binary
}

// NewRuntimeStatus puts the bundled runtime's status into its document.
func NewRuntimeStatus(s bundle.Status) RuntimeStatus {
	return RuntimeStatus{
		Document: Document{APIVersion, "RuntimeStatus"},
		Running:  s.Running, Ready: s.Ready, PID: s.PID, Pods: s.Pods, Version: s.Version, Endpoint: s.Endpoint,
		Root: s.Root, RunDir: s.RunDir, LogFile: s.LogFile, Digest: s.Digest, Carried: s.Carried,
	}
}

// RuntimeStatus returns the bundled runtime's status as text, one property a line.
func (v *View) RuntimeStatus(s RuntimeStatus) string {
	state := cell{"not running", faint}
	switch {
	case s.Ready:
		state = cell{fmt.Sprintf("running, pid %d", s.PID), good}
	case s.Running:
		state = cell{fmt.Sprintf("running, pid %d, but not responding", s.PID), bad}
	}
	carried := s.Carried
	if carried == "" {
		carried = "none (this is the slim binary)"
	}
	var rows [][]cell
	for _, r := range []struct {
		name  string
		value cell
	}{
		{"state", state},
		{"containerd", cell{text: s.Version}},
		{"pods", cell{text: fmt.Sprint(s.Pods)}},
		{"endpoint", cell{text: s.Endpoint}},
		{"root", cell{text: s.Root}},
		{"log", cell{text: s.LogFile}},
		{"bundle", cell{text: s.Digest}},
		{"carried", cell{text: carried}},
	} {
		if r.value.text == "" {
			r.value.text = "-"
		}
		r.value.text = Clean(r.value.text)
		rows = append(rows, []cell{{text: r.name, tone: faint}, r.value})
	}
	return lines(v.columns("", []int{2}, rows))
}
