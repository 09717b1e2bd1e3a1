package apiclient

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

func onePod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one", Annotations: map[string]string{"content": "x"}},
		Spec:       v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "c", Image: "image"}}},
	}
}

func encodeList(asJSON bool, l *v1.PodList) []byte {
	if asJSON {
		l.Kind, l.APIVersion = "PodList", "v1"
		return must(json.Marshal(l))
	}
	return wrap("PodList", must(l.Marshal()))
}

// wrap puts an object into protobuf's envelope.
func wrap(kind string, object []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: object}
	return append([]byte(magic), must(u.Marshal())...)
}

// encodeEvent returns an event of a watch of pods, as a server sends it.
func encodeEvent(asJSON bool, of Event) []byte {
	e := metav1.WatchEvent{Type: string(of.Type)}
	status := metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone, Message: "hunter2"}
	p, _ := of.Object.(*v1.Pod)
	switch {
	case asJSON && p == nil:
		status.Kind, status.APIVersion = "Status", "v1"
		e.Object.Raw = must(json.Marshal(&status))
	case p == nil:
		e.Object.Raw = wrap("Status", must(status.Marshal()))
	case asJSON:
		p = p.DeepCopy()
		p.Kind, p.APIVersion = "Pod", "v1"
		e.Object.Raw = must(json.Marshal(p))
	default:
		e.Object.Raw = wrap("Pod", must(p.Marshal()))
	}
	if asJSON {
		return append(must(json.Marshal(&e)), '\n')
	}
	frame := must(e.Marshal())
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
}

// Whatever a server answers is a complete list, or an error; never a list that
// says nothing of when it was true.
func FuzzList(f *testing.F) {
	l := v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1.Pod{*onePod()}}
	for _, asJSON := range []bool{false, true} {
		data := encodeList(asJSON, &l)
		f.Add(asJSON, data)
		f.Add(asJSON, data[:len(data)-9])
		f.Add(asJSON, encodeList(asJSON, &v1.PodList{}))
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
	for _, asJSON := range []bool{false, true} {
		var data []byte
		for _, e := range []Event{{Type: watch.Added, Object: onePod()}, {Type: watch.Bookmark, Object: &v1.Pod{}}, {Type: watch.Error}} {
			data = append(data, encodeEvent(asJSON, e)...)
			f.Add(asJSON, data)
		}
		f.Add(asJSON, data[:len(data)/2])
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
			e := s.Next()
			if e.Err != nil {
				return
			}
			if e.Object == nil || e.Type == "" {
				t.Fatalf("event %+v", e)
			}
		}
		t.Errorf("%d bytes hold more events than that", len(data))
	})
}
