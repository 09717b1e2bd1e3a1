package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// driver serves all three services of CSI. Calls run one at a time.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	name, dir, node string

	mu sync.Mutex
}

// volume is the content of the file of a volume.
type volume struct {
	Name     string // by which it was requested
	Capacity int64  // bytes
	Attached string // the node, "" for none
	Size     int64  // bytes of the file system on the node, which NodeExpandVolume enlarges
	// Ephemeral says that the volume is created and deleted with its mount.
	Ephemeral bool
}

// logged appends a call that changes something to the file "calls", and runs one call at a time.
func (d *driver) logged(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	answer, err := handle(ctx, q)
	line := path.Base(info.FullMethod)
	switch line {
	case "GetPluginInfo", "GetPluginCapabilities", "Probe", "ControllerGetCapabilities", "NodeGetCapabilities", "NodeGetInfo", "NodeGetVolumeStats":
		return answer, err
	}
	if v, is := q.(interface{ GetVolumeId() string }); is {
		line += " " + v.GetVolumeId()
	}
	if err != nil {
		line += " failed: " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	f, bad := os.OpenFile(filepath.Join(d.dir, "calls"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if bad == nil {
		_, bad = fmt.Fprintln(f, line)
		bad = errors.Join(bad, f.Close())
	}
	if bad != nil {
		return nil, status.Error(codes.Internal, bad.Error())
	}
	return answer, err
}

// idOf is the ID of the volume that was requested by a name.
func idOf(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name)))[:32] }

func (d *driver) file(id string) string { return filepath.Join(d.dir, id+".json") }
func (d *driver) data(id string) string { return filepath.Join(d.dir, "volumes", id) }

// load reads a volume. Its error is NotFound if there is none.
func (d *driver) load(id string) (v volume, err error) {
	if id == "" || id != filepath.Base(id) {
		return v, status.Errorf(codes.InvalidArgument, "%q is not the ID of a volume", id)
	}
	text, err := os.ReadFile(d.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return v, status.Errorf(codes.NotFound, "volume %s does not exist", id)
	}
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	return v, err
}

// save writes a volume, and makes its directory.
func (d *driver) save(id string, v volume) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.data(id), 0o777); err != nil {
		return err
	}
	temp := d.file(id) + ".new"
	if err := os.WriteFile(temp, text, 0o640); err != nil {
		return err
	}
	return os.Rename(temp, d.file(id))
}

// remove removes a volume and its data.
func (d *driver) remove(id string) error {
	if err := os.RemoveAll(d.data(id)); err != nil {
		return err
	}
	if err := os.Remove(d.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// show mounts a directory on a path, once.
func show(from, to string, readOnly bool) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return err
	}
	if mounted, err := mountinfo.Mounted(to); err != nil || mounted {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	if !readOnly {
		return nil
	}
	return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// hide removes the mount from a path, and the path.
func hide(at string) error {
	mounted, err := mountinfo.Mounted(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && mounted {
		err = unix.Unmount(at, 0)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", at, err)
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// published reports whether a pod's path shows the volume.
func (d *driver) published(id string) (bool, error) {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return false, err
	}
	for _, m := range all {
		if path.Base(m.Root) == id && strings.Contains(m.Mountpoint, "/pods/") {
			return true, nil
		}
	}
	return false, nil
}
