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
	claimsDir = "volumes"    // under the agent's directory
	claimData = "data"       // what containers see of a claim
	claimFile = "claim.json" // what a claim is, beside it
)

// Claim is a directory of this node that a PersistentVolumeClaim is bound to. It
// lies in <root>/volumes/<namespace>/<name>, outlives every pod, and is removed by
// RemoveClaim only.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Created   time.Time `json:"created"`
	// Dir is what containers see.
	Dir string `json:"-"`
}

// claim is a volume that shows a claim's directory. As with the usual provisioner of
// local paths, every user may write to it (0777) and its size is not enforced; the
// directories above it keep the host's users out.
type claim struct {
	dir, namespace, name string
	readOnly             bool
}

func (v *Volumes) claim(namespace string, s *v1.PersistentVolumeClaimVolumeSource) (kind, error) {
	dir, err := claimDir(v.cfg.RootDir, namespace, s.ClaimName)
	return claim{dir: dir, namespace: namespace, name: s.ClaimName, readOnly: s.ReadOnly}, err
}

// claimDir is where a claim lies. Both names have to be plain: a manifest gave them.
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

// put makes the claim's directory at its first use. The group of what it holds is
// changed once an instance.
func (c claim) put(ctx context.Context, p placed, s *setting) error {
	if s.want.Data.Claim(c.name) == nil {
		return fmt.Errorf("persistentvolumeclaim %q not found", c.name)
	}
	if err := c.make(s.Volumes, p.path); err != nil {
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
		// A file system without owners, or one of another machine: as it is, as with the
		// kubelet.
		s.log.Warn("Group of claim not changed", "claim", c.namespace+"/"+c.name, "error", err)
		return nil
	}
	return err
}

// make makes the claim's directory, and what says whose it is, where they are missing.
// Many pods may do so at once: one of them makes what all of them mount.
func (c claim) make(v *Volumes, path string) error {
	v.claims.Lock()
	defer v.claims.Unlock()
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
	next := path + ".new" // an end on the way leaves none with another mode
	if _, err := makeVolume(next, false); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// replaceFile replaces a file, 0600: a reader finds it whole or not at all.
func replaceFile(path string, text []byte) error {
	return atomicfile.Write(path, text, atomicfile.Options{Temp: ".new"})
}

// Claims returns the claims that lie under the agent's directory, in order of
// namespace and name. One whose file is lost has no time of creation.
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
				_ = json.Unmarshal(text, &c) // what is not readable has no time
			}
			c.Namespace, c.Name, c.Dir = namespace.Name(), e.Name(), filepath.Join(dir, claimData)
			all = append(all, c)
		}
	}
	return all, nil
}

// ErrNoClaim says that there is no such claim.
var ErrNoClaim = errors.New("there is no such claim")

// RemoveClaim removes a claim and all that it holds. The caller has seen to it that
// no pod uses it. Nothing is removed while something is mounted beneath: the error
// wraps a *MountedError. The end of ctx ends it; what is half removed is still a claim.
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
		// The data first: what is half removed is still a claim.
		if err := removeTree(ctx, above, name, claimData); err != nil {
			return err
		}
		if err := removeTree(ctx, above, name); err != nil {
			return err
		}
		_ = os.Remove(above) // when it was the last one of its namespace
		return nil
	}()
	if err != nil {
		return fmt.Errorf("remove claim %s: %w", pod.Key{Namespace: namespace, Name: name}, err)
	}
	return nil
}
