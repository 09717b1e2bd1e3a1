package bundle

import (
	"context"
	"path/filepath"
)

// Status is what there is to say of the bundled runtime under one root
// directory.
type Status struct {
	Running  bool   // containerd runs
	Ready    bool   // and answers CRI
	PID      int    // of containerd; 0 when it does not run
	Endpoint string // its CRI endpoint, running or not
	Version  string // of containerd, as CRI tells it; "" when it does not answer
	Digest   string // of the bundle it runs from; "" when it does not run
	Root     string // images, layers, log
	RunDir   string // sockets, and what does not survive a reboot
	LogFile  string // containerd's log
	Pods     int    // sandboxes that run; shims, when containerd does not answer
	Carried  string // digest of the bundle this binary carries; "" in the slim one
}

// Status looks at the bundled runtime and changes nothing. A damaged bundle in this
// binary is an error, and so is a process that may be the runtime.
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
		return s, nil // it runs and does not answer, which is what s says
	}
	s.Ready, s.Version = true, v.GetRuntimeVersion()
	if ready, err := c.sandboxes(ctx, true); err == nil {
		s.Pods = len(ready)
	}
	return s, nil
}
