package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

func smallSet() pod.LastGoodSet {
	return pod.LastGoodSet{
		File:    "f",
		Pods:    []*pod.Spec{{Key: pod.Key{Namespace: "a", Name: "b"}, Hash: "v1-x", Pod: &v1.Pod{}}},
		Objects: []*pod.Object{{Kind: "Secret", Hash: "v1-y", Object: &v1.Secret{Data: map[string][]byte{"k": {1}}}}},
	}
}

func testKey(t testing.TB) *Key { return NewKey(filepath.Join(t.TempDir(), "root"), "") }

// smallFiles returns one valid file of each kind.
func smallFiles(t testing.TB) (header, file []byte) {
	t.Helper()
	header, err := encodeLayer("l", time.Unix(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	file, err = encodeFileSet("l", smallSet(), testKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return header, file
}

// Shows: F12
func TestF12_EveryTamperedByteOfASetIsDamage(t *testing.T) {
	t.Parallel()
	header, file := smallFiles(t)
	check := func(what string, data []byte, at int) {
		t.Helper()
		_, headerErr := decodeLayer(data)
		_, fileErr := decodeFileSet(data, noKey)
		if !errors.Is(headerErr, errDamaged) || !errors.Is(fileErr, errDamaged) {
			t.Errorf("%s at %d: %v, %v", what, at, headerErr, fileErr)
		}
	}
	for _, data := range [][]byte{header, file} {
		for i := range data {
			check("cut off", data[:i], i)
			for b := 1; b < 256; b <<= 1 {
				data[i] ^= byte(b)
				check("changed", data, i)
				data[i] ^= byte(b)
			}
			was := data[i]
			for _, b := range []byte{0, ' ', '"', '}', 0xff} {
				if b != was {
					data[i] = b
					check("replaced", data, i)
				}
			}
			data[i] = was
			check("inserted", bytes.Join([][]byte{data[:i], data[i:]}, []byte(" ")), i)
		}
	}
}

// One kind of file is never read as another.
func TestFramesSayTheirKind(t *testing.T) {
	t.Parallel()
	header, file := smallFiles(t)
	rec, err := encode(small())
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{rec, file} {
		if _, err := decodeLayer(data); !errors.Is(err, errDamaged) {
			t.Errorf("as a header: %v", err)
		}
	}
	for _, data := range [][]byte{rec, header} {
		if _, err := decodeFileSet(data, noKey); !errors.Is(err, errDamaged) {
			t.Errorf("as a file: %v", err)
		}
	}
	if _, err := decode(file); !errors.Is(err, errDamaged) {
		t.Errorf("as a record: %v", err)
	}
}

// Shows: F16
func TestF16_SetOfAnotherVersionIsNoDamage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "sources", hashedName("l"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, hashedName("f")+".json")
	if err := os.WriteFile(path, frameOf(fileSetFrame, setVersion+1, []byte(`{"x":"hunter2"}`)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewSets(root, testKey(t))
	all, err := s.Load()
	if len(all) != 0 || err == nil || !strings.Contains(err.Error(), "version 3") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("it was moved: %v", err)
	}
	// A field of a newer agent is ignored.
	got, err := decodeFileSet(frameOf(fileSetFrame, setVersion, []byte(`{"layer":"l","file":"f","new":{"x":1}}`)), noKey)
	if err != nil || got.File != "f" {
		t.Errorf("with a field of the future: %+v, %v", got, err)
	}
}

// FuzzSets reads arbitrary bytes as a header and as a file of a set, both directly and
// inside a valid frame.
func FuzzSets(f *testing.F) {
	header, file := smallFiles(f)
	f.Add(header)
	f.Add(file)
	f.Add(file[:len(file)-2])
	f.Add([]byte(`{"layer":"l","file":"f","pods":[null]}`))
	f.Add([]byte(`{"layer":"l","file":"f","pods":[{"pod":{"spec":{"containers":[{"resources":{"limits":{"cpu":"1e999999999"}}}]}}}]}`))
	f.Add([]byte(`{"layer":"l","file":"f","objects":[{"kind":"Secret","object":{"data":{"k":"AQ=="}}},{"kind":"Pod"}]}`))
	f.Add([]byte(`{"layer":"l","at":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"version":1,"sha256":"","standing":}` + "\n"))
	key := testKey(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, take := range map[string]func([]byte) error{
			layerFrame:   func(b []byte) error { _, err := decodeLayer(b); return err },
			fileSetFrame: func(b []byte) error { _, err := decodeFileSet(b, key); return err },
		} {
			if take(data) == nil {
				payload, err := unframeOf(name, setVersion, data)
				if err != nil || !bytes.Equal(frameOf(name, plainVersion, payload), data) && !bytes.Equal(frameOf(name, setVersion, payload), data) {
					t.Errorf("accepted as %s, though its frame is not what is written", name)
				}
			}
			framed := frameOf(name, setVersion, data)
			if err := take(framed); err != nil && len(data) > 8 && strings.Contains(err.Error(), string(data)) {
				t.Errorf("an error tells what is in the file: %v", err)
			}
			if d, err := decodeFileSet(framed, key); err == nil {
				again, err := encodeFileSet(d.layer, d.LastGoodSet, key)
				if err != nil {
					t.Fatalf("what was read cannot be written: %v", err)
				}
				if _, err := decodeFileSet(again, key); err != nil {
					t.Fatalf("what was written cannot be read: %v", err)
				}
			}
		}
	})
}
