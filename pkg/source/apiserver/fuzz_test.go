package apiserver

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Whatever a server answers is a complete list, or an error; never a list that
// says nothing of when it was true.
func FuzzList(f *testing.F) {
	l := v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1.Pod{*boundPod("one", "x")}}
	for _, s := range []*server{{}, {json: true}} {
		data := s.encodeList(&l)
		f.Add(s.json, data)
		f.Add(s.json, data[:len(data)-9])
		f.Add(s.json, s.encodeList(&v1.PodList{}))
	}
	f.Fuzz(func(t *testing.T, asJSON bool, data []byte) {
		mediaType := protobufType
		if asJSON {
			mediaType = jsonType
		}
		l, err := decodeList(podKind(), mediaType, data)
		if err == nil && (l.rv == "" || l.rv == "0") {
			t.Errorf("a list without a version: %+v", l)
		}
		if asJSON && err == nil && !json.Valid(data) {
			t.Errorf("%q is no JSON", data)
		}
	})
}

// Whatever comes on a watch is pods, then an error.
func FuzzWatch(f *testing.F) {
	for _, s := range []*server{{}, {json: true}} {
		var data []byte
		for _, l := range []logged{{rv: 1, kind: watch.Added, pod: boundPod("one", "x")}, {rv: 2, kind: watch.Bookmark, pod: &v1.Pod{}}, {rv: 3, kind: watch.Error}} {
			data = append(data, s.encodeEvent(l)...)
			f.Add(s.json, data)
		}
		f.Add(s.json, data[:len(data)/2])
	}
	f.Fuzz(func(t *testing.T, asJSON bool, data []byte) {
		mediaType := protobufType
		if asJSON {
			mediaType = jsonType
		}
		s, err := newStream(podKind(), mediaType, io.NopCloser(bytes.NewReader(data)))
		if err != nil {
			t.Fatal(err)
		}
		for range len(data) + 1 {
			e := s.next()
			if e.err != nil {
				return
			}
			if e.object == nil || e.kind == "" {
				t.Fatalf("event %+v", e)
			}
		}
		t.Errorf("%d bytes hold more events than that", len(data))
	})
}
