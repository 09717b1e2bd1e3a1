package readonly

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

// TestAsRoot_PermissionDenied_HasAHint: permission errors have a hint, also those that a
// runtime's client has turned into text.
func TestAsRoot_PermissionDenied_HasAHint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		hint string
	}{
		{errors.New("container runtime at unix:///run/x.sock does not answer: connect: permission denied"), "run this as root"},
		{fmt.Errorf("read journal: %w", &fs.PathError{Op: "open", Path: "j", Err: fs.ErrPermission}), "run this as root"},
		{errors.New("no such host"), ""},
	} {
		if got := AsRoot(c.err); got != c.hint {
			t.Errorf("%v: hint %q", c.err, got)
		}
	}
}
