//go:build !linux

package stdin

import (
	"context"
	"io"
)

// reader returns in as something that ends with ctx at its next read: a read
// under way cannot be ended here.
func reader(ctx context.Context, in io.Reader) (io.Reader, func(), error) {
	return &patient{ctx: ctx, in: in}, func() {}, nil
}
