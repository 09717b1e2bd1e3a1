// Package record stores the facts about pods that the runtime does not show, in one small file for
// each pod. It also stores other state of an agent below its root directory, and locks that directory.
//
// The engine loads a pod's record when it first sees the pod, and saves it at steps such as
// a stop or a new instance. The files:
//
//	<root>/lock                      locked by the agent, with its PID
//	<root>/node-name                 the node that the root directory belongs to
//	<root>/pods/<uid>/record.json    the record of one pod
//	<root>/sources/…                 each layer's last good set (see Sets)
//	<root>.key                       the key of the Secrets in these sets (see Key)
//	<root>/workloads/…               the states of workloads (see Workloads)
//	<root>/services.json             the addresses and ports of Services
//	<root>/halt.json                 the drain or shutdown of the node (see Halt)
//
// No container stops because a record is lost, is damaged or cannot be written. Only some status
// fields and pending hooks are lost. Specs contain secrets: files have mode 0600, and no error
// contains the content of a file.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	fileName = "record.json"
	corrupt  = ".corrupt-" // between the name of a damaged file and the time
)

// Records has the records under one root. Many goroutines may use it, each for different
// pods.
type Records struct {
	pods string

	mu sync.Mutex
	// uids maps a key to the UID of its newest record; nil until every record was read once. An
	// entry may be out of date, so callers read the record.
	uids map[pod.Key]string
	// kept is how many entries of uids the last dropForgotten left.
	kept int
}

// fewUIDs is how many entries of uids stay without a call of dropForgotten.
const fewUIDs = 1000

// New returns the records under root. It does no I/O.
func New(root string) *Records {
	return &Records{pods: filepath.Join(root, "pods")}
}

// Load returns the record of key: the one under uid, else the newest one of an earlier UID. With that
// one, the pod's earlier instance is stopped by its own spec. ok is false if there is none.
//
// If the record under uid belongs to another pod, err wraps a *pod.OwnerError. Load renames a damaged
// record to record.json.corrupt-<time>, and err names it. Also if err is not nil, rec may be a record
// of an earlier UID: then ok is true.
func (r *Records) Load(key pod.Key, uid string) (rec pod.Record, ok bool, err error) {
	if uid != "" {
		rec, ok, err = r.read(uid)
		switch {
		case ok && rec.Key == key:
			return rec, true, nil
		case ok:
			err = fmt.Errorf("record of pod %s: %w", key, &pod.OwnerError{UID: uid, Owner: rec.Key})
		}
	}
	former, indexErr := r.uidOf(key)
	err = errors.Join(err, indexErr)
	if former == "" || former == uid {
		return pod.Record{}, false, err
	}
	rec, ok, readErr := r.read(former)
	err = errors.Join(err, readErr)
	if !ok || rec.Key != key {
		return pod.Record{}, false, err
	}
	return rec, true, err
}

// Owner returns the pod whose record is under uid; known is false if there is none. A record
// of a newer version or a damaged one also has an owner, if its names can be read.
func (r *Records) Owner(uid string) (key pod.Key, known bool, err error) {
	dir, err := r.dir(uid)
	if err != nil {
		return pod.Key{}, false, err
	}
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return pod.Key{}, false, nil
	}
	if err != nil {
		return pod.Key{}, false, fmt.Errorf("read record: %w", err)
	}
	var s struct {
		Record struct{ Namespace, Name string }
	}
	if json.Unmarshal(data, &s) != nil {
		return pod.Key{}, false, nil
	}
	return pod.Key{Namespace: s.Record.Namespace, Name: s.Record.Name}, s.Record.Name != "", nil
}

// All returns every readable record, in order of key. The error names each record that is damaged,
// and was renamed, or cannot be read. If the directory cannot be read, it says why.
func (r *Records) All() ([]pod.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := r.readAll()
	r.uids = newest(all)
	return all, err
}

// Save replaces the record atomically: a reader always finds the complete old or the complete new
// one. It is synced when Save returns. Save does not write an unchanged record again. After an
// error the old record stays, and no temporary file is left. If the UID's record belongs to another
// pod, the error wraps a *pod.OwnerError.
func (r *Records) Save(rec pod.Record) error {
	dir, err := r.dir(rec.UID)
	if err != nil {
		return err
	}
	data, err := encode(rec)
	if err != nil {
		return fmt.Errorf("encode record of pod %s: %w", rec.Key, err)
	}
	path := filepath.Join(dir, fileName)
	if old, err := os.ReadFile(path); err == nil {
		if bytes.Equal(old, data) {
			return nil
		}
		if have, err := decode(old); err == nil && have.Key != rec.Key {
			return fmt.Errorf("record of pod %s: %w", rec.Key, &pod.OwnerError{UID: rec.UID, Owner: have.Key})
		}
	}
	if err := makeDir(dir); err != nil {
		return fmt.Errorf("save record of pod %s: %w", rec.Key, err)
	}
	if err := replace(path, data); err != nil {
		return fmt.Errorf("save record of pod %s: %w", rec.Key, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uids != nil {
		r.uids[rec.Key] = rec.UID
		r.dropForgotten()
	}
	return nil
}

// dropForgotten drops the entries of uids whose records are gone, once there are twice as many entries
// as after the last drop. So the map does not grow without limit when each new pod has a new name. The
// caller holds the mutex.
func (r *Records) dropForgotten() {
	if len(r.uids) <= max(fewUIDs, 2*r.kept) {
		return
	}
	for key, uid := range r.uids {
		dir, err := r.dir(uid)
		if err == nil {
			_, err = os.Lstat(filepath.Join(dir, fileName))
		}
		if errors.Is(err, fs.ErrNotExist) {
			delete(r.uids, key)
		}
	}
	r.kept = len(r.uids)
}

// dir returns the directory of the pod with uid. The UID may come from a manifest: it has
// to be a single path element.
func (r *Records) dir(uid string) (string, error) {
	if uid == "" || uid == "." || uid == ".." || strings.ContainsAny(uid, "/\x00") {
		return "", fmt.Errorf("pod UID %q is not a plain file name", uid)
	}
	return filepath.Join(r.pods, uid), nil
}

// read reads the record under uid.
func (r *Records) read(uid string) (rec pod.Record, ok bool, err error) {
	dir, err := r.dir(uid)
	if err != nil {
		return pod.Record{}, false, err
	}
	path := filepath.Join(dir, fileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return pod.Record{}, false, nil
	}
	if err != nil {
		return pod.Record{}, false, fmt.Errorf("read record: %w", err)
	}
	rec, err = decodeOf(uid, data)
	var version *versionError
	switch {
	case errors.As(err, &version):
		return pod.Record{}, false, fmt.Errorf("read %s: %w", path, err)
	case err != nil:
		removeOldest(dir)
		return pod.Record{}, false, setAside(path, err)
	}
	return rec, true, nil
}

// decodeOf returns the record in the file of a UID.
func decodeOf(uid string, data []byte) (pod.Record, error) {
	rec, err := decode(data)
	if err == nil && rec.UID != uid {
		return pod.Record{}, fmt.Errorf("it contains the record of UID %s", rec.UID)
	}
	return rec, err
}

// setAside renames a damaged file, so that a person can examine it. It returns an error with both
// names.
func setAside(path string, damage error) error {
	aside := path + corrupt + time.Now().UTC().Format("20060102T150405.000000000Z")
	if err := os.Rename(path, aside); err != nil {
		return fmt.Errorf("%s is damaged (%w) and could not be renamed: %w", path, damage, err)
	}
	return fmt.Errorf("%s is damaged (%w): renamed to %s", path, damage, filepath.Base(aside))
}

// mostDamaged is how many damaged files of earlier loads a directory keeps.
const mostDamaged = 9

// removeOldest removes the oldest renamed damaged files of a directory, above mostDamaged. A load calls
// it before it renames any, so that all files that its error names exist.
func removeOldest(dir string) {
	entries, _ := os.ReadDir(dir) // the next damaged file removes them
	var damaged []string
	for _, e := range entries {
		if strings.Contains(e.Name(), corrupt) {
			damaged = append(damaged, e.Name())
		}
	}
	at := func(name string) string { _, at, _ := strings.Cut(name, corrupt); return at }
	slices.SortFunc(damaged, func(a, b string) int { return strings.Compare(at(b), at(a)) })
	for _, name := range damaged[min(mostDamaged, len(damaged)):] {
		_ = os.Remove(filepath.Join(dir, name))
	}
}

// readAll reads every record, in order of key and UID.
func (r *Records) readAll() ([]pod.Record, error) {
	entries, err := os.ReadDir(r.pods)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	errs := []error{err}
	var all []pod.Record
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		rec, ok, err := r.read(e.Name())
		errs = append(errs, err)
		if ok {
			all = append(all, rec)
		}
	}
	sortRecords(all)
	return all, errors.Join(errs...)
}

// uidOf returns the UID of the newest record of key, "" for none. It reads every record the
// first time.
func (r *Records) uidOf(key pod.Key) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if r.uids == nil {
		var all []pod.Record
		all, err = r.readAll()
		r.uids = newest(all)
	}
	return r.uids[key], err
}

// newest maps each key to the UID of its newest record.
func newest(all []pod.Record) map[pod.Key]string {
	best := make(map[pod.Key]pod.Record, len(all))
	for _, rec := range all {
		have, ok := best[rec.Key]
		if !ok || rec.Instance > have.Instance || rec.Instance == have.Instance && rec.StartTime.After(have.StartTime) {
			best[rec.Key] = rec
		}
	}
	uids := make(map[pod.Key]string, len(best))
	for key, rec := range best {
		uids[key] = rec.UID
	}
	return uids
}
