// Package userns hands out blocks of the node's user IDs to pods that are not to
// have the node's own (hostUsers: false, C-1.42).
//
// The engine's workers ask it before anything of a pod is made, and give the block
// back when nothing is left of the pod. What a pod has stands in
// <root>/pods/<uid>/userns, in the kubelet's form, and is on the disk before it is
// said: another agent gives the pod the same block.
//
// The one rule: no two pods ever have an ID in common. What cannot be read is no
// reason to give anything; it is an error until it is mended.
package userns

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nodectl/nodectl/pkg/pod"
)

// DefaultLength is how many IDs a pod gets where the configuration does not say.
const DefaultLength = 65536

// Config is what Blocks have to know.
type Config struct {
	// Root is the agent's directory.
	Root string
	// Length is how many IDs a pod gets, a multiple of 65536; 0 is DefaultLength.
	Length uint32
	// MaxPods is how many pods must have room at once.
	MaxPods int
	// SubUID and SubGID are the files that give users ranges of IDs; empty is
	// /etc/subuid and /etc/subgid.
	SubUID, SubGID string
}

// Blocks hands out blocks of user IDs. Its methods may be called from many
// goroutines. It is ready with the first call: what is wrong on the node is said to
// the pods that want a block, and to no others.
type Blocks struct {
	cfg Config

	mu     sync.Mutex // guards all below
	have   map[string]pod.Users
	wrong  map[string]error // of files that cannot be believed, by UID
	space  span             // the whole range
	loaded bool             // have and wrong are what the disk has
}

// New returns the blocks of an agent. It reads nothing yet.
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

// Give returns the block of the pod with uid: the one it has, or a new one, which
// has then reached the disk.
func (b *Blocks) Give(uid string) (*pod.Users, error) {
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
		return b.give(uid)
	}
	if !b.written(uid) { // somebody has cleared up; what runs still has them
		if err := b.write(uid, users); err != nil {
			return nil, fmt.Errorf("write down the users of pod %s: %w", uid, err)
		}
	}
	return &users, nil
}

// give gives the pod the first block that nobody has. The mutex is held.
func (b *Blocks) give(uid string) (*pod.Users, error) {
	for _, other := range slices.Sorted(maps.Keys(b.wrong)) {
		if _, known := b.have[other]; !known { // its block might be any
			return nil, fmt.Errorf("no users can be given: %w", b.wrong[other])
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
		return nil, fmt.Errorf("all %d blocks of users are given", b.space.length/b.cfg.Length)
	}
	users := pod.Users{HostID: uint32(next), Length: b.cfg.Length}
	if err := b.write(uid, users); err != nil {
		b.loaded = false // they may be on the disk all the same
		return nil, fmt.Errorf("write down the users of pod %s: %w", uid, err)
	}
	b.have[uid] = users
	return &users, nil
}

// Take gives the block of the pod with uid back. A pod that has none is no error.
func (b *Blocks) Take(uid string) error {
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

// load reads what every pod on the disk has; what was known before stands. The
// mutex is held.
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
