package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A container fills an emptyDir with names that take no blocks: empty files and hard
// links of one file. Measuring ends after a fixed number of names.
// Shows: C-1.35.9.
func TestMeasure_NamesWithoutBlocks_EndsAtTheBound(t *testing.T) {
	const most = 200
	for what, fill := range map[string]func(dir string, i int) error{
		"empty files": func(dir string, i int) error {
			return os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
		},
		"hard links": func(dir string, i int) error {
			return os.Link(filepath.Join(dir, "first"), filepath.Join(dir, fmt.Sprint(i)))
		},
		"pipes": func(dir string, i int) error {
			return unix.Mkfifo(filepath.Join(dir, fmt.Sprint(i)), 0o600)
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "first"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			for i := 1; i < most; i++ {
				if err := fill(dir, i); err != nil {
					t.Fatal(err)
				}
			}
			if err := measure(t.Context(), dir, 1<<30, most); err != nil {
				t.Errorf("%d names: %v", most, err)
			}
			if err := fill(dir, most); err != nil {
				t.Fatal(err)
			}
			if err := measure(t.Context(), dir, 1<<30, most); !errors.Is(err, errTooMany) {
				t.Errorf("%d names: %v, want %v", most+1, err, errTooMany)
			}
		})
	}
}

// The agent stops while a large volume is measured. Measuring ends with its context.
// Shows: C-1.35.9, F4.
func TestMeasure_ContextEnds_EndsWithItsCause(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "one"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("the agent stops")
	cancel(stop)
	if err := measure(ctx, dir, 1<<30, largest); !errors.Is(err, stop) {
		t.Errorf("error %v, want %v", err, stop)
	}
}
