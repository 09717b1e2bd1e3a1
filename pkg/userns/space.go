package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// owners are the users whose subordinate IDs are for pods; the first one with any counts.
var owners = [...]string{"nodectl", "kubelet"}

// span is a range of IDs of the node.
type span struct{ first, length uint32 }

func (s span) end() uint64 { return uint64(s.first) + uint64(s.length) }

// holds reports whether u is a block in s.
func (s span) holds(u pod.Users) bool {
	return u.HostID >= s.first && uint64(u.HostID)+uint64(u.Length) <= s.end() && (u.HostID-s.first)%u.Length == 0
}

func alignUp(n uint64, to uint32) uint64 { return (n + uint64(to) - 1) / uint64(to) * uint64(to) }

// space is the range of all blocks (C-1.42.1): the subordinate IDs of one of owners, which
// must be equal in both files, else all IDs after the node's first block.
func (c Config) space() (span, error) {
	if c.Length%DefaultLength != 0 {
		return span{}, fmt.Errorf("a block of %d users is not a multiple of %d", c.Length, DefaultLength)
	}
	uids, err := c.subordinate(c.SubUID)
	if err != nil {
		return span{}, err
	}
	gids, err := c.subordinate(c.SubGID)
	if err != nil {
		return span{}, err
	}
	for _, name := range owners {
		u, g := uids[name], gids[name]
		if len(u) == 0 && len(g) == 0 {
			continue
		}
		if len(u) != 1 || len(g) != 1 || u[0] != g[0] {
			return span{}, fmt.Errorf("%s and %s must give user %s exactly one range, the same in both", c.SubUID, c.SubGID, name)
		}
		return u[0], c.check(u[0], name)
	}
	// The last block has the ID that means "none".
	s := span{first: c.Length, length: (math.MaxUint32/c.Length - 1) * c.Length}
	return s, c.check(s, "")
}

func (c Config) check(s span, name string) error {
	of := "the range of users"
	if name != "" {
		of += " of " + name
	}
	switch {
	case s.first%c.Length != 0 || s.length%c.Length != 0:
		return fmt.Errorf("%s, %d IDs from %d on, is not made of blocks of %d", of, s.length, s.first, c.Length)
	case s.first == 0:
		return fmt.Errorf("%s starts with ID 0, the node's root", of)
	case s.end() > math.MaxUint32:
		return fmt.Errorf("%s, %d IDs from %d on, goes past the last ID", of, s.length, s.first)
	case uint64(s.length/c.Length) < uint64(max(c.MaxPods, 1)):
		return fmt.Errorf("%s has %d blocks of %d, and there may be %d pods", of, s.length/c.Length, c.Length, c.MaxPods)
	}
	return nil
}

// subordinate reads the ranges of owners in a file with lines "name:first:count".
func (c Config) subordinate(path string) (map[string][]span, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	of := map[string][]span{}
	for line := range strings.Lines(string(text)) {
		words := strings.Split(strings.TrimSpace(line), ":")
		for _, name := range owners {
			if words[0] != name {
				continue
			}
			if len(words) != 3 {
				return nil, fmt.Errorf("%s: %q is not a range of user %s", path, strings.TrimSpace(line), name)
			}
			first, err := strconv.ParseUint(words[1], 10, 32)
			count, err2 := strconv.ParseUint(words[2], 10, 32)
			if errors.Join(err, err2) != nil || count == 0 {
				return nil, fmt.Errorf("%s: %q is not a range of user %s", path, strings.TrimSpace(line), name)
			}
			of[name] = append(of[name], span{uint32(first), uint32(count)})
		}
	}
	return of, nil
}
