package cgroup

import "fmt"

// ForeignError says that a cgroup is somebody else's.
type ForeignError struct {
	Dir    string
	Holds  string // what is in one above pods
	Pod    bool   // it has the name of a pod of ours
	Theirs bool   // another nodectl's
}

func (e *ForeignError) Error() string {
	switch {
	case e.Theirs:
		return fmt.Sprintf("cgroup %s belongs to another nodectl: give this one a cgroup of its own, as --cgroup-root /nodectl", e.Dir)
	case e.Pod:
		return fmt.Sprintf("cgroup %s is not nodectl's: stop whoever made it and remove it", e.Dir)
	}
	return fmt.Sprintf("cgroup %s is not nodectl's, and %s is in it: give nodectl a cgroup of its own, as --cgroup-root /nodectl, "+
		"or stop the kubelet and remove it", e.Dir, e.Holds)
}
