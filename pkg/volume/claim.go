package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	claimsDir = "volumes"    // below the agent's directory
	claimData = "data"       // the directory that containers see
	claimFile = "claim.json" // the claim's data, beside it
)

// Claim is a directory of this node that a PersistentVolumeClaim is bound to. It is
// <root>/volumes/<namespace>/<name>, outlives every pod, and is removed by RemoveClaim
// only.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Created   time.Time `json:"created"`
	// Dir is the directory that containers see.
	Dir string `json:"-"`
}

// claim is a volume that shows a claim's directory. Every user may write to it (0777), and its
// size is not enforced, as with the usual provisioner of local paths. The host's users cannot
// reach it, because they cannot enter the directories above it.
type claim struct {
	dir, namespace, name string
	readOnly             bool
}

func (v *Volumes) claim(namespace string, s *v1.PersistentVolumeClaimVolumeSource) (kind, error) {
	dir, err := claimDir(v.cfg.RootDir, namespace, s.ClaimName)
	return claim{dir: dir, namespace: namespace, name: s.ClaimName, readOnly: s.ReadOnly}, err
}

// claimDir is the directory of a claim. Both names come from a manifest and have to be
// single path elements.
func claimDir(root, namespace, name string) (string, error) {
	for _, n := range []string{namespace, name} {
		if err := oneName(n); err != nil {
			return "", fmt.Errorf("claim %q in namespace %q: %w", name, namespace, err)
		}
	}
	return filepath.Join(root, claimsDir, namespace, name), nil
}

func (c claim) traits() traits { return traits{readOnly: c.readOnly, relabel: !c.readOnly} }

func (c claim) path(string) string { return filepath.Join(c.dir, claimData) }

// setUp makes the claim's directory at its first use. It changes the group of the files once
// per instance.
func (c claim) setUp(ctx context.Context, p placed, s *setting) error {
	if s.want.Data.Claim(c.name) == nil {
		return fmt.Errorf("persistentvolumeclaim %q not found", c.name)
	}
	if err := c.make(ctx, s.Volumes, p.path); err != nil {
		return err
	}
	if s.again || c.readOnly {
		return nil
	}
	var policy *v1.PodFSGroupChangePolicy
	if sc := s.want.Pod.Spec.SecurityContext; sc != nil {
		policy = sc.FSGroupChangePolicy
	}
	err := setGroup(ctx, p.path, s.group(), policy, false)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EOPNOTSUPP) {
		// On a file system without owners, or a remote one, the group stays, as in the
		// kubelet.
		s.log.Warn("Failed to change the group of a claim", "claim", c.namespace+"/"+c.name, "error", err)
		return nil
	}
	return err
}

// make makes the claim's directory and its file if they are missing. Several pods may call it at
// the same time. It locks only this claim, because its file system may hang.
func (c claim) make(ctx context.Context, v *Volumes, path string) error {
	unlock, err := v.claims.Lock(ctx, c.dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(c.dir, claimFile)
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		text, err := json.Marshal(Claim{Namespace: c.namespace, Name: c.name, Created: time.Now().UTC()})
		if err != nil {
			return err
		}
		if err := replaceFile(file, append(text, '\n')); err != nil {
			return err
		}
	}
	if info, err := os.Lstat(path); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is not a directory", path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next := path + ".new" // renamed when it has its mode
	if _, err := makeVolume(next, false); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// replaceFile replaces a file, 0600: readers see the old or the new file, never a part.
func replaceFile(path string, text []byte) error {
	return atomicfile.Write(path, text, atomicfile.Options{Temp: ".new"})
}

// Claims returns the claims below the agent's directory, ordered by namespace and name. A claim
// without a readable claim.json has no time of creation.
func Claims(root string) ([]Claim, error) {
	base := filepath.Join(root, claimsDir)
	namespaces, err := os.ReadDir(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []Claim
	for _, namespace := range namespaces {
		if !namespace.IsDir() {
			continue
		}
		claims, err := os.ReadDir(filepath.Join(base, namespace.Name()))
		if err != nil {
			return nil, err
		}
		for _, e := range claims {
			if !e.IsDir() {
				continue
			}
			dir := filepath.Join(base, namespace.Name(), e.Name())
			var c Claim
			if text, err := os.ReadFile(filepath.Join(dir, claimFile)); err == nil {
				_ = json.Unmarshal(text, &c) // an unreadable file leaves no time
			}
			c.Namespace, c.Name, c.Dir = namespace.Name(), e.Name(), filepath.Join(dir, claimData)
			all = append(all, c)
		}
	}
	return all, nil
}

// ErrNoClaim says that the claim does not exist.
var ErrNoClaim = errors.New("there is no such claim")

// RemoveClaim removes a claim and all its files. The caller has checked that no pod uses it. If
// something is mounted below it, nothing is removed and the error wraps a *MountedError. If ctx
// ends it, the claim still exists.
func RemoveClaim(ctx context.Context, root, namespace, name string) error {
	dir, err := claimDir(root, namespace, name)
	if err != nil {
		return err
	}
	err = func() error {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			return ErrNoClaim
		}
		if err := mountedAt(dir); err != nil {
			return err
		}
		above := filepath.Dir(dir)
		// The data first, so that Claims still knows a claim whose removal was interrupted.
		if err := removeTree(ctx, above, name, claimData); err != nil {
			return err
		}
		if err := removeTree(ctx, above, name); err != nil {
			return err
		}
		_ = os.Remove(above) // if it was the last one of its namespace
		return nil
	}()
	if err != nil {
		return fmt.Errorf("remove claim %s: %w", pod.Key{Namespace: namespace, Name: name}, err)
	}
	return nil
}
