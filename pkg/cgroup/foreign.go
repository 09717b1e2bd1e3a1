package cgroup

import "fmt"

// ForeignError says that a cgroup belongs to another program.
type ForeignError struct {
	Dir    string
	Holds  string // if it is above the pods' cgroups: a process or cgroup in it
	Pod    bool   // it has the name of the cgroup of a pod of ours
	Theirs bool   // it belongs to another nodectl
}

func (e *ForeignError) Error() string {
	switch {
	case e.Theirs:
		return e.Conflict() + ": set another cgroup for this one, for example --cgroup-root /nodectl"
	case e.Pod:
		return e.Conflict() + ": stop the program that made it and remove it"
	}
	return e.Conflict() + ": set another cgroup for nodectl, for example --cgroup-root /nodectl, or stop the kubelet and remove this one"
}

// Conflict returns the text of the error without the remedy.
func (e *ForeignError) Conflict() string {
	switch {
	case e.Theirs:
		return fmt.Sprintf("cgroup %s belongs to another nodectl", e.Dir)
	case e.Pod:
		return fmt.Sprintf("cgroup %s is not nodectl's", e.Dir)
	}
	return fmt.Sprintf("cgroup %s is not nodectl's, and %s is in it", e.Dir, e.Holds)
}

// Foreign returns a *ForeignError if a cgroup above the pods' cgroups belongs to another program: then
// each Ensure fails with this error. Another error says that the cgroups cannot be read. Foreign
// changes nothing.
func (c *Cgroups) Foreign() error {
	t, err := c.ask()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range t.tiers() {
		if _, _, err := c.sortUnused(t, n); err != nil {
			return err
		}
	}
	return nil
}
