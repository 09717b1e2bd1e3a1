//go:build unix

package atomicfile

import "syscall"

// noFollow refuses a temporary file that is a link.
const noFollow = syscall.O_NOFOLLOW
