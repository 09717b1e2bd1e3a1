package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// content is the content of the small bundles in these tests.
var content = map[string]string{"containerd": "#!daemon", "cni/bridge": "#!plugin", "pause.tar": "image"}

// order is the order of the files in the archive.
var order = []string{"cni/bridge", "containerd", "pause.tar"}

// packed returns a bundle; change may falsify its manifest or its files.
func packed(t *testing.T, change func(m *Manifest, files map[string]string)) []byte {
	t.Helper()
	m := Manifest{ID: strings.Repeat("ab", 32), OS: "linux", Arch: "amd64", PauseImage: "nodectl.dev/pause:1"}
	files := map[string]string{}
	for _, name := range order {
		files[name] = content[name]
		sum := sha256.Sum256([]byte(content[name]))
		mode := "0755"
		if filepath.Ext(name) != "" {
			mode = "0644"
		}
		m.Files = append(m.Files, File{Path: name, Size: int64(len(content[name])), Mode: mode, SHA256: hex.EncodeToString(sum[:])})
	}
	if change != nil {
		change(&m, files)
	}
	js, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	add := func(name, text string) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	add("manifest.json", string(js))
	for _, name := range append(order, "extra") {
		if text, ok := files[name]; ok {
			add(name, text)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// holds fails unless dir has the complete bundle.
func holds(t *testing.T, dir string) {
	t.Helper()
	for name, want := range content {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if fi, err := os.Stat(filepath.Join(dir, "containerd")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("containerd: %v, %v", fi.Mode(), err)
	}
	if m, err := manifestOf(dir); err != nil || m.ID != filepath.Base(dir) {
		t.Errorf("manifest: %v, %v", m.ID, err)
	}
}

func TestUnpackMakesTheDirectoryOfTheDigest(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bundle")
	bin, _, err := unpack(bytes.NewReader(packed(t, nil)), dir)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(bin) != dir || len(filepath.Base(bin)) != 64 {
		t.Errorf("unpacked to %s", bin)
	}
	holds(t, bin)
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, fi.Mode(), err)
	}
}

func TestUnpackAgainWritesNothing(t *testing.T) {
	dir := t.TempDir()
	bin, _, err := unpack(bytes.NewReader(packed(t, nil)), dir)
	if err != nil {
		t.Fatal(err)
	}
	before, err := statFile(filepath.Join(bin, "containerd"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := unpack(bytes.NewReader(packed(t, nil)), dir); err != nil {
		t.Fatal(err)
	}
	if after, err := statFile(filepath.Join(bin, "containerd")); err != nil || after != before {
		t.Errorf("containerd was %+v, is %+v (%v)", before, after, err)
	}
}

func TestUnpackRepairsWhatWasDamaged(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"same size": func(f string) error { return os.WriteFile(f, []byte("#!DAEMON"), 0o755) },
		"cut short": func(f string) error { return os.Truncate(f, 0) },
		"gone":      os.Remove,
		"mode":      func(f string) error { return os.Chmod(f, 0o644) },
		"a symlink": func(f string) error { _ = os.Remove(f); return os.Symlink("/bin/true", f) },
		"no marker": func(f string) error { return os.Remove(filepath.Join(filepath.Dir(f), markFile)) },
		"bad marker": func(f string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(f), markFile), []byte("{"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			bin, _, err := unpack(bytes.NewReader(packed(t, nil)), dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(bin, "containerd")); err != nil {
				t.Fatal(err)
			}
			if _, _, err := unpack(bytes.NewReader(packed(t, nil)), dir); err != nil {
				t.Fatal(err)
			}
			holds(t, bin)
			if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestUnpack_FileNotInTheManifest_IsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *Manifest, files map[string]string)
		want   string
	}{
		"a changed byte":   {func(_ *Manifest, f map[string]string) { f["containerd"] = "#!DAEMON" }, "containerd: damaged"},
		"a byte too many":  {func(_ *Manifest, f map[string]string) { f["containerd"] += "x" }, "containerd: damaged"},
		"a missing file":   {func(_ *Manifest, f map[string]string) { delete(f, "pause.tar") }, "pause.tar: missing"},
		"an unknown file":  {func(_ *Manifest, f map[string]string) { f["extra"] = "x" }, "extra: not in the manifest"},
		"a path outside":   {func(m *Manifest, _ map[string]string) { m.Files[0].Path = "../../etc/passwd" }, "leads outside"},
		"an absolute path": {func(m *Manifest, _ map[string]string) { m.Files[0].Path = "/etc/passwd" }, "leads outside"},
		"an id with dots":  {func(m *Manifest, _ map[string]string) { m.ID = "../../../../../../tmp" }, "no digest"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, _, err := unpack(bytes.NewReader(packed(t, c.change)), dir)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestUnpackOfACutArchive(t *testing.T) {
	whole, dir := packed(t, nil), t.TempDir()
	if _, _, err := unpack(bytes.NewReader(whole[:len(whole)/2]), dir); err == nil {
		t.Error("half an archive was unpacked")
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestUnpackRemovesWhatAKilledOneLeft(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, temporary+"123")
	if err := os.Mkdir(old, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := unpack(bytes.NewReader(packed(t, nil)), dir); err != nil {
		t.Fatal(err)
	}
	if exists(old) {
		t.Errorf("%s is still there", old)
	}
}

func TestPruneKeepsWhatIsUsed(t *testing.T) {
	root := t.TempDir()
	r := New(Config{RootDir: root})
	for _, d := range []string{"new", "old"} {
		if err := os.MkdirAll(filepath.Join(r.unpacked, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.prune(filepath.Join(r.unpacked, "new"))
	if !exists(filepath.Join(r.unpacked, "new")) || exists(filepath.Join(r.unpacked, "old")) {
		t.Error("prune kept the old bundle, or removed the new one")
	}
}
