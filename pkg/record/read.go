package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nodectl/nodectl/pkg/pod"
)

// ReadRecords returns every readable record under root, in order of key and UID. It changes nothing: it is
// for callers without the root's lock. If there is an error, the result lacks the records that it
// names.
func ReadRecords(root string) ([]pod.Record, error) {
	dir := filepath.Join(root, "pods")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	errs := []error{err}
	var all []pod.Record
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name(), fileName)
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var rec pod.Record
		if err == nil {
			rec, err = decodeOf(e.Name(), data)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", path, err))
			continue
		}
		all = append(all, rec)
	}
	sortRecords(all)
	return all, errors.Join(errs...)
}
