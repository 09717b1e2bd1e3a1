package bundle

import (
	"context"
	"path/filepath"
)

// Status is the status of the bundled runtime under one root directory.
type Status struct {
	Running  bool   // containerd runs
	Ready    bool   // and answers CRI
	PID      int    // of containerd; 0 when it does not run
	Endpoint string // its CRI endpoint, running or not
	Version  string // of containerd, from CRI; "" if it does not answer
	Digest   string // of the bundle it runs from; "" when it does not run
	Root     string // images, layers, log
	RunDir   string // sockets, and files that do not survive a reboot
	LogFile  string // containerd's log
	Pods     int    // running sandboxes; shims, if containerd does not answer
	Carried  string // digest of the bundle in this binary; "" in the slim one
}

// Status reads the state of the bundled runtime. It fails if the bundle in this binary is
// damaged, or if a process may be the runtime and is not recognised.
func (r *Runtime) Status(ctx context.Context) (Status, error) {
	s := Status{Endpoint: r.Endpoint(), Root: r.root, RunDir: r.run, LogFile: r.LogFile()}
	m, _, err := Embedded()
	if err != nil {
		return s, err
	}
	s.Carried = m.ID
	shims, err := r.shims()
	s.Pods = len(shims)
	if err != nil {
		return s, err
	}
	p, ok, err := r.find()
	if !ok {
		return s, err
	}
	s.Running, s.PID = true, p.pid
	if p.dir != "" {
		s.Digest = filepath.Base(p.dir)
	}
	if r.programs != "" && p.dir == r.programs {
		if m, err := r.manifestAt(p.dir); err == nil {
			s.Digest = m.ID
		}
	}
	c, err := dial(r.Endpoint())
	if err != nil {
		return s, err
	}
	defer c.Close()
	v, err := c.version(ctx)
	if err != nil {
		return s, nil // s says that it runs and does not answer
	}
	s.Ready, s.Version = true, v.GetRuntimeVersion()
	if ready, err := c.sandboxes(ctx, true); err == nil {
		s.Pods = len(ready)
	}
	return s, nil
}
