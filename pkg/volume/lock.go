package volume

import "sync"

// nameLocks are locks by name. It keeps only those that are held or waited for.
type nameLocks struct {
	mu    sync.Mutex // guards locks, for the length of one map access
	locks map[string]*nameLock
}

type nameLock struct {
	sync.Mutex
	users int // guarded by nameLocks.mu
}

// lock locks a name and returns the function that unlocks it.
func (n *nameLocks) lock(name string) (unlock func()) {
	n.mu.Lock()
	l := n.locks[name]
	if l == nil {
		if n.locks == nil {
			n.locks = map[string]*nameLock{}
		}
		l = &nameLock{}
		n.locks[name] = l
	}
	l.users++
	n.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		n.mu.Lock()
		defer n.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(n.locks, name)
		}
	}
}
