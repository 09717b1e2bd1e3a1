// Package dra prepares the devices of ResourceClaims for pods of a cluster, and unprepares them.
//
// Drivers register through the registry of plugins (package device). Before the first container of
// a pod, the engine calls Prepare, and Release once all of them have exited. Both observe a claim,
// get one step from Next, execute it, and observe again. Of returns the devices of one container,
// for its configuration and its annotation.
//
// Before a call to a driver, the file of a claim names each pod that uses the claim, and the
// driver. After the call, the file records its success. The next agent reads the files. A driver
// unprepares a claim only when the file names no pod.
package dra

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/nodectl/nodectl/pkg/bootid"
	"github.com/nodectl/nodectl/pkg/keylock"
	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// Config configures Claims.
type Config struct {
	Dir string // the files of claims
	Log *slog.Logger
	// Handled and Called are callbacks for metrics; they may be nil. Handled gets each operation on all
	// claims of a pod, Called each call to a driver.
	Handled func(operation string, took time.Duration, err error)
	Called  func(driver, method, code string, took time.Duration)
	// Boot identifies the boot of the machine; "" reads it from the kernel.
	Boot string
	// Dial connects to a socket of the machine; nil is the kernel's. Tests in fake time replace it.
	Dial pluginconn.Dialer
	// Cut stops an operation at a point, as a kill of the agent would; nil except in tests.
	Cut func(point string) error
}

// Cluster is the cluster of the node.
type Cluster struct {
	API API
	// Node returns the Node object of the API server, nil while it is unknown.
	Node func() *v1.Node
}

// API uses an API server.
type API interface {
	// ResourceClaim returns a claim, nil for none.
	ResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error)
	// DeleteResourceSlices deletes the slices of a driver on a node, of all drivers but these for "".
	DeleteResourceSlices(ctx context.Context, node, driver string, but []string) error
}

// Claims are the DRA drivers of this node, and the claims that they prepare. Many goroutines may use
// it.
type Claims struct {
	cfg      Config
	boot     string
	cluster  Cluster               // set before Run, Prepare and Register
	locks    keylock.Locks[string] // one operation at a time works on a claim, by UID
	running  sync.WaitGroup
	changed  wakeup.Signal            // Changed
	reported wakeup.Signal            // HealthChanged
	due      wakeup.Signal            // slices may be due
	undone   wakeup.Signal            // Run has something to unprepare
	cut      func(point string) error // Config.Cut
	pace     pace

	mu      sync.Mutex
	drivers map[string][]*driver         // by name, the newest last
	claims  map[string]record            // by UID
	written map[string][sha256.Size]byte // checksums of the claims' files that this agent has written, by UID
	inUse   map[string]bool              // UIDs of the claims that were prepared, and are not unprepared
	left    map[string]leftover          // by UID of the pod
	wipes   map[string]*wipe             // by driver, "" for all
	served  bool                         // a driver has registered, or an earlier agent had one
}

// New returns Claims. It reads the claims that an earlier agent has prepared.
func New(cfg Config) *Claims {
	if cfg.Dial == nil {
		cfg.Dial = pluginconn.Dial
	}
	c := &Claims{
		cfg: cfg, boot: cmp.Or(cfg.Boot, bootID()), cut: cfg.Cut, changed: wakeup.New(), reported: wakeup.New(), due: wakeup.New(), undone: wakeup.New(), pace: usualPace,
		drivers: make(map[string][]*driver), claims: make(map[string]record), written: make(map[string][sha256.Size]byte), inUse: make(map[string]bool),
		left: make(map[string]leftover), wipes: make(map[string]*wipe),
	}
	c.load()
	return c
}

// Join sets the cluster of the node. It is called before Run and before the first pod starts.
func (c *Claims) Join(of Cluster) { c.cluster = of }

// bootID returns the ID of the machine's boot, or another text that no other agent has.
func bootID() string {
	if id, err := bootid.Read(); err == nil {
		return id
	}
	return fmt.Sprintf("agent %d %d", os.Getpid(), time.Now().UnixNano())
}

var (
	errNoNode    = errors.New("the Node object is not known")
	errNoCluster = errors.New("ResourceClaims need an API server (--kubeconfig)")
)

// Changed receives a value after a driver has registered.
func (c *Claims) Changed() <-chan struct{} { return c.changed }

// HealthChanged receives a value after the results of Health have changed.
func (c *Claims) HealthChanged() <-chan struct{} { return c.reported }

// Uses reports whether the pod may have claims that have to be unprepared.
func (c *Claims) Uses(uid string) bool { return len(c.claimsOf(uid)) > 0 }

// claimsOf returns the UIDs of the claims whose files name a pod, sorted.
func (c *Claims) claimsOf(uid string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for id, r := range c.claims {
		if _, uses := r.Pods[uid]; uses {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// Adopt adds pods whose containers have devices of claims. A claim whose file is lost gets another one
// with the next step.
func (c *Claims) Adopt(holders []pod.ClaimHolder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range holders {
		for _, a := range h.Claims {
			r, known := c.claims[a.UID]
			if _, named := r.Pods[h.UID]; named || checkUID(a.UID) != nil {
				continue
			}
			if !known {
				r = record{Namespace: a.Namespace, Name: a.Name, UID: a.UID}
			}
			for _, d := range a.Devices {
				if known || checkDriver(d.Driver) != nil {
					continue
				}
				r = r.withDrivers([]string{d.Driver}).with(d.Driver, Begun, nil, c.boot) // the annotation may lack devices
			}
			c.setLocked(a.UID, r.withPod(h.UID, ""))
		}
	}
}

// Leave leaves the claims of a pod to Run, which unprepares them. Nothing of the pod runs.
func (c *Claims) Leave(uid string) {
	if !c.Uses(uid) {
		return
	}
	c.mu.Lock()
	c.left[uid] = leftover{retry: time.Now()}
	c.mu.Unlock()
	c.undone.Send()
}

// Sweep makes Run unprepare the claims of all pods for whose UIDs keep returns false.
func (c *Claims) Sweep(keep func(uid string) bool) {
	c.mu.Lock()
	uids := make(map[string]bool)
	for _, r := range c.claims {
		for uid := range r.Pods {
			uids[uid] = true
		}
	}
	c.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(uids)) {
		if !keep(uid) {
			c.Leave(uid)
		}
	}
}

// find returns the claim that a pod uses by a name.
func (c *Claims) find(uid, name string) (record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.claims {
		if r.uses(uid, name) {
			return r, true
		}
	}
	return record{}, false
}

// get returns the record of a claim.
func (c *Claims) get(uid string) (record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, known := c.claims[uid]
	return r, known
}

// step is a point at which tests stop an operation, as a kill of the agent would.
func (c *Claims) step(name string) error {
	if c.cut != nil {
		return c.cut(name)
	}
	return nil
}

// change changes the record of a claim: first in its file, then in memory. The caller has locked
// the claim. Only Adopt may change the record in between; change then calls edit again.
func (c *Claims) change(uid string, edit func(record) record, point string) error {
	r, _ := c.get(uid)
	if err := c.write(edit(r)); err != nil {
		return err
	}
	c.mu.Lock()
	c.setLocked(uid, edit(c.claims[uid]))
	c.mu.Unlock()
	return c.step(point)
}

// progress changes the progress of a driver with a claim.
func (c *Claims) progress(uid, driver string, p Progress, devices []pod.ClaimDevice, point string) error {
	return c.change(uid, func(r record) record { return r.with(driver, p, devices, c.boot) }, point)
}
