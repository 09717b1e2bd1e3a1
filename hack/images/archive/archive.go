// Package archive makes image archives from the small Go programs in this
// repository, without a registry and without a container runtime.
//
// Every directory below examples/images and test/images is one program and
// becomes one docker archive, which hack/images writes for people and the
// end-to-end tests write for themselves.
//
// The same sources and the same Go give the same bytes, and a file that is up to date is not
// touched.
package archive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// An Archive is one image and the file that holds it.
type Archive struct {
	Ref  string // the image's name: nodectl.dev/examples/web:1
	File string // the archive: <out>/web.tar
	dir  string // the program, below the repository
	user string
}

// Archives lists the images of the repository at repo as Build writes them to
// out. Examples run as an unprivileged user, as images should; the tests' program runs as
// root, to read every file.
func Archives(repo, out string) ([]Archive, error) {
	var all []Archive
	for _, group := range []struct{ dir, repository, user string }{
		{"examples/images", "nodectl.dev/examples/", "65532:65532"},
		{"test/images", "nodectl.dev/test/", "0:0"},
	} {
		dirs, err := filepath.Glob(filepath.Join(repo, group.dir, "*", "main.go"))
		if err != nil {
			return nil, err
		}
		for _, d := range dirs {
			n := filepath.Base(filepath.Dir(d))
			all = append(all, Archive{
				Ref:  group.repository + n + ":1",
				File: filepath.Join(out, n+".tar"),
				dir:  filepath.Join(group.dir, n),
				user: group.user,
			})
		}
	}
	return all, nil
}

// Build writes the archives that are missing or older than their program to
// out, and returns all of them. Several processes may build at once.
func Build(repo, out string) ([]Archive, error) {
	all, err := Archives(repo, out)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(out, ".lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	var stale []Archive
	stamps := map[string]string{}
	for _, a := range all {
		if stamps[a.File], err = a.stamp(repo); err != nil {
			return nil, err
		}
		was, _ := os.ReadFile(a.stampFile())
		if _, err := os.Stat(a.File); err != nil || string(was) != stamps[a.File] {
			stale = append(stale, a)
		}
	}
	if len(stale) == 0 {
		return all, nil
	}
	bin, err := compile(repo, out, stale)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(bin)
	for _, a := range stale {
		if err := a.write(filepath.Join(bin, filepath.Base(a.dir))); err != nil {
			return nil, fmt.Errorf("%s: %w", a.Ref, err)
		}
		if err := os.WriteFile(a.stampFile(), []byte(stamps[a.File]), 0o644); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (a Archive) stampFile() string {
	return filepath.Join(filepath.Dir(a.File), "."+filepath.Base(a.File)+".stamp")
}

// stamp hashes all inputs of the archive: the program, which uses only the standard
// library, this file, and Go.
func (a Archive) stamp(repo string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, a.Ref, a.user, runtime.Version(), runtime.GOARCH)
	sources, err := filepath.Glob(filepath.Join(repo, a.dir, "*"))
	if err != nil {
		return "", err
	}
	slices.Sort(sources)
	for _, s := range append(sources, filepath.Join(repo, "hack/images/archive/archive.go")) {
		f, err := os.Open(s)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, filepath.Base(s))
		_, err = io.Copy(sum, f)
		f.Close()
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// compile builds the programs, static, into a new directory.
func compile(repo, out string, programs []Archive) (string, error) {
	bin, err := os.MkdirTemp(out, ".build-")
	if err != nil {
		return "", err
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", bin + "/"}
	for _, a := range programs {
		args = append(args, "./"+a.dir)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=-mod=readonly")
	if text, err := cmd.CombinedOutput(); err != nil {
		os.RemoveAll(bin)
		return "", fmt.Errorf("go build: %w\n%s", err, strings.TrimSpace(string(text)))
	}
	return bin, nil
}

// write makes the archive of an image whose only file is the program, as /app.
func (a Archive) write(program string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := layer(content)
	if err != nil {
		return err
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS:           "linux",
		Architecture: runtime.GOARCH,
		Config: v1.Config{
			Entrypoint: []string{"/app"},
			User:       a.user,
			Env:        []string{"PATH=/"},
		},
	})
	if err != nil {
		return err
	}
	img, err = mutate.Append(img, mutate.Addendum{
		Layer:   static.NewLayer(layer, types.DockerUncompressedLayer),
		History: v1.History{CreatedBy: "hack/images"},
	})
	if err != nil {
		return err
	}
	tag, err := name.NewTag(a.Ref, name.StrictValidation)
	if err != nil {
		return err
	}
	tmp := a.File + ".new"
	defer os.Remove(tmp)
	if err := tarball.WriteToFile(tmp, tag, img); err != nil {
		return err
	}
	return os.Rename(tmp, a.File)
}

func layer(program []byte) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, f := range []struct {
		header  tar.Header
		content []byte
	}{
		{tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: "app", Mode: 0o755, Size: int64(len(program))}, program},
	} {
		f.header.ModTime, f.header.Format = time.Unix(0, 0), tar.FormatUSTAR
		if err := t.WriteHeader(&f.header); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
