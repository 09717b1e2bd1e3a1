package apiclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/activity"
)

var (
	errNotAPI  = errors.New("the answer is not from a Kubernetes API (is there a proxy in front of it?)")
	errPartial = errors.New("the answer is damaged or incomplete")
)

// magic stands before every object in protobuf; an envelope follows that names
// the kind and holds the object.
const magic = "k8s\x00"

// unwrap returns the kind of a protobuf object and its own bytes.
func unwrap(data []byte) (kind string, object []byte, err error) {
	envelope, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return "", nil, errNotAPI
	}
	var u runtime.Unknown
	if err := u.Unmarshal(envelope); err != nil {
		return "", nil, errPartial
	}
	return u.Kind, u.Raw, nil
}

// page is a part of a list.
type page struct {
	rv, next string
	objects  []Object
}

// decodeList returns a page of a list. A list without a resource version is an error: it
// may not be complete.
func decodeList(k kind, mediaType string, body []byte) (page, error) {
	l, objects := k.list()
	is, name := "", k.name+"List"
	switch mediaType {
	case protobufType:
		kind, object, err := unwrap(body)
		if err != nil {
			return page{}, err
		}
		if is = kind; is == name && l.Unmarshal(object) != nil {
			return page{}, errPartial
		}
	case jsonType:
		var t metav1.TypeMeta
		if json.Unmarshal(body, &t) != nil {
			return page{}, errPartial
		}
		if is = t.Kind; is == name && json.Unmarshal(body, l) != nil {
			return page{}, errPartial
		}
	}
	switch {
	case is != name:
		return page{}, errNotAPI
	case l.GetResourceVersion() == "" || l.GetResourceVersion() == "0":
		return page{}, errPartial
	}
	return page{l.GetResourceVersion(), l.GetContinue(), objects()}, nil
}

// Event is one event of a watch: an object, or why there are no more of them.
type Event struct {
	Type   watch.EventType
	Object Object
	Err    error
}

// Stream is the answer to a watch.
type Stream struct {
	ctx   context.Context // of the watch, for the activity board
	call  activity.Call   // the watch since its last event
	body  io.Closer
	frame func() (kind watch.EventType, object []byte, err error)
	read  func(object []byte) (Object, error)
	code  func(object []byte) int32 // of a Status
}

// newStream returns the stream of body. It owns body if the error is nil.
func newStream(k kind, mediaType string, body io.ReadCloser) (*Stream, error) {
	switch mediaType {
	case protobufType:
		r := bufio.NewReader(body)
		return &Stream{body: body, frame: func() (watch.EventType, []byte, error) { return protobufFrame(r) }, read: k.protobuf, code: protobufCode}, nil
	case jsonType:
		limited := &io.LimitedReader{R: body}
		d := json.NewDecoder(limited)
		return &Stream{body: body, frame: func() (watch.EventType, []byte, error) {
			limited.N = eventLimit
			kind, object, err := jsonFrame(d)
			if err != nil && limited.N <= 0 { // the apparent end is our cut
				err = errPartial
			}
			return kind, object, err
		}, read: k.json, code: jsonCode}, nil
	}
	return nil, errNotAPI
}

// Close ends the stream. A call of Next that waits returns.
func (s *Stream) Close() { _ = s.body.Close() }

// Next returns the next event. It blocks until there is one or the stream ends. The error
// is io.EOF where the server has ended the stream in order.
func (s *Stream) Next() Event {
	if s.ctx != nil {
		defer activity.Begin(s.ctx, s.call)()
	}
	kind, object, err := s.frame()
	if err != nil {
		return Event{Err: err}
	}
	switch kind {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
		o, err := s.read(object)
		if err == nil && o.GetResourceVersion() != "" {
			s.call.Version = o.GetResourceVersion()
		}
		return Event{Type: kind, Object: o, Err: err}
	case watch.Error:
		if code := s.code(object); code != 410 {
			return Event{Err: &statusError{host: "watch", purpose: "continue a watch", status: int(code)}}
		}
		return Event{Err: errGone}
	}
	return Event{Err: errPartial}
}

func protobufFrame(r io.Reader) (watch.EventType, []byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return "", nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > eventLimit {
		return "", nil, errPartial
	}
	frame := make([]byte, n)
	if _, err := io.ReadFull(r, frame); err != nil {
		return "", nil, errPartial
	}
	var e metav1.WatchEvent
	if err := e.Unmarshal(frame); err != nil {
		return "", nil, errPartial
	}
	return watch.EventType(e.Type), e.Object.Raw, nil
}

func (k kind) protobuf(data []byte) (Object, error) {
	name, data, err := unwrap(data)
	o := k.empty()
	if err != nil || name != k.name || o.Unmarshal(data) != nil {
		return nil, errPartial
	}
	return o, nil
}

func protobufCode(object []byte) int32 {
	kind, object, err := unwrap(object)
	var s metav1.Status
	if err != nil || kind != "Status" || s.Unmarshal(object) != nil {
		return 0
	}
	return s.Code
}

func jsonFrame(d *json.Decoder) (watch.EventType, []byte, error) {
	var e metav1.WatchEvent
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch err := d.Decode(&e); {
	case errors.As(err, &syntax), errors.As(err, &wrong):
		return "", nil, errPartial
	case err != nil:
		return "", nil, err
	}
	return watch.EventType(e.Type), e.Object.Raw, nil
}

func (k kind) json(data []byte) (Object, error) {
	o := k.empty()
	if json.Unmarshal(data, o) != nil || o.GetObjectKind().GroupVersionKind().Kind != k.name {
		return nil, errPartial
	}
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return o, nil
}

func jsonCode(object []byte) int32 {
	var s metav1.Status
	if json.Unmarshal(object, &s) != nil {
		return 0
	}
	return s.Code
}
