//go:build bundle

package bundle

import (
	_ "embed"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// carried is the archive hack/bundle/build makes. A string, because its pages
// stay in the file until they are read.
//
//go:embed bundle.tar.zst
var carried string

// putBack releases the memory pages of carried: they are not read again before the next
// version.
func putBack() {
	page := uintptr(os.Getpagesize())
	start := uintptr(unsafe.Pointer(unsafe.StringData(carried)))
	skip := (page - start%page) % page
	if n := (uintptr(len(carried)) - skip) / page * page; uintptr(len(carried)) > skip && n > 0 {
		_ = unix.Madvise(unsafe.Slice(unsafe.StringData(carried[skip:]), n), unix.MADV_DONTNEED)
	}
}
