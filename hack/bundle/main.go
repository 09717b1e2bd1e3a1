// Command bundle packs the programs that hack/bundle/build has compiled: it makes an
// image of the pause program, records versions, licences and checksums, and makes one
// archive of all, the same bytes for the same inputs.
//
//	bundle DIR    reads DIR/rootfs and DIR/pause; writes DIR/rootfs/pause.tar,
//	              DIR/LICENSES, DIR/manifest.json and DIR/bundle.tar.zst
package main

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
)

// pauseRef is the name of the pause image; the runtime's configuration pins it as the
// sandbox image.
const pauseRef = "nodectl.dev/pause:1"

// A manifest is the first file of the archive, so that pkg/bundle can check the following
// files while it reads the stream.
type manifest struct {
	ID         string      `json:"id"` // sha256 over the files' paths and sums: identifies the bundle
	OS         string      `json:"os"`
	Arch       string      `json:"arch"`
	Go         string      `json:"go"`
	PauseImage string      `json:"pauseImage"`
	PauseID    string      `json:"pauseID"` // digest of the pause image's configuration: its ID in CRI
	Components []component `json:"components"`
	Files      []file      `json:"files"`
}

// A component is a third-party part, or the project's own pause.
type component struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Licence string `json:"licence"` // SPDX expression
	Module  string `json:"module"`
}

type file struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Mode   string `json:"mode"` // octal
	SHA256 string `json:"sha256"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bundle DIR")
		os.Exit(2)
	}
	if err := pack(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

func pack(dir string) error {
	root := filepath.Join(dir, "rootfs")
	runc, err := buildinfo.ReadFile(filepath.Join(root, "runc"))
	if err != nil {
		return err
	}
	m := manifest{OS: "linux", Arch: setting(runc, "GOARCH"), Go: runc.GoVersion, PauseImage: pauseRef}

	if m.PauseID, err = pauseImage(filepath.Join(root, "pause.tar"), filepath.Join(dir, "pause"), m.Arch); err != nil {
		return err
	}
	programs, err := filesBelow(root, func(p string) bool { return path.Ext(p) == "" })
	if err != nil {
		return err
	}
	for _, p := range programs {
		if err := isStatic(filepath.Join(root, p)); err != nil {
			return err
		}
	}

	licences := filepath.Join(dir, "LICENSES")
	if m.Components, err = writeLicences(licences, root, programs); err != nil {
		return err
	}

	contents, err := filesBelow(root, func(string) bool { return true })
	if err != nil {
		return err
	}
	from := map[string]string{"LICENSES": licences}
	for _, p := range contents {
		from[p] = filepath.Join(root, p)
	}
	id := sha256.New()
	for _, p := range append([]string{"LICENSES"}, contents...) {
		f, err := describe(p, from[p])
		if err != nil {
			return err
		}
		m.Files = append(m.Files, f)
		fmt.Fprintln(id, f.Path, f.Mode, f.SHA256)
	}
	m.ID = hex.EncodeToString(id.Sum(nil))

	js, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	from["manifest.json"] = filepath.Join(dir, "manifest.json")
	if err := os.WriteFile(from["manifest.json"], append(js, '\n'), 0o644); err != nil {
		return err
	}
	first, err := describe("manifest.json", from["manifest.json"])
	if err != nil {
		return err
	}
	return archive(filepath.Join(dir, "bundle.tar.zst"), append([]file{first}, m.Files...), from)
}

// filesBelow lists root's regular files for which ok returns true, in order.
func filesBelow(root string, ok func(string) bool) ([]string, error) {
	var found []string
	err := fs.WalkDir(os.DirFS(root), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && ok(p) {
			found = append(found, p)
		}
		return err
	})
	slices.Sort(found)
	return found, err
}

// isStatic fails for a program that needs shared libraries: it might not run on another
// distribution.
func isStatic(name string) error {
	f, err := elf.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not static", name)
		}
	}
	return nil
}

func describe(name, from string) (file, error) {
	f, err := os.Open(from)
	if err != nil {
		return file{}, err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return file{}, err
	}
	mode := "0755"
	if path.Ext(name) != "" || name == "LICENSES" {
		mode = "0644"
	}
	return file{Path: name, Size: size, Mode: mode, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// archive writes a tar that depends only on the files' contents, and compresses it with the
// best level; a decoder needs 32 MiB for it.
func archive(name string, files []file, from map[string]string) error {
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	defer out.Close()
	z, err := zstd.NewWriter(out,
		zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithWindowSize(32<<20),
		zstd.WithEncoderConcurrency(1)) // the same blocks, hence the same bytes, on any machine
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, f := range files {
		if err := add(t, f, from[f.Path]); err != nil {
			return err
		}
	}
	return cmp.Or(t.Close(), z.Close(), out.Close())
}

func add(t *tar.Writer, f file, from string) error {
	var mode int64
	if _, err := fmt.Sscanf(f.Mode, "%o", &mode); err != nil {
		return err
	}
	h := &tar.Header{Name: f.Path, Mode: mode, Size: f.Size, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(t, in)
	return err
}

func setting(b *buildinfo.BuildInfo, key string) string {
	for _, s := range b.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
