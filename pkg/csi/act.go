package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pluginconn"
)

// step is a point at which tests stop an operation, as a kill of the agent would.
func (v *Volumes) step(name string) error {
	if v.cut != nil {
		return v.cut(name)
	}
	return nil
}

// stage stages the volume.
func (o *operation) stage(ctx context.Context) error {
	const name = "MountVolume.MountDevice"
	dir, target := o.stageDir(o.id), o.stageTarget(o.id)
	before, err := readData(dir)
	if err != nil && !errors.Is(err, errNoData) {
		return o.failed(name, err)
	}
	secrets, err := o.secrets(ctx, "NodeStageSecretRef", o.source.stageSecret)
	if err != nil {
		return o.failed(name, err)
	}
	if err := errors.Join(o.makeDir(target), o.makeDir(dir)); err != nil {
		return o.failed(name, fmt.Errorf("kubernetes.io/csi: attacher.MountDevice failed to create dir %q:  %w", target, err))
	}
	d := data{keyDriver: o.id.driver, keyHandle: o.id.handle, keyAttach: fmt.Sprint(o.attachable())}
	if o.label != "" {
		d[keyLabel] = o.label
	}
	if err := o.save(dir, d, Begun, "stage begun"); err != nil {
		return o.failed(name, err)
	}
	o.noteStaged(o.id, true)
	calling, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	end := o.driver.note(calling, "NodeStageVolume", o.id.handle, target)
	_, err = o.driver.node.NodeStageVolume(calling, &csipb.NodeStageVolumeRequest{
		VolumeId: o.id.handle, PublishContext: o.publishContext(), StagingTargetPath: target, VolumeCapability: o.capability(),
		Secrets: secrets, VolumeContext: o.source.attributes,
	})
	end()
	if err != nil {
		if isFinal(err) && before == nil {
			o.unmade(dir, target, func() { o.noteStaged(o.id, false) })
		}
		return o.failed(name, pluginconn.ShortError(err))
	}
	err = o.step("staged")
	if err == nil && o.id.block == "" { // no container gets the directory of a block volume
		err = checkDir(target)
	}
	if err == nil {
		err = o.save(dir, d, Done, "stage done")
	}
	if err != nil {
		return o.failed(name, err)
	}
	return nil
}

// publish publishes the volume for the pod.
func (o *operation) publish(ctx context.Context) error {
	const name = "MountVolume.SetUp"
	dir, target := o.userDir(o.user), o.userTarget(o.user)
	before, err := readData(dir)
	if err != nil && !errors.Is(err, errNoData) {
		return o.failed(name, err)
	}
	secrets, err := o.secrets(ctx, "NodePublishSecretRef", o.source.publishSecret)
	if err != nil {
		return o.failed(name, err)
	}
	attributes, err := o.podContext(ctx, secrets)
	if err != nil {
		return o.failed(name, err)
	}
	again := before.progress(o.boot) == Done
	d := data{
		keyVolume: o.source.name, keyHandle: o.id.handle, keyDriver: o.id.driver, keyNode: o.cfg.Node, keyLifecycle: o.source.lifecycle,
		keyAttachment: o.id.attachment(o.cfg.Node), keyAttach: fmt.Sprint(o.attachable()), keyInPod: o.request.Volume,
	}
	if o.label != "" {
		d[keyLabel] = o.label
	}
	if !again { // a published volume stays published, also if this call fails
		if err := errors.Join(o.makeDir(dir), o.makeDir(filepath.Dir(target))); err != nil {
			return o.failed(name, fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to create dir %q:  %w", dir, err))
		}
		if err := o.save(dir, d, Begun, "publish begun"); err != nil {
			return o.failed(name, err)
		}
		o.note(o.id, o.user, true)
	}
	q := &csipb.NodePublishVolumeRequest{
		VolumeId: o.id.handle, PublishContext: o.publishContext(), TargetPath: target, VolumeCapability: o.capability(),
		Readonly: o.request.ReadOnly, Secrets: secrets, VolumeContext: attributes,
	}
	if o.abilities.stages && o.source.lifecycle == persistent {
		q.StagingTargetPath = o.stageTarget(o.id)
	}
	calling, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	end := o.driver.note(calling, "NodePublishVolume", o.id.handle, target)
	_, err = o.driver.node.NodePublishVolume(calling, q)
	end()
	if err != nil {
		if isFinal(err) && before == nil {
			o.unmade(dir, target, func() { o.note(o.id, o.user, false); o.want(o.id, o.user, o.attachable()) })
		}
		return o.failed(name, pluginconn.ShortError(err))
	}
	if err := o.step("published"); err != nil {
		return o.failed(name, err)
	}
	if err := o.checkPublished(target); err != nil {
		return o.failed(name, err)
	}
	if o.published = true; again {
		return nil
	}
	if err := o.save(dir, d, Done, "publish done"); err != nil {
		return o.failed(name, err)
	}
	return nil
}

// checkPublished refuses a target that is no mount, or a link: containers would write to another
// place of the node. The target of a block volume has to be a block device.
func (o *operation) checkPublished(target string) error {
	if o.user.block {
		if !isDevice(target) {
			return fmt.Errorf("CSI driver %s has put no block device at %s", o.id.driver, target)
		}
		return nil
	}
	at, err := mountAt(target)
	switch {
	case err != nil:
		return err
	case at == nil:
		return fmt.Errorf("CSI driver %s has mounted nothing on %s", o.id.driver, target)
	}
	return nil
}

// save writes the vol_data.json of a volume with a progress.
func (o *operation) save(dir string, d data, p Progress, point string) error {
	if err := writeData(dir, d.with(p, o.boot)); err != nil {
		return fmt.Errorf("kubernetes.io/csi: failed to save volume info data: %w", err)
	}
	return o.step(point)
}

// unmade removes the directory of a call that has surely failed, unless something is mounted there.
func (o *operation) unmade(dir, target string, gone func()) {
	at, err := mountAt(target)
	if err != nil || at != nil || isDevice(target) {
		return
	}
	if err := removeDir(dir, target); err != nil {
		o.cfg.Log.Debug("Failed to remove directory of volume", "directory", dir, "error", err)
		return
	}
	gone()
}

// unpublish unmounts a volume for a pod that is gone, and unstages it if no other pod uses it. Run
// retries a failed unstaging, because the pod does not need it. unpublish does nothing if still
// returns false while the volume is locked; nil stands for true.
func (v *Volumes) unpublish(ctx context.Context, id volumeID, u user, still func(user) bool) error {
	o := &operation{Volumes: v, id: id, user: u, source: source{lifecycle: persistent}}
	if d, err := readData(v.userDir(u)); err == nil && d[keyLifecycle] == ephemeral {
		o.source.lifecycle = ephemeral
	}
	waiting, stop := context.WithTimeout(ctx, lockTimeout)
	unlock, err := o.wait(waiting)
	stop()
	if err != nil {
		return o.failed("UnmountVolume.TearDown", fmt.Errorf("wait for another operation on the volume: %w", err))
	}
	defer unlock()
	defer func() { v.release(o.driver) }()
	if still != nil && !still(u) {
		return nil
	}
	if id == (volumeID{}) { // all unknown volumes share one lock
		return o.unpublishUnknown()
	}
	return o.down(ctx)
}

// unpublishUnknown removes the directory of a volume whose vol_data.json is lost, if nothing is
// mounted there: the driver is unknown.
func (o *operation) unpublishUnknown() error {
	dir := o.userDir(o.user)
	d, err := readData(dir)
	if err == nil && d != nil {
		err = fmt.Errorf("%s has changed", filepath.Join(dir, dataFile))
	} else if errors.Is(err, errNoData) {
		err = nil
	}
	if err != nil { // the file may name the volume after all
		return o.failed("UnmountVolume.TearDown", err)
	}
	there, err := o.there()
	if err == nil && there {
		err = fmt.Errorf("%s is mounted, and its %s is lost: unmount it", o.userTarget(o.user), dataFile)
	}
	if err == nil {
		err = removeDir(dir, o.userTarget(o.user))
	}
	if err != nil {
		return o.failed("UnmountVolume.TearDown", err)
	}
	o.noteGone()
	return nil
}

// down takes steps until the volume is unpublished for the pod. Run retries a failed unstaging.
func (o *operation) down(ctx context.Context) error {
	if _, err := readData(o.userDir(o.user)); errors.Is(err, errNoData) {
		return o.unpublishUnknown()
	}
	for range maxSteps {
		s, err := o.observe(ctx)
		gone := o.looked && s.Published == None && !s.Mounted && !s.Recorded
		if gone {
			o.noteGone()
		}
		if err != nil && gone {
			return o.later(err)
		}
		if err != nil {
			return o.failed("UnmountVolume.TearDown", err)
		}
		s.Others = o.others(o.id, o.user, false)
		switch step := Next(s); step.Action {
		case Finish:
			return nil
		case WaitDriver:
			if s.Published == None && !s.Mounted {
				return o.later(errNotRegistered(o.id.driver))
			}
			return o.failed("UnmountVolume.TearDown", fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: %w", errNotRegistered(o.id.driver)))
		case Unpublish:
			if err := o.unmount(ctx); err != nil {
				return o.failed("UnmountVolume.TearDown", err)
			}
		case Clear:
			if err := o.clear(); err != nil {
				return o.failed("UnmountVolume.TearDown", err)
			}
		case Unstage:
			if err := o.unstage(ctx); err != nil {
				return o.later(err)
			}
		case ClearStage:
			if err := o.clearStage(); err != nil {
				return o.later(err)
			}
		default:
			return o.failed("UnmountVolume.TearDown", errors.New(step.Why))
		}
	}
	return o.failed("UnmountVolume.TearDown", fmt.Errorf("the volume is not unmounted after %d steps", maxSteps))
}

// noteGone notes that the pod's directory of the volume is gone: the pod has no volume of this name
// any more.
func (o *operation) noteGone() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, at := range o.volumes {
		if _, uses := at.users[o.user]; uses {
			delete(at.users, o.user)
			delete(at.waits, o.user)
			o.forgetLocked(id, at)
		}
	}
}

// unmount asks the driver to unpublish the volume, and removes its file.
func (o *operation) unmount(ctx context.Context) error {
	target := o.userTarget(o.user)
	calling, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	end := o.driver.note(calling, "NodeUnpublishVolume", o.id.handle, target)
	_, err := o.driver.node.NodeUnpublishVolume(calling, &csipb.NodeUnpublishVolumeRequest{VolumeId: o.id.handle, TargetPath: target})
	end()
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed: %w", pluginconn.ShortError(err))
	}
	if err := o.step("unpublished"); err != nil {
		return err
	}
	there, err := o.there()
	if err == nil && there {
		err = fmt.Errorf("CSI driver %s has not unmounted %s", o.id.driver, target)
	}
	if err != nil {
		return err
	}
	return o.clear()
}

// there reports whether something is at the target of the pod: a mount or, of a block volume, a
// device.
func (o *operation) there() (bool, error) {
	target := o.userTarget(o.user)
	at, err := mountAt(target)
	return at != nil || o.user.block && isDevice(target), err
}

// clear removes the directory of a volume for the pod that is not published.
func (o *operation) clear() error {
	target := o.userTarget(o.user)
	if err := removeDir(o.userDir(o.user), target); err != nil {
		return err
	}
	if o.user.block {
		_ = os.Remove(filepath.Dir(target)) // unless it has devices of other pods
	}
	return nil
}

// unstage asks the driver to unstage the volume.
func (o *operation) unstage(ctx context.Context) error {
	target := o.stageTarget(o.id)
	shown, err := references(target)
	if err == nil && len(shown) > 0 {
		err = fmt.Errorf("the device mount path %q is still mounted by other references %v", target, shown)
	}
	if err != nil {
		return err
	}
	if err := o.unsure(); err != nil {
		return err
	}
	calling, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	end := o.driver.note(calling, "NodeUnstageVolume", o.id.handle, target)
	_, err = o.driver.node.NodeUnstageVolume(calling, &csipb.NodeUnstageVolumeRequest{VolumeId: o.id.handle, StagingTargetPath: target})
	end()
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: attacher.UnmountDevice failed: %w", pluginconn.ShortError(err))
	}
	if err := o.step("unstaged"); err != nil {
		return err
	}
	return o.clearStage()
}

// unsure writes that the volume may not be staged any more: an agent that is killed during the call
// must not leave a file from which the next one takes that it is.
func (o *operation) unsure() error {
	dir := o.stageDir(o.id)
	d, err := readData(dir)
	if err != nil || d.progress(o.boot) != Done {
		return nil // it does not say so
	}
	return writeData(dir, d.with(Begun, o.boot))
}

// clearStage removes the directory of a volume that is not staged.
func (o *operation) clearStage() error {
	dir, target := o.stageDir(o.id), o.stageTarget(o.id)
	at, err := mountAt(target)
	if err == nil && at != nil {
		err = fmt.Errorf("CSI driver %s has not unmounted %s", o.id.driver, at.Mountpoint)
	}
	if err == nil {
		err = removeDir(dir, target)
	}
	if err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(dir)) // the driver's directory, if it is empty
	o.noteStaged(o.id, false)
	return nil
}

// later makes Run retry the unstaging of a volume.
func (o *operation) later(err error) error {
	o.cfg.Log.Warn("Failed to unstage volume; retrying", "driver", o.id.driver, "volume", shownHandle(o.id.handle), "error", err)
	o.retryUnstage(o.id)
	return nil
}

// shownHandle returns a handle for logs, shortened if it is long.
func shownHandle(handle string) string {
	const most = 128
	if len(handle) > most {
		return handle[:most] + "…"
	}
	return handle
}

// sortNames sorts the names of volumes.
func sortNames(all []v1.UniqueVolumeName) {
	slices.SortFunc(all, func(a, b v1.UniqueVolumeName) int { return strings.Compare(string(a), string(b)) })
}
