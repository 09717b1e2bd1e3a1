package trust

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// readACL returns the access ACL of what is at path, or of what fd holds where it is not 0:
// nil when it has none. It reads by way of /proc, as a descriptor that cannot read has no
// attributes itself.
func readACL(path string, fd int) ([]byte, error) {
	const name, mostBytes = "system.posix_acl_access", 1 << 16 // the kernel's bound of an attribute
	if fd != 0 {
		path = "/proc/self/fd/" + strconv.Itoa(fd)
	}
	acl := make([]byte, mostBytes)
	for {
		n, err := unix.Getxattr(path, name, acl)
		switch {
		case err == nil:
			return acl[:n], nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
			return nil, nil
		default:
			return nil, err
		}
	}
}
