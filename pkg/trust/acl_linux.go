package trust

import (
	"errors"

	"golang.org/x/sys/unix"
)

// readACL returns the access ACL of what is at path, nil when it has none. Only root and
// trusted users can exchange what is at path: the directories on the way are judged, too.
func readACL(path string) ([]byte, error) {
	const name, mostBytes = "system.posix_acl_access", 1 << 16 // the kernel's bound of an attribute
	acl := make([]byte, mostBytes)
	for {
		n, err := unix.Getxattr(path, name, acl)
		switch {
		case err == nil:
			return acl[:n], nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOENT):
			return nil, nil
		default:
			return nil, err
		}
	}
}
