package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/pod"
)

// TearDown removes the volumes of one instance of the pod with uid: the instance's directory, with
// all files of its containers. It never follows a link out of the directory. It unmounts the
// agent's own mounts. If something else is mounted below, it unmounts and removes nothing, and the
// error wraps a *MountedError. A missing instance is success. If ctx ends it, the next call
// continues.
func (v *Volumes) TearDown(ctx context.Context, uid string, instance int) error {
	dir, err := v.podDir(uid)
	if err != nil {
		return err
	}
	name := strconv.Itoa(instance)
	// Before the drivers unmount, because mounts of subPaths keep their volumes busy.
	err = v.removeInstance(ctx, dir, uid, name)
	if err == nil {
		err = v.unpublish(ctx, uid)
	}
	if err != nil {
		return fmt.Errorf("tear down volumes of pod %s, instance %d: %w", uid, instance, err)
	}
	return nil
}

// removeInstance removes an instance's directory. It removes the marker first, so that an instance
// whose removal was interrupted is not ready.
func (v *Volumes) removeInstance(ctx context.Context, dir, uid, name string) error {
	defer activity.Begin(ctx, activity.Call{Kind: activity.Volume, Name: "remove volumes", Path: filepath.Join(dir, name)})()
	if err := v.unmountOwn(uid, filepath.Join(dir, name)); err != nil {
		return err
	}
	v.forgetMark(filepath.Join(dir, name))
	if err := removeTree(ctx, v.pods, uid, name, marker); err != nil {
		return err
	}
	return removeTree(ctx, v.pods, uid, name)
}

// Forget removes all files of the pod: its log directory with the links to it (C-1.33.5), every
// instance, and last the other files, among them the pod's record. An agent that was interrupted
// finds the record and calls Forget again. It treats mounts and links as TearDown does.
func (v *Volumes) Forget(ctx context.Context, key pod.Key, uid string) error {
	dir, err := v.podDir(uid)
	if err != nil {
		return err
	}
	logs := logDirectory(key, uid)
	if len(logs) > syscall.NAME_MAX {
		logs = "" // such a directory cannot have been made
	} else if err := oneName(logs); err != nil {
		return fmt.Errorf("log directory %q: %w", logs, err)
	}
	if err := v.forget(ctx, dir, uid, logs); err != nil {
		return fmt.Errorf("remove files of pod %s: %w", key, err)
	}
	return nil
}

func (v *Volumes) forget(ctx context.Context, dir, uid, logs string) error {
	if err := v.unmountOwn(uid, dir); err != nil {
		return err
	}
	if err := v.unpublish(ctx, uid); err != nil {
		return err
	}
	v.forgetMark(dir)
	if v.cfg.PodLogsDir != "" && logs != "" {
		if err := v.removeLogs(ctx, logs); err != nil {
			return err
		}
	}
	instances, err := directories(v.pods, uid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range instances {
		if err := v.removeInstance(ctx, dir, uid, name); err != nil {
			return err
		}
	}
	return removeTree(ctx, v.pods, uid)
}

// logDirectory is the name of a pod's log directory (C-1.22.10).
func logDirectory(key pod.Key, uid string) string {
	return key.Namespace + "_" + key.Name + "_" + uid
}

// removeLogs removes the links into a pod's log directory, then the directory. So a call after an
// interruption still finds the directory.
func (v *Volumes) removeLogs(ctx context.Context, name string) error {
	defer activity.Begin(ctx, activity.Call{Kind: activity.Log, Name: "remove logs", Path: filepath.Join(v.cfg.PodLogsDir, name)})()
	if err := v.removeLinks(filepath.Join(v.cfg.PodLogsDir, name) + string(filepath.Separator)); err != nil {
		return err
	}
	return removeTree(ctx, v.cfg.PodLogsDir, name)
}

// removeLinks removes the links whose targets begin with into. Other files beside them
// stay.
func (v *Volumes) removeLinks(into string) error {
	if v.cfg.ContainerLogsDir == "" {
		return nil
	}
	entries, err := os.ReadDir(v.cfg.ContainerLogsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		link := filepath.Join(v.cfg.ContainerLogsDir, e.Name())
		if target, err := os.Readlink(link); err != nil || !strings.HasPrefix(target, into) {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Sweep removes the directories of pods, with their log directories, unless keep returns true for
// their UIDs. An agent that was killed may have left them without a record. It calls keep right before
// each removal, and returns the removed UIDs. It treats mounts and links as TearDown does. A
// directory that cannot be removed does not block the others.
func (v *Volumes) Sweep(ctx context.Context, keep func(uid string) bool) (removed []string, err error) {
	uids, err := os.ReadDir(v.pods)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	var failed []error
	busy := make(map[string]bool) // subPaths of drivers' volumes may be mounted
	for _, e := range uids {
		uid := e.Name()
		if !e.IsDir() || oneName(uid) != nil || keep(uid) {
			continue
		}
		if err := v.sweepOwn(ctx, uid); err != nil {
			busy[uid] = true
			failed = append(failed, fmt.Errorf("remove directory of unknown pod %s: %w", uid, err))
			continue
		}
		if err := v.sweep(ctx, uid); err != nil {
			failed = append(failed, fmt.Errorf("remove directory of unknown pod %s: %w", uid, err))
			continue
		}
		removed = append(removed, uid)
	}
	if v.cfg.Drivers != nil {
		failed = append(failed, v.cfg.Drivers.Sweep(ctx, func(uid string) bool { return busy[uid] || keep(uid) }))
	}
	return removed, errors.Join(append(failed, err)...)
}

// sweepLogs removes the log directories of a UID. The UID may be any name of a directory:
// it is compared literally.
func (v *Volumes) sweepLogs(ctx context.Context, uid string) error {
	if v.cfg.PodLogsDir == "" {
		return nil
	}
	logs, err := os.ReadDir(v.cfg.PodLogsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, l := range logs {
		// A namespace or a name has no "_".
		if parts := strings.SplitN(l.Name(), "_", 3); len(parts) < 3 || parts[2] != uid {
			continue
		}
		if err := v.removeLogs(ctx, l.Name()); err != nil {
			return err
		}
	}
	return nil
}

// sweepOwn removes the log directories with the UID of one pod, and the agent's own mounts in the
// pod's directory.
func (v *Volumes) sweepOwn(ctx context.Context, uid string) error {
	if err := v.sweepLogs(ctx, uid); err != nil {
		return err
	}
	dir, err := v.podDir(uid)
	if err != nil {
		return err
	}
	return v.unmountOwn(uid, dir)
}

// sweep unpublishes the volumes of one pod, and removes its directory.
func (v *Volumes) sweep(ctx context.Context, uid string) error {
	if err := v.unpublish(ctx, uid); err != nil {
		return err
	}
	return removeTree(ctx, v.pods, uid)
}
