package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/pod"
)

// workloadVersion is the version of the format of the states of workloads. A new optional field
// needs no new version.
const workloadVersion = 1

// storedWorkload is the format of the state of a workload on disk.
type storedWorkload struct {
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Layer     string          `json:"layer"`
	State     json.RawMessage `json:"state"`
}

// Workloads has the states of workloads under one root, one file each. Only one goroutine may use it.
// States contain pod templates, which may contain secrets: files have mode 0600.
type Workloads struct{ dir string }

// NewWorkloads returns the states under root. It does no I/O.
func NewWorkloads(root string) *Workloads {
	return &Workloads{dir: filepath.Join(root, "workloads")}
}

// Load calls each for every state that can be read, with the layer of the workload and the state
// as JSON. The error names each damaged file, which Load has renamed to *.corrupt-<time>, and each
// unreadable one.
func (w *Workloads) Load(each func(of pod.ObjectKey, layer string, state []byte)) error {
	tidied := false
	return w.read(each, func(path string, damage error) error {
		if !tidied {
			removeOldest(w.dir)
			tidied = true
		}
		return setAside(path, damage)
	})
}

// LookWorkloads is Workloads.Load, but changes nothing: it is for callers without the root's lock.
func ReadWorkloads(root string, each func(of pod.ObjectKey, layer string, state []byte)) error {
	return NewWorkloads(root).read(each, func(path string, damage error) error {
		return fmt.Errorf("read %s: %w", path, damage)
	})
}

func (w *Workloads) read(each func(of pod.ObjectKey, layer string, state []byte), damaged func(path string, damage error) error) error {
	entries, err := os.ReadDir(w.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		path := filepath.Join(w.dir, e.Name())
		data, err := readPlain(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", path, err))
			continue
		}
		s, err := decodeWorkload(data)
		if err == nil && s.file() != e.Name() {
			err = errors.New("it contains the state of another workload")
		}
		var version *versionError
		switch {
		case errors.As(err, &version):
			errs = append(errs, fmt.Errorf("read %s: %w", path, err))
		case err != nil:
			errs = append(errs, damaged(path, err))
		default:
			each(s.key(), s.Layer, s.State)
		}
	}
	return errors.Join(errs...)
}

// Save replaces the state of a workload atomically. It is synced when Save returns. An unchanged
// state is not written again. After an error the old state stays and no other file is left.
func (w *Workloads) Save(of pod.ObjectKey, layer string, state []byte) error {
	s := storedWorkload{Kind: of.Kind, Namespace: of.Namespace, Name: of.Name, Layer: layer, State: state}
	payload, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode state of %s %s: %w", of.Kind, of.Key, err)
	}
	data, path := frameOf("workload", workloadVersion, payload), filepath.Join(w.dir, s.file())
	if old, err := readPlain(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err = makeDir(w.dir); err == nil {
		err = replace(path, data)
	}
	if err != nil {
		return fmt.Errorf("save state of %s %s: %w", of.Kind, of.Key, err)
	}
	return nil
}

// Logs returns the directory of the logs of a workload's versions that were rolled back. It may not
// exist.
func (w *Workloads) Logs(of pod.ObjectKey) string {
	name := storedWorkload{Kind: of.Kind, Namespace: of.Namespace, Name: of.Name}.file()
	return filepath.Join(w.dir, "logs", strings.TrimSuffix(name, ".json"))
}

// Remove removes the state of a workload, and the logs of its versions. It succeeds if there is none.
func (w *Workloads) Remove(of pod.ObjectKey) error {
	path := filepath.Join(w.dir, storedWorkload{Kind: of.Kind, Namespace: of.Namespace, Name: of.Name}.file())
	if err := os.RemoveAll(w.Logs(of)); err != nil {
		return fmt.Errorf("remove logs of %s %s: %w", of.Kind, of.Key, err)
	}
	err := os.Remove(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = atomicfile.SyncDir(w.dir)
	}
	if err != nil {
		return fmt.Errorf("remove state of %s %s: %w", of.Kind, of.Key, err)
	}
	return nil
}

func decodeWorkload(data []byte) (s storedWorkload, err error) {
	payload, err := unframeOf("workload", workloadVersion, data)
	if err != nil {
		return s, err
	}
	if json.Unmarshal(payload, &s) != nil {
		return storedWorkload{}, errors.New("not the state of a workload")
	}
	return s, nil
}

func (s storedWorkload) key() pod.ObjectKey {
	return pod.ObjectKey{Kind: s.Kind, Key: pod.Key{Namespace: s.Namespace, Name: s.Name}}
}

// plainWorkload matches names of files that need no hash. Names of Kubernetes have no underscore.
var plainWorkload = regexp.MustCompile(`^[A-Za-z]+_[a-z0-9-]+_[a-z0-9.-]+$`)

// longestWorkload is the longest name without a hash. It leaves room for the suffix .corrupt-<time>.
const longestWorkload = 200

// file returns the name of the file: kind, namespace and name, or their hash if they are too long
// for a name of a file.
func (s storedWorkload) file() string {
	name := s.Kind + "_" + s.Namespace + "_" + s.Name
	if len(name) > longestWorkload || !plainWorkload.MatchString(name) {
		name = hashedName(name)
	}
	return name + ".json"
}
