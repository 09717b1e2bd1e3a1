package etcd

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/nodectl/nodectl/pkg/pod"
)

// known is the state of the keys after every event up to a revision. It belongs to one
// goroutine.
type known struct {
	cluster  uint64
	revision int64 // 0: nothing was read yet
	keys     map[string]keyState
	bytes    int // of all keys' values
}

// The limits of one source. Without them, a user who may write keys below the prefix, but has no rights on
// the node, could fill the agent's memory. No node runs a tenth of that many pods.
const (
	mostKeys  = 50_000
	mostBytes = 256 << 20
)

var errTooMuch = fmt.Errorf("the keys below the prefix exceed the limit of %d keys or %d MiB", mostKeys, mostBytes>>20)

// tooMuch reports whether the keys exceed the limits.
func (k *known) tooMuch() bool { return len(k.keys) > mostKeys || k.bytes > mostBytes }

// keyState is one key's value.
type keyState struct {
	modified int64
	sum      [sha256.Size]byte
	bytes    int
}

// listing is all keys at one revision, in byte order, without values.
type listing struct {
	cluster  uint64
	revision int64
	keys     []listed
}

type listed struct {
	key      string
	modified int64
}

// change is one key's new value, or its removal.
type change struct {
	key      string
	modified int64
	value    []byte
	removed  bool
	tooLarge bool // the value did not fit into an answer
}

// sum returns a hash of the value.
func (c change) sum() [sha256.Size]byte {
	if c.tooLarge {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(c.value)
}

const otherHistory = "its history differs from the one read before"

// contradicts returns how a listing contradicts earlier reads; "" if it does not. A cluster that was
// restored from a backup has another ID or a lower revision. After more writes it may have a higher
// revision, but then it has keys of an earlier revision that the source has not read.
func (k *known) contradicts(l listing) string {
	switch {
	case k.revision == 0:
		return ""
	case l.cluster != k.cluster:
		return "the cluster's ID has changed"
	case l.revision < k.revision:
		return "its revision is lower than before"
	}
	for _, e := range l.keys {
		if e.modified <= k.revision && k.keys[e.key].modified != e.modified {
			return otherHistory
		}
	}
	return ""
}

// missing returns the keys that are not in l.
func (k *known) missing(l listing) []string {
	if len(k.keys) == 0 {
		return nil
	}
	there := make(map[string]bool, len(l.keys))
	for _, e := range l.keys {
		there[e.key] = true
	}
	var gone []string
	for key := range k.keys {
		if !there[key] {
			gone = append(gone, key)
		}
	}
	return gone
}

// events returns the changes of a batch of events, one for each key, and notes the revision of the batch.
// It ignores events that are not newer than the known revision, or not of the range [prefix, end) (F71).
func (k *known) events(header *etcdserverpb.ResponseHeader, batch []*mvccpb.Event, prefix, end string) []change {
	newest := make(map[string]int, len(batch))
	var changes []change
	last := k.revision
	for _, e := range batch {
		kv := e.GetKv()
		key := string(kv.GetKey())
		if kv == nil || key < prefix || key >= end || kv.ModRevision <= k.revision {
			continue
		}
		last = max(last, kv.ModRevision)
		c := change{key: key, modified: kv.ModRevision, value: kv.Value, removed: e.Type == mvccpb.Event_DELETE}
		if i, again := newest[key]; !again {
			newest[key] = len(changes)
			changes = append(changes, c)
		} else if changes[i].modified <= c.modified {
			changes[i] = c
		}
	}
	if len(batch) == 0 { // a progress notification
		last = max(last, header.GetRevision())
	}
	k.revision = last
	return changes
}

// put notes a key's value and reports whether it changed.
func (k *known) put(c change) bool {
	was, there := k.keys[c.key]
	is := keyState{c.modified, c.sum(), len(c.value)}
	k.keys[c.key] = is
	k.bytes += is.bytes - was.bytes
	return !there || was.sum != is.sum
}

// forget removes a key.
func (k *known) forget(key string) {
	k.bytes -= k.keys[key].bytes
	delete(k.keys, key)
}

// whySkipped returns why the source skips a key; "" if it does not. The rules are those of the file source,
// but a key needs no extension.
func whySkipped(key, prefix string) string {
	if !utf8.ValidString(key) || strings.ContainsFunc(key, unicode.IsControl) {
		return "the key is not text"
	}
	dirs, name := "", key[len(prefix):]
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		dirs, name = name[:i], name[i+1:]
	}
	switch {
	case strings.HasPrefix(dirs, "."), strings.Contains(dirs, "/."):
		return "hidden directory"
	case name == "":
		return "the key names a directory"
	case name[0] == '.':
		return "hidden file"
	case strings.HasSuffix(name, "~"), strings.HasSuffix(name, ".bak"), strings.HasSuffix(name, ".swp"):
		return "backup file"
	}
	return ""
}

// skipped returns the notice about a skipped key.
func skipped(key, why string) pod.Problem {
	if !utf8.ValidString(key) {
		key = strconv.Quote(key)
	}
	return pod.Problem{File: key, Msg: "skipped: " + why}
}

func tooLarge(key string) pod.Problem {
	return pod.Problem{File: key, Msg: fmt.Sprintf("is larger than %d MiB, the limit for one file", ValueLimit>>20)}
}
