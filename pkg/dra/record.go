package dra

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/pod"
)

// record is the content of a claim's file. A record is never changed: with and its like return
// another one.
type record struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Allocation is a checksum of the claim's allocation; "" is not known.
	Allocation string         `json:"allocation,omitempty"`
	Drivers    []driverRecord `json:"drivers,omitempty"` // by name
	// Pods holds the pods that use the claim: their UIDs, and their names for the claim
	// (spec.resourceClaims[].name).
	Pods map[string][]string `json:"pods,omitempty"`
}

// driverRecord is the progress of one driver with a claim.
type driverRecord struct {
	Name     string            `json:"name"`
	Progress string            `json:"progress,omitempty"` // "begun", or "done" with the boot ID of the machine
	Devices  []pod.ClaimDevice `json:"devices,omitempty"`
}

// progress returns the progress of the driver. After a reboot the driver has to prepare the claim
// again.
func (d driverRecord) progress(boot string) Progress {
	switch how, at, _ := strings.Cut(d.Progress, " "); {
	case d.Progress == "":
		return None
	case how == "done" && at == boot && boot != "":
		return Done
	}
	return Begun
}

// with returns r with another progress of one driver.
func (r record) with(driver string, p Progress, devices []pod.ClaimDevice, boot string) record {
	r.Drivers = slices.Clone(r.Drivers)
	for i := range r.Drivers {
		if d := &r.Drivers[i]; d.Name == driver {
			d.Progress, d.Devices = "", devices
			switch p {
			case Begun:
				d.Progress = "begun"
			case Done:
				d.Progress = "done " + boot
			}
		}
	}
	return r
}

// withDrivers returns r with these drivers, too.
func (r record) withDrivers(names []string) record {
	r.Drivers = slices.Clone(r.Drivers)
	for _, name := range names {
		if !slices.ContainsFunc(r.Drivers, func(d driverRecord) bool { return d.Name == name }) {
			r.Drivers = append(r.Drivers, driverRecord{Name: name})
		}
	}
	slices.SortFunc(r.Drivers, func(a, b driverRecord) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// withPod returns r with a pod that uses the claim by this name; "" is not known.
func (r record) withPod(uid, name string) record {
	if r.Pods = maps.Clone(r.Pods); r.Pods == nil {
		r.Pods = make(map[string][]string)
	}
	names := slices.Clone(r.Pods[uid])
	if name != "" && !slices.Contains(names, name) {
		names = append(names, name)
		slices.Sort(names)
	}
	r.Pods[uid] = names
	return r
}

// without returns r without a pod.
func (r record) without(uid string) record {
	r.Pods = maps.Clone(r.Pods)
	delete(r.Pods, uid)
	return r
}

// uses reports whether the pod uses the claim by this name.
func (r record) uses(uid, name string) bool { return slices.Contains(r.Pods[uid], name) }

// prepared reports whether each driver has prepared the claim.
func (r record) prepared(boot string) bool {
	return !slices.ContainsFunc(r.Drivers, func(d driverRecord) bool { return d.progress(boot) != Done })
}

// begun reports whether a driver may have prepared the claim.
func (r record) begun() bool {
	return slices.ContainsFunc(r.Drivers, func(d driverRecord) bool { return d.Progress != "" })
}

// devices returns the devices of all drivers.
func (r record) devices() []pod.ClaimDevice {
	var all []pod.ClaimDevice
	for _, d := range r.Drivers {
		all = append(all, d.Devices...)
	}
	return all
}

// check returns an error for a record that nodectl never writes.
func (r record) check() error {
	err := checkUID(r.UID)
	for _, d := range r.Drivers {
		err = errors.Join(err, checkDriver(d.Name))
	}
	return err
}

const suffix = ".json"

func (c *Claims) path(uid string) string { return filepath.Join(c.cfg.Dir, uid+suffix) }

// write writes the file of a claim, unless this agent has written the same before: each retry of a call to
// a driver that has died changes nothing.
func (c *Claims) write(r record) error {
	text, err := json.Marshal(r)
	if err == nil && len(text) > maxRecord {
		err = fmt.Errorf("%d bytes, more than %d", len(text), maxRecord)
	}
	sum := sha256.Sum256(text)
	c.mu.Lock()
	last, wrote := c.written[r.UID]
	c.mu.Unlock()
	if err == nil && wrote && last == sum {
		return nil
	}
	if err == nil {
		err = os.MkdirAll(c.cfg.Dir, 0o700)
	}
	if err == nil {
		err = atomicfile.Write(c.path(r.UID), append(text, '\n'), atomicfile.Options{Mode: 0o600, Temp: ".tmp", Sync: true})
	}
	if err != nil {
		return fmt.Errorf("checkpoint ResourceClaim state: %w", err)
	}
	c.mu.Lock()
	c.written[r.UID] = sum
	c.mu.Unlock()
	return nil
}

// load reads the files of claims.
func (c *Claims) load() {
	entries, err := os.ReadDir(c.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.cfg.Log.Warn("Failed to read prepared claims", "directory", c.cfg.Dir, "error", err)
	}
	for _, e := range entries {
		uid, is := strings.CutSuffix(e.Name(), suffix)
		if !is {
			continue
		}
		r, err := readRecord(filepath.Join(c.cfg.Dir, e.Name()))
		if err == nil && r.UID != uid {
			err = fmt.Errorf("describes claim %.80q", r.UID)
		}
		if err != nil {
			c.cfg.Log.Warn("Failed to read prepared claim", "file", filepath.Join(c.cfg.Dir, e.Name()), "error", err)
			continue
		}
		if len(r.Pods) == 0 { // so that Sweep finds it
			r = r.withPod("unknown", "")
		}
		c.setLocked(uid, r) // nothing else uses c yet
	}
}

// readRecord reads a file. It does not follow a link.
func readRecord(path string) (r record, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return r, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return r, err
	}
	if len(text) > maxRecord || json.Unmarshal(text, &r) != nil {
		return r, errors.New("does not describe a claim")
	}
	return r, r.check()
}
