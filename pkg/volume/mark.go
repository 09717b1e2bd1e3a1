package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/bootid"
	"github.com/nodectl/nodectl/pkg/pod"
)

// markVersion is the format of a mark. An instance whose mark has another one is set up again.
const markVersion = 1

// mark is the content of an instance's marker: what SetUp made, and when it has to be repeated.
type mark struct {
	Version int       `json:"version"`
	Boot    string    `json:"boot"`    // of the machine: volumes in memory do not survive it
	Volumes string    `json:"volumes"` // Volumes.fingerprint
	Until   time.Time `json:"until,omitzero"`
	// Partial says that some volumes failed, so that no container uses the instance. The version
	// is then 0, so that an older agent sets it up again, too.
	Partial bool `json:"partial,omitempty"`
	// Bound maps volumes to the targets of an API server's claims, which are paths of this node.
	// The mark of an older agent may lack them.
	Bound map[string]*v1.HostPathVolumeSource `json:"bound,omitempty"`
	// Drivers maps volumes to the mounts of CSI drivers.
	Drivers map[string]driverMount `json:"drivers,omitempty"`
	// Remote maps volumes of claims to the NFS directories that are mounted for them.
	Remote map[string]string `json:"remote,omitempty"`
}

// marked returns the mark of the instance in dir; ok is false if there was no SetUp. An
// unreadable mark has no version.
func (v *Volumes) marked(dir string) (m mark, ok bool) {
	path := filepath.Join(dir, marker)
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		text, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(text, &m) != nil {
			return mark{}, true
		}
		return m, true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	m, ok = v.noted[dir]
	return m, ok
}

// mark records that the instance in dir is set up. On a full or read-only disk (F12, F13) the mark
// of an instance without files of its own is kept in memory. The next agent then sets the
// instance up again.
func (v *Volumes) mark(dir string, kept bool, m mark) error {
	if have, ok := v.marked(dir); ok && reflect.DeepEqual(have, m) {
		return nil
	}
	text, err := json.Marshal(m)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = replaceFile(filepath.Join(dir, marker), text)
	}
	if err == nil || kept || !diskRefuses(err) {
		return err
	}
	v.log.Warn("Failed to record volumes on disk", "dir", dir, "error", err)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.noted[dir] = m
	return nil
}

// forgetMark removes the mark of the instance in dir, or those of all instances of the pod
// in dir, from memory.
func (v *Volumes) forgetMark(dir string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.noted, func(noted string, _ mark) bool {
		return noted == dir || strings.HasPrefix(noted, dir+string(filepath.Separator))
	})
}

func diskRefuses(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EDQUOT)
}

// boot returns Config.Boot, or the kernel's ID of this boot, "" if it has none.
func (v *Volumes) boot() string {
	v.once.Do(func() {
		if v.bootID = v.cfg.Boot; v.bootID != "" {
			return
		}
		v.bootID, _ = bootid.Read()
	})
	return v.bootID
}

// fingerprint returns a checksum of the volumes of want and their data, and of nothing else.
func (v *Volumes) fingerprint(want *pod.Spec) string {
	sum := sha256.New()
	for i := range want.Pod.Spec.Volumes {
		vol := &want.Pod.Spec.Volumes[i]
		text, err := json.Marshal(vol)
		fmt.Fprintf(sum, "%q %v\n", text, err)
		for _, item := range downwardItems(vol) {
			value, err := v.field(want.Pod, item)
			fmt.Fprintf(sum, "%q %v\n", value, err)
		}
	}
	used := map[pod.ObjectID]bool{}
	for _, r := range pod.Refs(want.Pod) {
		if r.Volume != "" {
			used[pod.ObjectID{Kind: r.Kind, Name: r.Name}] = true
		}
	}
	content, _ := want.Data.Hash(func(id pod.ObjectID) bool { return used[id] })
	fmt.Fprintln(sum, content)
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// downwardItems are the fields of the pod that a volume shows.
func downwardItems(vol *v1.Volume) (items []v1.DownwardAPIVolumeFile) {
	if vol.DownwardAPI != nil {
		items = append(items, vol.DownwardAPI.Items...)
	}
	if vol.Projected != nil {
		for _, s := range vol.Projected.Sources {
			if s.DownwardAPI != nil {
				items = append(items, s.DownwardAPI.Items...)
			}
		}
	}
	return items
}
