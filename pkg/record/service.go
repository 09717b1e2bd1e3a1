package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Services stores the addresses and ports of Services as JSON, below the root directory.
type Services struct{ file string }

// NewServices returns the Services of a root directory.
func NewServices(root string) Services { return Services{filepath.Join(root, "services.json")} }

// storedServices is the content of the file.
type storedServices struct {
	Version  int             `json:"version"`
	Services json.RawMessage `json:"services"`
}

// servicesVersion is that of the file's content.
const servicesVersion = 1

// Load decodes the saved state into the value that into points to. Without a saved state, it changes
// nothing and returns nil.
func (s Services) Load(into any) error {
	data, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var in storedServices
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("read %s: %w", s.file, err)
	}
	if in.Version != servicesVersion {
		return fmt.Errorf("read %s: version %d is not supported", s.file, in.Version)
	}
	if err := json.Unmarshal(in.Services, into); err != nil {
		return fmt.Errorf("read %s: %w", s.file, err)
	}
	return nil
}

// Save replaces the saved state by value, atomically. It is synced when Save returns.
func (s Services) Save(value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if data, err = json.Marshal(storedServices{servicesVersion, data}); err != nil {
		return err
	}
	return replace(s.file, append(data, '\n'))
}

// Exists reports whether there is a saved state.
func (s Services) Exists() bool {
	_, err := os.Stat(s.file)
	return err == nil
}

// Remove removes the saved state. It succeeds if there is none.
func (s Services) Remove() error {
	if err := os.Remove(s.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
