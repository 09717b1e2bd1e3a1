// Package userns allocates blocks of the node's user IDs to pods with a user namespace of
// their own (hostUsers: false, C-1.42).
//
// The engine's workers allocate a block before they make anything of a pod, and release it
// when nothing of the pod is left. The block is in <root>/pods/<uid>/userns, in the
// kubelet's format, and is synced before it is returned, so that another agent gives the
// pod the same block.
//
// No two pods ever have an ID in common. If a file cannot be read, the package allocates
// nothing until the file is repaired.
package userns

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nodectl/nodectl/pkg/pod"
)

// DefaultLength is how many IDs a pod gets by default.
const DefaultLength = 65536

// Config is the configuration of Blocks.
type Config struct {
	// Root is the agent's directory.
	Root string
	// Length is how many IDs a pod gets, a multiple of 65536; 0 is DefaultLength.
	Length uint32
	// MaxPods is the number of pods for which there must be blocks.
	MaxPods int
	// SubUID and SubGID are the files with users' ranges of IDs; empty is /etc/subuid and
	// /etc/subgid.
	SubUID, SubGID string
}

// Blocks allocates blocks of user IDs. Its methods may be called from many goroutines. It
// reads the disk with the first call: a fault of the node is reported only to pods that
// need a block.
type Blocks struct {
	cfg Config

	mu     sync.Mutex // guards all fields below
	have   map[string]pod.Users
	wrong  map[string]error // errors of invalid files, by UID
	space  span             // the whole range
	loaded bool             // have and wrong were read from the disk
}

// New returns the blocks of an agent. It does no I/O.
func New(cfg Config) *Blocks {
	if cfg.Length == 0 {
		cfg.Length = DefaultLength
	}
	if cfg.SubUID == "" {
		cfg.SubUID = "/etc/subuid"
	}
	if cfg.SubGID == "" {
		cfg.SubGID = "/etc/subgid"
	}
	return &Blocks{cfg: cfg}
}

// Allocate returns the block of the pod with uid: its existing one, or a new one, which is
// synced before.
func (b *Blocks) Allocate(uid string) (*pod.Users, error) {
	if err := checkUID(uid); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.loaded || len(b.wrong) > 0 {
		if err := b.load(); err != nil {
			return nil, err
		}
	}
	if err := b.wrong[uid]; err != nil {
		return nil, err
	}
	users, ok := b.have[uid]
	if !ok {
		return b.allocate(uid)
	}
	if !b.written(uid) { // the file was removed; running containers still have the block
		if err := b.write(uid, users); err != nil {
			return nil, fmt.Errorf("record the users of pod %s: %w", uid, err)
		}
	}
	return &users, nil
}

// allocate allocates the first free block to the pod. The caller holds the mutex.
func (b *Blocks) allocate(uid string) (*pod.Users, error) {
	for _, other := range slices.Sorted(maps.Keys(b.wrong)) {
		if _, known := b.have[other]; !known { // its block is unknown, and might be any
			return nil, fmt.Errorf("cannot allocate users: %w", b.wrong[other])
		}
	}
	taken := slices.SortedFunc(maps.Values(b.have), func(x, y pod.Users) int { return int(int64(x.HostID) - int64(y.HostID)) })
	next := uint64(b.space.first)
	for _, t := range taken {
		if uint64(t.HostID) >= next+uint64(b.cfg.Length) {
			break
		}
		next = max(next, alignUp(uint64(t.HostID)+uint64(t.Length), b.cfg.Length))
	}
	if next+uint64(b.cfg.Length) > b.space.end() {
		return nil, fmt.Errorf("all %d blocks of users are allocated", b.space.length/b.cfg.Length)
	}
	users := pod.Users{HostID: uint32(next), Length: b.cfg.Length}
	if err := b.write(uid, users); err != nil {
		b.loaded = false // the file may exist in spite of the error
		return nil, fmt.Errorf("record the users of pod %s: %w", uid, err)
	}
	b.have[uid] = users
	return &users, nil
}

// Release releases the block of the pod with uid. A pod without one is no error.
func (b *Blocks) Release(uid string) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.remove(uid); err != nil {
		return fmt.Errorf("remove the users of pod %s: %w", uid, err)
	}
	delete(b.have, uid)
	delete(b.wrong, uid)
	return nil
}

// load reads the blocks of all pods on the disk; known ones stay. The caller holds the
// mutex.
func (b *Blocks) load() error {
	b.loaded = false
	space, err := b.cfg.space()
	if err != nil {
		return err
	}
	have, wrong, err := b.readAll()
	if err != nil {
		return fmt.Errorf("read the users of pods: %w", err)
	}
	for uid, u := range b.have {
		if b.wrong[uid] == nil {
			have[uid] = u
			delete(wrong, uid)
		}
	}
	owner := map[uint32]string{}
	for _, uid := range slices.Sorted(maps.Keys(have)) {
		u := have[uid]
		switch first, shared := owner[u.HostID]; {
		case u.Length != b.cfg.Length || !space.holds(u):
			wrong[uid] = fmt.Errorf("pod %s has the users %d to %d, which are not one of this node's blocks of %d from %d on",
				uid, u.HostID, uint64(u.HostID)+uint64(u.Length)-1, b.cfg.Length, space.first)
		case shared:
			err := fmt.Errorf("the pods %s and %s have the same users, %d to %d", first, uid, u.HostID, u.HostID+u.Length-1)
			wrong[first], wrong[uid] = err, err
		default:
			owner[u.HostID] = uid
		}
	}
	b.space, b.have, b.wrong, b.loaded = space, have, wrong, true
	return nil
}

var errUID = errors.New("not the UID of a pod")
