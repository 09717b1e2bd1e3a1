package trust

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// readACL returns the access ACL of the file at path, or of the one open as fd if that is
// not 0; nil if it has none. It reads through /proc, because an O_PATH descriptor gives no
// access to attributes.
func readACL(path string, fd int) ([]byte, error) {
	const name, mostBytes = "system.posix_acl_access", 1 << 16 // the kernel's limit of an attribute
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
