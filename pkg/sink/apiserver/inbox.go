package apiserver

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// inbox holds the input that the loop has not read yet.
type inbox struct {
	reports map[pod.Key]pod.StatusReport
	// seen holds the newest state of each name at the server, which has at most one pod of a
	// name at a time.
	seen   map[pod.Key]sighting
	synced bool
}

// sighting is a pod as the server shows it.
type sighting struct {
	pod  *v1.Pod
	gone bool
	// shortLived says that pod was created and deleted between two reads of the loop. The pod
	// that had the name before was most likely deleted, too.
	shortLived bool
}

func newInbox() inbox {
	return inbox{reports: make(map[pod.Key]pod.StatusReport), seen: make(map[pod.Key]sighting)}
}

// see stores the server's version of a pod. The deletion of one pod does not affect another of the
// same name.
func (i *inbox) see(p *v1.Pod, gone bool) {
	key := pod.KeyOf(p)
	was, ok := i.seen[key]
	if gone && ok && !was.gone && was.pod.UID != p.UID {
		return
	}
	i.seen[key] = sighting{p, gone, gone && ok && !was.gone}
}

// takeInbox empties the inbox, and returns its content.
func (s *Sink) takeInbox() inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.inbox
	s.inbox = newInbox()
	s.inbox.synced = was.synced
	return was
}
