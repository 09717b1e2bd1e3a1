package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// setVersion is the version of the form sets are written in. A field that is
// added and may be missing needs no new one.
const setVersion = 1

// The kinds of files a set is made of, as their frames name them.
const (
	layerFrame    = "layer"
	standingFrame = "standing"
)

// storedLayer is the header of a layer's set.
type storedLayer struct {
	Layer string    `json:"layer"`
	At    time.Time `json:"at,omitzero"`
}

// storedStanding is a pod.Standing as the disk has it. It names its layer, so
// that a lost header costs no more than its time.
type storedStanding struct {
	Layer   string         `json:"layer"`
	File    string         `json:"file"`
	Pods    []*storedSpec  `json:"pods,omitempty"`
	Objects []storedObject `json:"objects,omitempty"`
}

type storedObject struct {
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Origin    storedOrigin    `json:"origin"`
	Hash      string          `json:"hash"`
	Object    json.RawMessage `json:"object"`
}

// hashedName returns the name on disk of a layer or a file: theirs are paths
// and URLs.
func hashedName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func encodeLayer(layer string, at time.Time) ([]byte, error) {
	payload, err := json.Marshal(storedLayer{Layer: layer, At: at.UTC()})
	if err != nil {
		return nil, err
	}
	return frameOf(layerFrame, setVersion, payload), nil
}

// decodeLayer returns the header in a file. Its errors say nothing of what is in
// it, and so do decodeStanding's.
func decodeLayer(data []byte) (storedLayer, error) {
	payload, err := unframeOf(layerFrame, setVersion, data)
	if err != nil {
		return storedLayer{}, err
	}
	var l storedLayer
	if json.Unmarshal(payload, &l) != nil {
		return storedLayer{}, errors.New("it is no layer's header")
	}
	return l, nil
}

func encodeStanding(layer string, s pod.Standing) ([]byte, error) {
	out := storedStanding{Layer: layer, File: s.File}
	for _, p := range s.Pods {
		if p.Pod == nil {
			return nil, fmt.Errorf("pod %s has no content", p.Key)
		}
		out.Pods = append(out.Pods, storeSpec(p))
	}
	for _, o := range s.Objects {
		if emptyObject(o.Kind) == nil {
			return nil, fmt.Errorf("%s %s is no config object", o.Kind, o.Key)
		}
		content, err := json.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("%s %s cannot be written as JSON", o.Kind, o.Key)
		}
		out.Objects = append(out.Objects, storedObject{
			Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Origin: storedOrigin(o.Origin), Hash: o.Hash, Object: content,
		})
	}
	payload, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return frameOf(standingFrame, setVersion, payload), nil
}

func decodeStanding(data []byte) (layer string, s pod.Standing, err error) {
	payload, err := unframeOf(standingFrame, setVersion, data)
	if err != nil {
		return "", pod.Standing{}, err
	}
	var in storedStanding
	if json.Unmarshal(payload, &in) != nil {
		return "", pod.Standing{}, errNoSet
	}
	s.File = in.File
	for _, p := range in.Pods {
		if p == nil || p.Pod == nil {
			return "", pod.Standing{}, errNoSet
		}
		s.Pods = append(s.Pods, p.spec())
	}
	for _, o := range in.Objects {
		object := emptyObject(o.Kind)
		if object == nil || json.Unmarshal(o.Object, object) != nil {
			return "", pod.Standing{}, errNoSet
		}
		s.Objects = append(s.Objects, &pod.Object{
			Key: pod.Key{Namespace: o.Namespace, Name: o.Name}, Kind: o.Kind, Origin: pod.Origin(o.Origin), Hash: o.Hash, Object: object,
		})
	}
	return in.Layer, s, nil
}

var errNoSet = errors.New("it is no part of a set")

// emptyObject returns what a config object of kind is read into, nil for a kind
// there is not.
func emptyObject(kind string) any {
	switch kind {
	case pod.KindConfigMap:
		return &v1.ConfigMap{}
	case pod.KindSecret:
		return &v1.Secret{}
	case pod.KindClaim:
		return &v1.PersistentVolumeClaim{}
	}
	return nil
}
