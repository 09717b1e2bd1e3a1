package apiserver

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// inbox holds the input for the loop since it last read it.
type inbox struct {
	reports map[pod.Key]pod.StatusReport
	// seen holds the newest state of each name at the server: at most one pod of a
	// name is there at a time.
	seen   map[pod.Key]sighting
	synced bool
}

// sighting is a pod as the server shows it.
type sighting struct {
	pod  *v1.Pod
	gone bool
	// brief: pod was created and deleted between two reads of the loop; the pod before
	// it was most likely deleted too.
	brief bool
}

func newInbox() inbox {
	return inbox{reports: make(map[pod.Key]pod.StatusReport), seen: make(map[pod.Key]sighting)}
}

// see stores the server's version. The deletion of one pod does not affect another of the same
// name.
func (i *inbox) see(p *v1.Pod, gone bool) {
	key := pod.KeyOf(p)
	was, ok := i.seen[key]
	if gone && ok && !was.gone && was.pod.UID != p.UID {
		return
	}
	i.seen[key] = sighting{p, gone, gone && ok && !was.gone}
}

// empty takes everything out.
func (s *Sink) empty() inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.inbox
	s.inbox = newInbox()
	s.inbox.synced = was.synced
	return was
}
