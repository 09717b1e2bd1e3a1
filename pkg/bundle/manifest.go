package bundle

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// A Manifest lists the contents of a bundle. It is the first file of the archive, so that
// the other files are checked while they are read.
type Manifest struct {
	ID         string      `json:"id"` // names the contents; the directory they are unpacked to
	OS         string      `json:"os"`
	Arch       string      `json:"arch"`
	PauseImage string      `json:"pauseImage"`
	PauseID    string      `json:"pauseID"` // the pause image's ID in CRI; "" in older bundles
	Components []Component `json:"components"`
	Files      []File      `json:"files"`
}

// A Component is one part of a bundle.
type Component struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Licence string `json:"licence"` // SPDX expression
	Module  string `json:"module"`
}

// A File is one file of a bundle, by its path below the bundle's directory.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Mode   string `json:"mode"` // octal
	SHA256 string `json:"sha256"`
}

// Version returns the version of the component called name, or "".
func (m Manifest) Version(name string) string {
	for _, c := range m.Components {
		if c.Name == name {
			return c.Version
		}
	}
	return ""
}

// manifestLimit is larger than any manifest and small enough to read into memory.
const manifestLimit = 4 << 20

// readManifest reads a manifest and refuses one with paths outside the bundle's directory.
func readManifest(in io.Reader) (Manifest, error) {
	var m Manifest
	if err := json.NewDecoder(io.LimitReader(in, manifestLimit)).Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("manifest of the bundle: %w", err)
	}
	if len(m.ID) < 16 || strings.Trim(m.ID, "0123456789abcdef") != "" {
		return Manifest{}, fmt.Errorf("manifest of the bundle: id %q is no digest", m.ID)
	}
	for _, f := range m.Files {
		if !filepath.IsLocal(f.Path) {
			return Manifest{}, fmt.Errorf("manifest of the bundle: path %q leads outside", f.Path)
		}
		if _, err := f.perm(); err != nil {
			return Manifest{}, fmt.Errorf("manifest of the bundle: mode %q of %s: %w", f.Mode, f.Path, err)
		}
	}
	return m, nil
}

// manifestOf reads the manifest in an unpacked bundle's directory.
func manifestOf(dir string) (Manifest, error) {
	f, err := os.Open(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return Manifest{}, err
	}
	defer f.Close()
	return readManifest(f)
}

func (f File) perm() (os.FileMode, error) {
	var mode uint32
	if _, err := fmt.Sscanf(f.Mode, "%o", &mode); err != nil {
		return 0, err
	}
	return os.FileMode(mode) & os.ModePerm, nil
}
