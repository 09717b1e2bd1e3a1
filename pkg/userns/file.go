package userns

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	fileName = "userns"
	tmpName  = "userns.tmp" // incomplete
	maxBytes = 4096         // our files are shorter
)

// stored is the file's format, which is the kubelet's (C-1.42.1).
type stored struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// checkUID refuses a UID that is not a single path element: UIDs come from manifests.
func checkUID(uid string) error {
	if !filepath.IsLocal(uid) || uid == "." || strings.ContainsAny(uid, "/\x00") {
		return fmt.Errorf("%q: %w", uid, errUID)
	}
	return nil
}

func dirOf(uid string) string { return filepath.Join("pods", uid) }

// written reports whether the pod's file exists.
func (b *Blocks) written(uid string) bool {
	info, err := os.Lstat(filepath.Join(b.cfg.Root, dirOf(uid), fileName))
	return err == nil && info.Mode().IsRegular()
}

// readAll returns the blocks of the pods on the disk, and the errors of unreadable files,
// by UID.
func (b *Blocks) readAll() (have map[string]pod.Users, wrong map[string]error, err error) {
	have, wrong = map[string]pod.Users{}, map[string]error{}
	root, err := os.OpenRoot(b.cfg.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return have, wrong, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	list, err := fs.ReadDir(root.FS(), "pods")
	if errors.Is(err, fs.ErrNotExist) {
		return have, wrong, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, d := range list {
		if !d.IsDir() {
			continue
		}
		users, err := readOne(root, d.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			wrong[d.Name()] = fmt.Errorf("%s: %w", filepath.Join(b.cfg.Root, dirOf(d.Name()), fileName), err)
		default:
			have[d.Name()] = users
		}
	}
	return have, wrong, nil
}

func readOne(root *os.Root, uid string) (pod.Users, error) {
	f, err := root.OpenFile(filepath.Join(dirOf(uid), fileName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return pod.Users{}, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return pod.Users{}, errors.Join(err, errors.New("it is not a regular file"))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return pod.Users{}, err
	}
	if len(text) > maxBytes {
		return pod.Users{}, errors.New("it is damaged: it is too long")
	}
	return decode(text)
}

// decode reads a complete file: both halves must be equal.
func decode(text []byte) (pod.Users, error) {
	var s stored
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return pod.Users{}, fmt.Errorf("it is damaged: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return pod.Users{}, errors.New("it is damaged: it has data after the mappings")
	}
	if len(s.UIDs) != 1 || len(s.GIDs) != 1 || s.UIDs[0] != s.GIDs[0] || s.UIDs[0].ContainerID != 0 ||
		s.UIDs[0].HostID == 0 || s.UIDs[0].Length == 0 {
		return pod.Users{}, errors.New("it is damaged: it does not map one block of users and the same block of groups")
	}
	return pod.Users{HostID: s.UIDs[0].HostID, Length: s.UIDs[0].Length}, nil
}

func encode(u pod.Users) []byte {
	m := []mapping{{HostID: u.HostID, Length: u.Length}}
	text, _ := json.Marshal(stored{UIDs: m, GIDs: m}) // numbers can always be encoded
	return append(text, '\n')
}

// write writes the pod's file atomically, and makes and syncs the directories above it.
func (b *Blocks) write(uid string, u pod.Users) error {
	if err := os.MkdirAll(b.cfg.Root, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(b.cfg.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	dir := dirOf(uid)
	if err := root.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp := filepath.Join(dir, tmpName)
	if err := root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = writeSynced(root, tmp, encode(u))
	if err == nil {
		err = root.Rename(tmp, filepath.Join(dir, fileName))
	}
	if err != nil {
		_ = root.Remove(tmp) // the first error is the one that counts
		return err
	}
	for _, d := range []string{dir, "pods", "."} {
		if err := syncDir(root, d); err != nil {
			return err
		}
	}
	return nil
}

func writeSynced(root *os.Root, path string, text []byte) error {
	f, err := root.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove removes the pod's file. If a crash of the node brings the file back, its block
// stays reserved until the pod's directory is removed.
func (b *Blocks) remove(uid string) error {
	root, err := os.OpenRoot(b.cfg.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{fileName, tmpName} {
		if err := root.Remove(filepath.Join(dirOf(uid), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
