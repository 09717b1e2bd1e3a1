package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/migration"
)

// NodeIDs returns the value of the Node's annotation with the drivers' IDs of this node, as JSON, or
// "". before is the current value. NodeIDs replaces an invalid one.
func (v *Volumes) NodeIDs(before string) string {
	ids := make(map[string]string)
	if json.Unmarshal([]byte(before), &ids) != nil || ids == nil {
		ids = make(map[string]string)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for name := range v.gone {
		delete(ids, name)
	}
	for name, d := range v.drivers {
		ids[name] = d.info.nodeID
	}
	if len(ids) == 0 {
		return ""
	}
	text, err := json.Marshal(ids) // with sorted keys
	if err != nil {
		return before
	}
	return string(text)
}

// Topology returns the topology labels that drivers request for the Node.
func (v *Volumes) Topology() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(v.drivers)) {
		maps.Copy(all, v.drivers[name].info.topology)
	}
	return all
}

// driverState returns a text that changes with the drivers or the Node's UID.
func (v *Volumes) driverState() string {
	uid := ""
	if n := v.node(); n != nil {
		uid = string(n.UID)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var b strings.Builder
	b.WriteString(uid)
	for _, name := range slices.Sorted(maps.Keys(v.gone)) {
		fmt.Fprintf(&b, " -%s", name)
	}
	for _, name := range slices.Sorted(maps.Keys(v.drivers)) {
		i := v.drivers[name].info
		fmt.Fprintf(&b, " +%s %q %d %v", name, i.nodeID, i.limit, i.topology)
	}
	return b.String()
}

// putCSINode updates the CSINode object to the registered drivers.
func (v *Volumes) putCSINode(ctx context.Context) error {
	n := v.node()
	if n == nil {
		return errNoNode
	}
	before, err := v.cluster.API.CSINode(ctx, v.cfg.Node)
	if err != nil {
		return err
	}
	v.mu.Lock()
	drivers := make(map[string]nodeInfo, len(v.drivers))
	for name, d := range v.drivers {
		drivers[name] = d.info
	}
	gone := maps.Clone(v.gone)
	v.mu.Unlock()
	after, again := csiNode(before, v.cfg.Node, n.UID, drivers, gone)
	if before == nil || !equality.Semantic.DeepEqual(before, after) {
		if err := v.cluster.API.PutCSINode(ctx, after); err != nil {
			return err
		}
	}
	if again {
		return errChanged
	}
	return nil
}

// errNoNode is the error while the UID of the Node object is unknown.
var errNoNode = errors.New("the Node object is not known")

// errChanged means that an entry was removed, and that the next request must add it again.
var errChanged = errors.New("an entry of the CSINode object has changed, and is added again")

// csiNode returns the CSINode object with these drivers and without the drivers in gone. Entries of
// other drivers stay: they may register again. csiNode changes a limit in its entry. The API server
// does not let a node change the node ID or the topology of an entry. csiNode removes such an entry and
// returns again: the next object adds it. The annotation makes controllers use CSI drivers also for
// volumes of clouds.
func csiNode(before *storagev1.CSINode, node string, uid types.UID, drivers map[string]nodeInfo, gone map[string]bool) (_ *storagev1.CSINode, again bool) {
	n := before.DeepCopy()
	if n == nil {
		n = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	}
	n.TypeMeta = metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSINode"}
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1.MigratedPluginsAnnotationKey, strings.Join(migration.Plugins(), ","))
	n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}}
	if n.Spec.Drivers == nil {
		n.Spec.Drivers = []storagev1.CSINodeDriver{}
	}
	had := make(map[string]bool)
	n.Spec.Drivers = slices.DeleteFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
		had[d.Name] = true
		is, registered := drivers[d.Name]
		d.Allocatable = nil
		changed := registered && !equality.Semantic.DeepEqual(d, entry(d.Name, nodeInfo{nodeID: is.nodeID, topology: is.topology}))
		again = again || changed
		return changed || gone[d.Name]
	})
	for i := range n.Spec.Drivers {
		if is, registered := drivers[n.Spec.Drivers[i].Name]; registered {
			n.Spec.Drivers[i].Allocatable = allocatable(is)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		if !had[name] {
			n.Spec.Drivers = append(n.Spec.Drivers, entry(name, drivers[name]))
		}
	}
	return n, again
}

// entry returns the entry of a driver in a CSINode object.
func entry(name string, i nodeInfo) storagev1.CSINodeDriver {
	return storagev1.CSINodeDriver{Name: name, NodeID: i.nodeID, TopologyKeys: slices.Sorted(maps.Keys(i.topology)), Allocatable: allocatable(i)}
}

// allocatable returns the driver's limit of volumes for a CSINode object, or nil.
func allocatable(i nodeInfo) *storagev1.VolumeNodeResources {
	if i.limit <= 0 {
		return nil
	}
	count := int32(min(i.limit, math.MaxInt32))
	return &storagev1.VolumeNodeResources{Count: &count}
}
