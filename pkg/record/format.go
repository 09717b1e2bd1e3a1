package record

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// version is the version of the format of records. A new optional field needs no new
// version.
const version = 1

// stored is the format of a pod.Record on disk. It is a type of its own, so that fields in package pod
// can be renamed without a change of the format.
type stored struct {
	Namespace  string            `json:"namespace"`
	Name       string            `json:"name"`
	UID        string            `json:"uid"`
	Want       *storedSpec       `json:"want,omitempty"`
	Instance   int               `json:"instance"`
	Attempts   map[string]uint32 `json:"attempts,omitempty"`
	StartTime  time.Time         `json:"startTime,omitzero"`
	StopSince  time.Time         `json:"stopSince,omitzero"`
	StopGrace  *int64            `json:"stopGrace,omitempty"`
	StopAsked  bool              `json:"stopAsked,omitempty"`
	StopReason string            `json:"stopReason,omitempty"`
	Terminal   v1.PodPhase       `json:"terminal,omitempty"`

	TerminalReason  string                 `json:"terminalReason,omitempty"`
	TerminalMessage string                 `json:"terminalMessage,omitempty"`
	ContainerNotes  map[string]storedNotes `json:"lives,omitempty"`
	Streaks         map[string]int         `json:"streaks,omitempty"`

	Devices map[string][]pod.DeviceAllocation `json:"devices,omitempty"`

	RestartingAll bool            `json:"restartingAll,omitempty"`
	Eviction      *storedEviction `json:"eviction,omitempty"`
}

type storedEviction struct {
	Instance  int                  `json:"instance"`
	At        time.Time            `json:"at"`
	Grace     int64                `json:"grace"`
	Condition v1.NodeConditionType `json:"condition,omitempty"`
	Count     int                  `json:"count,omitempty"`
	Over      bool                 `json:"over,omitempty"`
}

type storedNotes struct {
	PostStart string `json:"postStart,omitempty"`
	PreStop   bool   `json:"preStop,omitempty"`
	Killed    string `json:"killed,omitempty"`
	Grace     *int64 `json:"grace,omitempty"`
	Resources string `json:"resources,omitempty"`
}

type storedDependency struct {
	Name  string                  `json:"name"`
	Until pod.DependencyCondition `json:"until"`
}

type storedSpec struct {
	Namespace       string            `json:"namespace"`
	Name            string            `json:"name"`
	Origin          storedOrigin      `json:"origin"`
	Pod             *v1.Pod           `json:"pod"`
	Hash            string            `json:"hash"`
	SandboxHash     string            `json:"sandboxHash"`
	ContainerHashes map[string]string `json:"containerHashes,omitempty"`

	Earlier   map[string]string  `json:"earlierHashes,omitempty"`
	DependsOn []storedDependency `json:"dependsOn,omitempty"`
	Data      *storedData        `json:"data,omitempty"`

	Placed map[string]pod.Placement `json:"placed,omitempty"`
}

// storedData identifies the objects that a pod was bound to. Only the sets have their contents.
type storedData struct {
	Objects []storedSum       `json:"objects,omitempty"`
	Unbound map[string]string `json:"unboundHashes,omitempty"`
}

type storedSum struct {
	Kind string                  `json:"kind"`
	Name string                  `json:"name"`
	Hash string                  `json:"hash"`
	Keys map[string]storedKeySum `json:"keys,omitempty"`
}

type storedKeySum struct {
	Bytes int    `json:"bytes"`
	Sum   string `json:"sum"`
}

type storedOrigin struct {
	Source   string `json:"source"`
	Location string `json:"location"`
	File     string `json:"file"`
	Line     int    `json:"line"`
}

// versionError says that an intact record was written by another version.
type versionError struct{ version, reads int }

func (e *versionError) Error() string {
	return fmt.Sprintf("version %d is not supported: this nodectl reads version %d", e.version, e.reads)
}

var errDamaged = errors.New("checksum mismatch")

// encode returns the content of a record's file. The bytes around the record are fixed, so that decode
// finds any damage:
//
//	{"version":1,"sha256":"<of version and record>","record":<record>}
func encode(r pod.Record) ([]byte, error) {
	s := stored{
		Namespace: r.Namespace, Name: r.Name, UID: r.UID,
		Instance: r.Instance, Attempts: r.Attempts,
		StartTime: r.StartTime.UTC(), StopSince: r.StopSince.UTC(), StopGrace: r.StopGrace, StopAsked: r.StopAsked, StopReason: r.StopReason, Terminal: r.Terminal,
		TerminalReason: r.TerminalReason, TerminalMessage: r.TerminalMessage, Streaks: r.Streaks, Devices: r.Devices, RestartingAll: r.RestartingAll,
		ContainerNotes: mapped(r.ContainerNotes, func(l pod.ContainerNotes) storedNotes { return storedNotes(l) }),
	}
	if r.Want != nil {
		s.Want = storeSpec(r.Want)
	}
	if r.Eviction != nil {
		s.Eviction = new(storedEviction(*r.Eviction))
		s.Eviction.At = s.Eviction.At.UTC()
	}
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return frame(version, payload), nil
}

func storeSpec(w *pod.Spec) *storedSpec {
	s := &storedSpec{
		Namespace: w.Namespace, Name: w.Name, Origin: storedOrigin(w.Origin), Pod: w.Pod,
		Hash: w.Hash, SandboxHash: w.SandboxHash, ContainerHashes: w.ContainerHashes, Earlier: w.Earlier, Placed: w.Placed,
	}
	for _, d := range w.DependsOn {
		s.DependsOn = append(s.DependsOn, storedDependency(d))
	}
	if d := w.Data; d != nil {
		s.Data = &storedData{Unbound: d.Unbound}
		for _, o := range d.Sums {
			keys := mapped(o.Keys, func(k pod.KeySum) storedKeySum { return storedKeySum(k) })
			s.Data.Objects = append(s.Data.Objects, storedSum{Kind: o.Kind, Name: o.Name, Hash: o.Hash, Keys: keys})
		}
	}
	return s
}

func (w *storedSpec) spec() *pod.Spec {
	s := &pod.Spec{
		Key: pod.Key{Namespace: w.Namespace, Name: w.Name}, Origin: pod.Origin(w.Origin), Pod: w.Pod,
		Hash: w.Hash, SandboxHash: w.SandboxHash, ContainerHashes: w.ContainerHashes, Earlier: w.Earlier, Placed: w.Placed,
	}
	// An older nodectl wrote lists without a limit. Only the entries over the limit are dropped:
	// the pod then waits for fewer pods when it stops.
	for _, d := range w.DependsOn[:min(len(w.DependsOn), pod.MaxDependencies)] {
		s.DependsOn = append(s.DependsOn, pod.Dependency(d))
	}
	if d := w.Data; d != nil {
		s.Data = &pod.Data{Unbound: d.Unbound}
		for _, o := range d.Objects {
			keys := mapped(o.Keys, func(k storedKeySum) pod.KeySum { return pod.KeySum(k) })
			s.Data.Sums = append(s.Data.Sums, pod.ObjectSum{Kind: o.Kind, Name: o.Name, Hash: o.Hash, Keys: keys})
		}
	}
	return s
}

// mapped returns m with f applied to every value; nil for an empty map.
func mapped[A, B any](m map[string]A, f func(A) B) map[string]B {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]B, len(m))
	for k, v := range m {
		out[k] = f(v)
	}
	return out
}

func frame(version int, payload []byte) []byte { return frameOf("record", version, payload) }

// frameOf returns the content of a file with payload under name. name is the kind of the file, so that
// no kind is read as another one.
func frameOf(name string, version int, payload []byte) []byte {
	sum := sha256.New()
	fmt.Fprintf(sum, "%d\n%s", version, payload)
	return fmt.Appendf(nil, `{"version":%d,"sha256":"%s","%s":%s}`+"\n", version, hex.EncodeToString(sum.Sum(nil)), name, payload)
}

// decode returns the record in a file. Its errors never contain the file's content.
func decode(data []byte) (pod.Record, error) {
	payload, err := unframe(data)
	if err != nil {
		return pod.Record{}, err
	}
	var s stored
	if err := json.Unmarshal(payload, &s); err != nil {
		return pod.Record{}, errors.New("not a record")
	}
	r := pod.Record{
		Key: pod.Key{Namespace: s.Namespace, Name: s.Name}, UID: s.UID,
		Instance: s.Instance, Attempts: s.Attempts,
		StartTime: s.StartTime, StopSince: s.StopSince, StopGrace: s.StopGrace, StopAsked: s.StopAsked, StopReason: s.StopReason, Terminal: s.Terminal,
		TerminalReason: s.TerminalReason, TerminalMessage: s.TerminalMessage, Streaks: s.Streaks, Devices: s.Devices, RestartingAll: s.RestartingAll,
		ContainerNotes: mapped(s.ContainerNotes, func(l storedNotes) pod.ContainerNotes { return pod.ContainerNotes(l) }),
	}
	if w := s.Want; w != nil && w.Pod != nil {
		r.Want = w.spec()
	}
	if s.Eviction != nil {
		r.Eviction = new(pod.Eviction(*s.Eviction))
	}
	return r, nil
}

func unframe(data []byte) ([]byte, error) { return unframeOf("record", version, data) }

// unframeOf returns the payload in a frame. It builds the frame again and compares, so that
// it accepts only frames that frameOf has made. reads is the newest version that it accepts.
func unframeOf(name string, reads int, data []byte) ([]byte, error) {
	head, rest, found := bytes.Cut(data, []byte(`,"sha256":`))
	number, ok := bytes.CutPrefix(head, []byte(`{"version":`))
	n, err := strconv.Atoi(string(number))
	_, payload, inside := bytes.Cut(rest, []byte(`,"`+name+`":`))
	payload, ended := bytes.CutSuffix(payload, []byte("}\n"))
	if !found || !ok || err != nil || !inside || !ended || !bytes.Equal(frameOf(name, n, payload), data) {
		return nil, errDamaged
	}
	if n < 1 || n > reads {
		return nil, &versionError{version: n, reads: reads}
	}
	return payload, nil
}

func sortRecords(all []pod.Record) {
	slices.SortFunc(all, func(a, b pod.Record) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.UID, b.UID))
	})
}
