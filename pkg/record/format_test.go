package record

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

func small() pod.Record {
	return pod.Record{
		Key: pod.Key{Namespace: "default", Name: "web"}, UID: "u", Instance: 1,
		StartTime: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Want:      &pod.Spec{Hash: "v1-x", Pod: &v1.Pod{}},
	}
}

// Shows: F12
func TestF12_EveryTruncationIsDamage(t *testing.T) {
	t.Parallel()
	data, err := encode(small())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode(data); err != nil {
		t.Fatal(err)
	}
	for n := range data {
		if _, err := decode(data[:n]); !errors.Is(err, errDamaged) {
			t.Errorf("the first %d of %d bytes: %v", n, len(data), err)
		}
	}
}

// Shows: F12
func TestF12_EveryFlippedBitIsDamage(t *testing.T) {
	t.Parallel()
	data, err := encode(small())
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		for bit := range 8 {
			data[i] ^= 1 << bit
			if _, err := decode(data); !errors.Is(err, errDamaged) {
				t.Errorf("bit %d of byte %d (%q): %v", bit, i, data[i], err)
			}
			data[i] ^= 1 << bit
		}
	}
}

// Shows: F16
func TestF16_AnotherVersionIsNoDamage(t *testing.T) {
	t.Parallel()
	var version *versionError
	if _, err := decode(frame(2, []byte(`{"whatever":1}`))); !errors.As(err, &version) || version.version != 2 {
		t.Errorf("version 2: %v", err)
	}
	// A field of a newer agent is ignored.
	got, err := decode(frame(1, []byte(`{"namespace":"a","name":"b","uid":"u","instance":4,"new":{"x":1}}`)))
	if err != nil || got.Instance != 4 {
		t.Errorf("with a field of the future: %+v, %v", got, err)
	}
}

func TestDecodeNeverShowsContent(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{`{"namespace":"hunter2`, `{"instance":"hunter2"}`, `hunter2`} {
		if _, err := decode(frame(1, []byte(payload))); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", payload, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	data, err := encode(small())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"version":1,"sha256":"","record":}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := decode(data); err == nil {
			if _, err := encode(r); err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
		}
	})
}
