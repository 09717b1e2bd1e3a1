package client_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/client"
)

// block returns the header of a file in a tar, and its data.
func block(name string, kind byte, data string) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x000000000\x000000000\x00")
	copy(h[124:], fmt.Sprintf("%011o\x0000000000000\x00        ", len(data)))
	h[156] = kind
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return append(append(h, data...), make([]byte, (512-len(data)%512)%512)...)
}

// writerThat calls a function before the first write that has a text.
type writerThat struct {
	bytes.Buffer
	text string
	does func() error
}

func (w *writerThat) Write(b []byte) (int, error) {
	if w.does != nil && bytes.Contains(b, []byte(w.text)) {
		err := w.does()
		if w.does = nil; err != nil {
			return 0, err
		}
	}
	return w.Buffer.Write(b)
}

// While root copies a directory, another user replaces a file in it, or the directory above,
// by a link to a file that only root can read. Pack has checked the file before.
func TestPack_FileExchangedForALink_LinkIsNotFollowed(t *testing.T) {
	t.Parallel()
	for name, exchange := range map[string]string{"file": "dir/file", "directory": "dir"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, outside := t.TempDir(), t.TempDir()
			at := filepath.Join(from, exchange)
			target := filepath.Join(outside, strings.TrimPrefix(exchange, "dir"))
			if err := errors.Join(os.Mkdir(filepath.Join(from, "dir"), 0o755), os.WriteFile(filepath.Join(from, "dir", "file"), []byte("open"), 0o600),
				os.WriteFile(filepath.Join(outside, "file"), []byte("secret"), 0o600)); err != nil {
				t.Fatal(err)
			}
			w := &writerThat{text: "base/dir/file", does: func() error { return errors.Join(os.Rename(at, at+".was"), os.Symlink(target, at)) }}
			if err := client.Pack(w, from, "base", func(string) {}); err != nil {
				t.Log(err)
			}
			if w.does != nil {
				t.Error("nothing was exchanged")
			}
			if bytes.Contains(w.Bytes(), []byte("secr")) {
				t.Error("the tar has what the link leads to")
			}
		})
	}
}

// The copied directory itself is exchanged for a link between the look and the open.
func TestPack_DirectoryItselfExchangedForALink_LinkIsNotFollowed(t *testing.T) {
	t.Parallel()
	from, outside := filepath.Join(t.TempDir(), "dir"), t.TempDir()
	if err := errors.Join(os.Mkdir(from, 0o755), os.WriteFile(filepath.Join(outside, "file"), []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(from)
	if err := errors.Join(err, os.Rename(from, from+".was"), os.Symlink(outside, from)); err != nil {
		t.Fatal(err)
	}
	var w bytes.Buffer
	if err := client.PackFrom(&w, info, from, ".", "base", func(string) {}); err == nil || !strings.Contains(err.Error(), "exchanged") {
		t.Errorf("pack: %v", err)
	}
	if w.Len() > 0 {
		t.Errorf("%d bytes were sent", w.Len())
	}
}

// sparseTar returns a tar with a file of size bytes, of which only the last three are data.
func sparseTar(name string, size int64) []byte {
	var records strings.Builder
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=" + name, fmt.Sprint("GNU.sparse.realsize=", size)} {
		n := len(r) + 2 + len(fmt.Sprint(len(r)+4))
		fmt.Fprintf(&records, "%d %s\n", n, r)
	}
	holes := fmt.Sprintf("1\n%d\n3\n", size-3)
	holes += strings.Repeat("\x00", 512-len(holes))
	all := append(block("PaxHeaders/x", tar.TypeXHeader, records.String()), block(name, tar.TypeReg, holes+"end")...)
	return append(all, make([]byte, 1024)...)
}

// A tar of empty files and directories is bounded too.
func TestUnpack_NamesWithoutBytes_AreBounded(t *testing.T) {
	t.Parallel()
	var sent bytes.Buffer
	out := tar.NewWriter(&sent)
	const freeNames, sentNames = 10_000, 12_000
	for i := range sentNames {
		if err := out.WriteHeader(&tar.Header{Name: fmt.Sprintf("data/link-%d", i), Typeflag: tar.TypeSymlink, Linkname: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	names := 0
	err := client.Unpack(bytes.NewReader(sent.Bytes()), "data", filepath.Join(t.TempDir(), "data"), 1<<20, func(string) { names++ })
	const most = freeNames + 1<<20/4096
	if large, ok := errors.AsType[*client.TooLargeError](err); !ok || large.Names != most || names != most {
		t.Errorf("1 MiB: %d names, %v", names, err)
	}
	const justEnough = (sentNames - freeNames) * 4096
	if err := client.Unpack(bytes.NewReader(sent.Bytes()), "data", filepath.Join(t.TempDir(), "data"), justEnough, func(string) {}); err != nil {
		t.Errorf("as many as there are blocks: %v", err)
	}
	sent.Truncate(sent.Len() - 1024) // the end of the archive
	in := io.MultiReader(&sent, bytes.NewReader(block("data/file", tar.TypeReg, strings.Repeat("x", 4097))))
	err = client.Unpack(in, "data", filepath.Join(t.TempDir(), "data"), justEnough+2*4096, func(string) {})
	if large, ok := errors.AsType[*client.TooLargeError](err); !ok || large.Name != "data/file" {
		t.Errorf("names and a file that share what is allowed: %v", err)
	}
}

// Forty names of 1 MiB make 20 million directories, of a block each: 80 GiB where 10 GiB are
// allowed. The entries are links, which count the same and are not written.
func TestUnpack_ManyNamesOfManyDirectories_TakeNoMoreBlocksThanAllowed(t *testing.T) {
	t.Parallel()
	const most, directories = 10 << 30, 500_000
	in, out := io.Pipe()
	t.Cleanup(func() { _ = in.Close() })
	go func() {
		w := tar.NewWriter(out)
		for i := range 40 {
			name := fmt.Sprintf("data/%d/%sx", i, strings.Repeat("a/", directories))
			if w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: "x"}) != nil {
				return
			}
		}
		_ = out.CloseWithError(w.Close())
	}()
	names := 0
	err := client.Unpack(in, "data", filepath.Join(t.TempDir(), "data"), most, func(string) { names++ })
	if large, ok := errors.AsType[*client.TooLargeError](err); !ok || large.Names == 0 || names*directories*4096 > most {
		t.Errorf("%d names of %d directories are taken: %v", names, directories, err)
	}
}

// Files of one deep directory count once each: directories shared with the previous name
// exist already.
func TestUnpack_FilesOfADeepDirectory_CountOnceEach(t *testing.T) {
	t.Parallel()
	const files = 2_000
	var sent bytes.Buffer
	for i := range files {
		sent.Write(block(fmt.Sprint("data/", strings.Repeat("a/", 20), i), tar.TypeSymlink, ""))
	}
	sent.Write(make([]byte, 1024))
	names := 0
	if err := client.Unpack(&sent, "data", filepath.Join(t.TempDir(), "data"), 1, func(string) { names++ }); err != nil || names != files {
		t.Errorf("%d names: %v", names, err)
	}
}

// One name that makes many directories counts as all of them.
func TestUnpack_NameOfManyDirectories_CountsAsAll(t *testing.T) {
	t.Parallel()
	var sent bytes.Buffer
	out := tar.NewWriter(&sent)
	if err := out.WriteHeader(&tar.Header{Name: "data/" + strings.Repeat("a/", 12_000), Typeflag: tar.TypeDir}); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	above := t.TempDir()
	err := client.Unpack(&sent, "data", filepath.Join(above, "data"), 1<<20, func(string) {})
	if large, ok := errors.AsType[*client.TooLargeError](err); !ok || large.Names != 10_000+1<<20/4096 {
		t.Errorf("got %v", err)
	}
	if made, err := os.ReadDir(above); err != nil || len(made) > 0 {
		t.Errorf("%v are made, %v", made, err)
	}
}

// Data of entries that are left out is read up to a limit.
func TestUnpack_DataOfEntriesLeftOut_IsBounded(t *testing.T) {
	t.Parallel()
	const entries = 64
	entry := block("data/x", tar.TypeCont, strings.Repeat("x", 1<<20))
	read := 0
	in := make([]io.Reader, entries)
	for i := range in {
		in[i] = bytes.NewReader(entry)
	}
	err := client.Unpack(io.MultiReader(in...), "data", filepath.Join(t.TempDir(), "data"), 1<<10, func(string) { read++ })
	if large, ok := errors.AsType[*client.TooLargeError](err); !ok || large.Name != "" || read == entries {
		t.Errorf("%d of %d entries are read: %v", read, entries, err)
	}
}

// Data after the end of an archive is read up to a limit.
func TestUnpack_BytesBehindTheEnd_AreBounded(t *testing.T) {
	t.Parallel()
	archive := append(block("data/a", tar.TypeReg, "text"), make([]byte, 1024)...)
	for padding, good := range map[int]bool{0: true, 9 << 10: true, 64 << 20: false} {
		in := bytes.NewReader(append(bytes.Clone(archive), make([]byte, padding)...))
		err := client.Unpack(in, "data", filepath.Join(t.TempDir(), "data"), 1<<20, func(string) {})
		if (err == nil) != good || !good && in.Len() < padding/2 {
			t.Errorf("%d bytes: %v, %d are not read", padding, err, in.Len())
		}
	}
}

// A container that sends 3 KiB makes cp write no more than it may: a sparse file declares any
// size, and several files add up.
//
// Shows: D1
func TestUnpack_SparseFile_IsBounded(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	sent := sparseTar("data/a", size)
	if len(sent) > 4<<10 {
		t.Fatalf("%d bytes", len(sent))
	}
	two := append(bytes.Clone(sent[:len(sent)-1024]), sparseTar("data/b", size)...)
	for name, c := range map[string]struct {
		tar     []byte
		most    int64
		written int64
	}{
		"too large":         {sent, size - 1, 0},
		"1 TiB":             {sparseTar("data/a", 1<<40), 10 << 30, 0},
		"just as much":      {sent, size, size},
		"too large in all":  {two, 2*size - 1, size},
		"as much in all":    {two, 2 * size, 2 * size},
		"more than a tar's": {sparseTar("data/a", 1<<62), 1 << 30, 0},
	} {
		target := filepath.Join(t.TempDir(), "data")
		err := client.Unpack(bytes.NewReader(c.tar), "data", target, c.most, func(s string) { t.Errorf("%s: %s", name, s) })
		var large *client.TooLargeError
		if refused := c.written == 0 || name == "too large in all"; errors.As(err, &large) != refused || !refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if written, _ := sizes(t, target); written != c.written {
			t.Errorf("%s: %d bytes are written, want %d", name, written, c.written)
		}
	}
	target := filepath.Join(t.TempDir(), "data")
	if err := client.Unpack(bytes.NewReader(sent), "data", target, size, func(string) {}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(target, "a"))
	if err != nil || len(text) != size || !bytes.Equal(bytes.TrimLeft(text, "\x00"), []byte("end")) {
		t.Errorf("what was sent is not what was written: %v", err)
	}
}

// sizes returns how many bytes the files below dir have, and how many files there are.
func sizes(t *testing.T, dir string) (bytes int64, files int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes, files = bytes+info.Size(), files+1
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return bytes, files
}

// FuzzUnpack: any tar of a container makes Unpack write only below the target, only files and
// directories, and no more than allowed.
//
// Shows: D1
func FuzzUnpack(f *testing.F) {
	f.Add(sparseTar("data/a", 64<<20))
	f.Add(sparseTar("data/a", 100))
	f.Add(append(block("data/../../x", tar.TypeReg, "x"), make([]byte, 1024)...))
	f.Add(append(block("data", tar.TypeReg, "x"), block("data/x", tar.TypeReg, "y")...))
	f.Add(append(block("data/link", tar.TypeSymlink, ""), block("data/link/x", tar.TypeReg, "y")...))
	f.Add(append(block("data/old", tar.TypeGNUSparse, ""), make([]byte, 1024)...))
	f.Add(block("data/x", tar.TypeReg, "cut")[:514])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, sent []byte) {
		const most = 1 << 20
		above := t.TempDir()
		_ = client.Unpack(bytes.NewReader(sent), "data", filepath.Join(above, "data"), most, func(string) {})
		if n, _ := sizes(t, above); n > most {
			t.Errorf("%d bytes are written", n)
		}
		entries, err := os.ReadDir(above)
		if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != "data" {
			t.Errorf("beside the target: %v, %v", entries, err)
		}
		err = filepath.WalkDir(above, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !d.Type().IsRegular() {
				t.Errorf("%s is %s", path, d.Type())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
