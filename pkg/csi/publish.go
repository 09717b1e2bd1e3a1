package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	// waitTimeout is how long one call of Publish waits for the driver and for the controller. The
	// pod's worker retries, and can stop the pod in between.
	waitTimeout = 15 * time.Second
	waitFirst   = 100 * time.Millisecond
	waitLast    = 2 * time.Second
	// lockTimeout is longer than a call to a driver.
	lockTimeout = callTimeout + 10*time.Second
	// renewAfter is when a volume whose driver requires republishing is published again (the
	// kubelet's period of syncs).
	renewAfter = time.Minute
	// maxSteps ends an operation whose steps have no effect.
	maxSteps = 16
)

// operation is one call of Publish or Unpublish: one volume, one pod.
type operation struct {
	*Volumes
	id        volumeID
	user      user
	driver    *driver // nil: not registered
	abilities abilities
	asked     bool // abilities has the driver's answer
	looked    bool // observe has read the state on the disk

	// Only Publish sets these.
	request    pod.CSIRequest // without a pod in Unpublish
	source     source
	object     *storagev1.CSIDriver // nil: the cluster has none
	attachment *storagev1.VolumeAttachment
	published  bool   // by this operation
	was        bool   // mounted for the pod before this operation
	label      string // the SELinux label with which the driver mounts it, "" for none
	renew      time.Time
	growth     pod.CSIGrowth
}

// source has the fields of a PersistentVolume or an inline volume that a driver gets.
type source struct {
	name          string // of the PersistentVolume, or of the pod's volume
	fsType        string
	attributes    map[string]string
	options       []string
	modes         []v1.PersistentVolumeAccessMode
	stageSecret   *v1.SecretReference
	publishSecret *v1.SecretReference
	lifecycle     string
}

// sourceOf returns the ID of the volume of a request, and its fields for the driver.
func sourceOf(q pod.CSIRequest) (volumeID, user, source, error) {
	uid := q.Want.UID()
	if p := q.Persistent; p != nil && p.Spec.CSI != nil && q.Inline == nil {
		c, block, name := p.Spec.CSI, pod.IsBlock(p), p.Name
		if q.Migrated {
			name = strings.ReplaceAll(name, "/", "~") // as the kubelet names its directory
		}
		id := volumeID{driver: c.Driver, handle: c.VolumeHandle}
		if block {
			id.block = p.Name
		}
		return id, user{uid, name, block}, source{
			name: p.Name, fsType: c.FSType, attributes: c.VolumeAttributes, options: p.Spec.MountOptions, modes: p.Spec.AccessModes,
			stageSecret: c.NodeStageSecretRef, publishSecret: c.NodePublishSecretRef, lifecycle: persistent,
		}, nil
	}
	if c := q.Inline; c != nil && q.Persistent == nil {
		s := source{name: q.Volume, attributes: c.VolumeAttributes, lifecycle: ephemeral}
		if c.FSType != nil {
			s.fsType = *c.FSType
		}
		if c.NodePublishSecretRef != nil {
			s.publishSecret = &v1.SecretReference{Namespace: q.Want.Namespace, Name: c.NodePublishSecretRef.Name}
		}
		return volumeID{driver: c.Driver, handle: inlineHandle(uid, q.Volume)}, user{uid: uid, name: q.Volume}, s, nil
	}
	return volumeID{}, user{}, source{}, errors.New("not a volume of a CSI driver")
}

// Publish mounts a volume for a pod, unless it is mounted. It waits a while for the driver and for
// the controller that attaches the volume.
func (v *Volumes) Publish(ctx context.Context, q pod.CSIRequest) (pod.CSIMount, error) {
	id, u, s, err := sourceOf(q)
	for _, check := range []func() error{id.check, func() error { return checkElement(u.uid) }, func() error { return checkElement(u.name) }} {
		if err == nil {
			err = check()
		}
	}
	if err == nil && v.cluster.API == nil {
		err = errNoCluster
	}
	if err != nil {
		return pod.CSIMount{}, err
	}
	o := &operation{Volumes: v, id: id, user: u, request: q, source: s}
	if o.object, err = v.cluster.API.CSIDriver(ctx, id.driver); err != nil {
		return pod.CSIMount{}, o.failed("MountVolume.SetUp", err)
	}
	if err := o.checkLifecycle(); err != nil {
		return pod.CSIMount{}, o.failed("MountVolume.SetUp", err)
	}
	if err := o.setLabel(); err != nil {
		return pod.CSIMount{}, o.failed("MountVolume.SetUp", err)
	}
	v.want(id, u, o.attachable())
	waiting, stop := context.WithTimeout(ctx, lockTimeout)
	unlock, err := o.wait(waiting)
	stop()
	if err != nil {
		return pod.CSIMount{}, o.failed("MountVolume.SetUp", fmt.Errorf("wait for another operation on the volume: %w", err))
	}
	defer unlock()
	defer func() { v.release(o.driver) }()
	v.want(id, u, o.attachable()) // an earlier operation may have unmounted the volume
	if err := o.up(ctx); err != nil {
		return pod.CSIMount{}, err
	}
	if err := o.grow(ctx); err != nil {
		return pod.CSIMount{}, err
	}
	return o.mount()
}

// wait locks the volume.
func (o *operation) wait(ctx context.Context) (unlock func(), err error) {
	defer activity.Begin(ctx, activity.Call{Kind: activity.Driver, Name: "wait for another operation on the volume", Target: o.id.handle, Host: o.id.driver})()
	return o.locks.Lock(ctx, o.id)
}

// mount returns the result of Publish.
func (o *operation) mount() (pod.CSIMount, error) {
	m := pod.CSIMount{Path: o.userTarget(o.user), Renew: o.renew, Growth: o.growth, Labeled: o.label != ""}
	if o.object != nil && o.object.Spec.RequiresRepublish != nil && *o.object.Spec.RequiresRepublish {
		if next := time.Now().Add(renewAfter); m.Renew.IsZero() || next.Before(m.Renew) {
			m.Renew = next
		}
	} else {
		m.Renew = time.Time{}
	}
	m.SetGroup = !o.abilities.mountsGroup && o.groupByNode()
	return m, nil
}

// up takes steps until the volume is mounted for the pod.
func (o *operation) up(ctx context.Context) error {
	until, pause := time.Now().Add(o.patience), time.Duration(0)
	for i := range maxSteps {
		s, err := o.observeUp(ctx)
		if err != nil {
			return o.failed("MountVolume.SetUp", err)
		}
		if i == 0 {
			o.was = s.Published == Done && s.Mounted
		}
		step := Next(s)
		if step.Action == WaitAttach {
			o.noteWait()
		}
		for step.Action == WaitDriver || step.Action == WaitReport || step.Action == WaitAttach {
			if err = o.await(ctx, step, until, &pause); err != nil {
				return err
			}
			if s, err = o.observeUp(ctx); err != nil {
				return o.failed("MountVolume.SetUp", err)
			}
			step = Next(s)
		}
		o.noteNoWait()
		switch step.Action {
		case Finish:
			return nil
		case Stage:
			err = o.stage(ctx)
		case Unstage:
			if err = o.unstage(ctx); err != nil {
				err = o.failed("MountVolume.MountDevice", err)
			}
		case Publish:
			err = o.publish(ctx)
		default:
			return o.unable(errors.New(step.Why))
		}
		if err != nil {
			return err
		}
	}
	return o.failed("MountVolume.SetUp", fmt.Errorf("the volume is not mounted after %d steps", maxSteps))
}

// await waits for the condition of a waiting step. After until, it returns the kubelet's error.
func (o *operation) await(ctx context.Context, step Step, until time.Time, pause *time.Duration) error {
	call := activity.Call{Kind: activity.Driver, Name: string(step.Action), Target: o.id.handle, Host: o.id.driver, Limit: until}
	defer activity.Begin(ctx, call)()
	*pause = backoff.Next(*pause, waitFirst, waitLast)
	if time.Now().Before(until) && backoff.Sleep(ctx, *pause) {
		return nil
	}
	switch {
	case step.Action == WaitDriver && o.source.lifecycle == persistent:
		return o.failed("MountVolume.MountDevice", fmt.Errorf("kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: %w", errNotRegistered(o.id.driver)))
	case step.Action == WaitDriver:
		return o.failed("MountVolume.SetUp", fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: %w", errNotRegistered(o.id.driver)))
	case step.Action == WaitAttach:
		if err := o.notAttached(ctx); err != nil {
			return o.rejected(o.failed("MountVolume.WaitForAttach", err))
		}
	}
	return o.unable(errors.New(step.Why))
}

// attachError returns the error of a failed or ending attachment; nil if the attachment is pending.
// The texts are the kubelet's.
func attachError(a *storagev1.VolumeAttachment) error {
	switch {
	case a.DeletionTimestamp != nil:
		return errors.New("volume attachment is being deleted")
	case !a.Status.Attached && a.Status.AttachError != nil:
		return errors.New(pluginconn.Short(a.Status.AttachError.Message))
	}
	return nil
}

// failed returns the kubelet's error of a failed operation on a volume.
func (o *operation) failed(operation string, err error) error {
	return fmt.Errorf("%s failed for volume %q : %w", operation, o.user.name, err)
}

// unable returns the kubelet's error of a pod that waits for a volume.
func (o *operation) unable(err error) error {
	return fmt.Errorf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[%s]: %w", o.request.Volume, o.request.Volume, err) //nolint:staticcheck // the kubelet's text
}

// observeUp observes a volume for a desired pod.
func (o *operation) observeUp(ctx context.Context) (State, error) {
	s, err := o.observe(ctx)
	if err != nil {
		return s, err
	}
	s.Wanted = true
	s.Exclusive = slices.Contains(o.source.modes, v1.ReadWriteOncePod)
	if s.Staged == Done && !o.user.block {
		d, err := readData(o.stageDir(o.id))
		if err != nil {
			return s, err
		}
		s.OtherLabel = d[keyLabel] != o.label
	}
	s.Renew = !o.published && o.object != nil && o.object.Spec.RequiresRepublish != nil && *o.object.Spec.RequiresRepublish
	if s.Attachable = o.attachable(); s.Attachable && (s.Published != Done || !s.Mounted || s.Renew) {
		s.Reported, s.Attached, err = o.isAttached(ctx)
	}
	return s, err
}

// observe observes a volume and its driver. It calls the driver last, and only if there is
// something to do for the driver.
func (o *operation) observe(ctx context.Context) (State, error) {
	if o.driver == nil {
		o.driver, o.asked = o.acquire(o.id.driver), false
	}
	o.looked = false
	s := State{Registered: o.driver != nil, Others: o.others(o.id, o.user, true)}
	inline, dir := o.source.lifecycle == ephemeral, o.userDir(o.user)
	var err error
	if !inline {
		if s.Staged, err = o.progressIn(o.stageDir(o.id)); err != nil {
			return s, err
		}
	}
	if s.Published, err = o.progressIn(dir); err != nil {
		return s, err
	}
	if err := o.checkOwn(dir); err != nil {
		return s, err
	}
	if s.Mounted, err = o.there(); err != nil {
		return s, err
	}
	s.Recorded = checkDir(dir) == nil
	o.looked = true
	idle := o.request.Want == nil && s.Staged == None && s.Published == None && !s.Mounted
	if o.driver != nil && !o.asked && !idle {
		if o.abilities, err = o.driver.abilities(ctx); err != nil {
			return s, err
		}
		o.asked = true
	}
	s.Stages = o.abilities.stages && !inline
	return s, nil
}

// checkOwn returns an error if the pod's directory belongs to another volume: two volumes of the
// pod have one name, or the name now has another volume.
func (o *operation) checkOwn(dir string) error {
	d, err := readData(dir)
	if err != nil && !errors.Is(err, errNoData) {
		return err
	}
	if id, ok := d.idOf(o.user); ok && id != o.id {
		return fmt.Errorf("%s is of another volume: %s of driver %s", dir, shownHandle(id.handle), id.driver)
	}
	return nil
}

// progressIn returns the progress in the vol_data.json of a directory. A damaged file counts as
// Begun: the call may have succeeded.
func (o *operation) progressIn(dir string) (Progress, error) {
	d, err := readData(dir)
	if errors.Is(err, errNoData) {
		return Begun, nil
	}
	return d.progress(o.boot), err
}

// attachable reports whether a controller attaches the volume first: it does unless the CSIDriver
// object says that it does not.
func (o *operation) attachable() bool {
	return o.source.lifecycle == persistent && (o.object == nil || o.object.Spec.AttachRequired == nil || *o.object.Spec.AttachRequired)
}

// isAttached reports whether the Node status lists the volume in volumesInUse, and whether the
// controller has attached the volume.
func (o *operation) isAttached(ctx context.Context) (reported, attached bool, err error) {
	n, name := o.node(), v1.UniqueVolumeName(o.id.unique())
	if n == nil || !slices.Contains(n.Status.VolumesInUse, name) {
		return false, false, nil
	}
	if !slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name }) {
		return true, false, nil
	}
	o.attachment, err = o.cluster.API.VolumeAttachment(ctx, o.id.attachment(o.cfg.Node))
	if a := o.attachment; err == nil && a != nil {
		if a.Spec.NodeName != o.cfg.Node || a.Spec.Attacher != o.id.driver {
			return true, false, fmt.Errorf("VolumeAttachment %s is of node %q and driver %q", a.Name, a.Spec.NodeName, a.Spec.Attacher)
		}
		attached = a.Status.Attached && a.DeletionTimestamp == nil
	}
	return true, attached, err
}

// setLabel sets the SELinux label with which the driver mounts the volume: that of the pod's containers,
// if the CSIDriver object asks for it and no other pod can use the volume, as with the kubelet.
func (o *operation) setLabel() error {
	asked := o.object != nil && o.object.Spec.SELinuxMount != nil && *o.object.Spec.SELinuxMount
	if !asked || o.user.block || !slices.Equal(o.source.modes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}) {
		return nil
	}
	switch labels := o.request.Labels; len(labels) {
	case 0:
	case 1:
		o.label = labels[0]
	default:
		return fmt.Errorf("multiple SELinux labels found: %s", strings.Join(labels, ","))
	}
	return nil
}

// checkLifecycle refuses a driver that does not have volumes of this kind. The texts are the
// kubelet's.
func (o *operation) checkLifecycle() error {
	mode := storagev1.VolumeLifecycleMode(o.source.lifecycle)
	switch {
	case o.object == nil && mode == storagev1.VolumeLifecyclePersistent:
		return nil
	case o.object == nil:
		return fmt.Errorf("kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (no CSIDriver object)", mode, o.id.driver)
	case !slices.Contains(o.object.Spec.VolumeLifecycleModes, mode):
		return fmt.Errorf("kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (only supports %q)", mode, o.id.driver, o.object.Spec.VolumeLifecycleModes)
	}
	return nil
}

// group is the pod's fsGroup, nil for none.
func (o *operation) group() *int64 {
	if c := o.request.Want.Pod.Spec.SecurityContext; c != nil {
		return c.FSGroup
	}
	return nil
}

// groupByNode reports whether the node changes the group of the volume's files, by the policy of
// the CSIDriver object.
func (o *operation) groupByNode() bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if o.object != nil && o.object.Spec.FSGroupPolicy != nil {
		policy = *o.object.Spec.FSGroupPolicy
	}
	switch {
	case o.user.block, o.group() == nil || o.request.ReadOnly || policy == storagev1.NoneFSGroupPolicy:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	case o.source.fsType == "":
		return false
	}
	return o.source.lifecycle == ephemeral ||
		slices.Contains(o.source.modes, v1.ReadWriteOnce) || slices.Contains(o.source.modes, v1.ReadWriteOncePod)
}
