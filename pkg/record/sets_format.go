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

// setVersion is the version of the format of sets. A new optional field needs no new
// version. Version 1 has Secrets in clear text. It is still read, and it is written for files
// without a Secret.
const (
	setVersion   = 2
	plainVersion = 1
)

// The kinds of files of a set, as named in their frames.
const (
	layerFrame   = "layer"
	fileSetFrame = "standing"
)

// storedLayer is the header of a layer's set.
type storedLayer struct {
	Layer string    `json:"layer"`
	At    time.Time `json:"at,omitzero"`
}

// storedFileSet is the format of a pod.LastGoodSet on disk. It has the name of its layer, so
// that a lost header costs only the time in it.
type storedFileSet struct {
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
	Object    json.RawMessage `json:"object,omitempty"`
	Sealed    []byte          `json:"sealed,omitempty"` // of a Secret: a sealedObject, encrypted
}

// sealedObject is the encrypted part of a Secret. It includes the hash, because a hash in
// clear text could be used to guess the Secret.
type sealedObject struct {
	Hash   string          `json:"hash"`
	Object json.RawMessage `json:"object"`
}

// about identifies an encrypted object, so that it cannot be decrypted in the place of another one.
func (o *storedObject) about(layer, file string) string {
	return fmt.Sprintf("%q %q %q %q %q", layer, file, o.Kind, o.Namespace, o.Name)
}

// hashedName returns the name on disk of a layer or a file, whose own names are paths and
// URLs.
func hashedName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func encodeLayer(layer string, at time.Time) ([]byte, error) {
	payload, err := json.Marshal(storedLayer{Layer: layer, At: at.UTC()})
	if err != nil {
		return nil, err
	}
	return frameOf(layerFrame, plainVersion, payload), nil
}

// decodeLayer returns the header in a file. Its errors and those of decodeFileSet never
// contain the file's content.
func decodeLayer(data []byte) (storedLayer, error) {
	payload, err := unframeOf(layerFrame, setVersion, data)
	if err != nil {
		return storedLayer{}, err
	}
	var l storedLayer
	if json.Unmarshal(payload, &l) != nil {
		return storedLayer{}, errors.New("not the header of a layer")
	}
	return l, nil
}

func encodeFileSet(layer string, s pod.LastGoodSet, key *Key) ([]byte, error) {
	out, version := storedFileSet{Layer: layer, File: s.File}, plainVersion
	for _, p := range s.Pods {
		if p.Pod == nil {
			return nil, fmt.Errorf("pod %s has no content", p.Key)
		}
		out.Pods = append(out.Pods, storeSpec(p))
	}
	for _, o := range s.Objects {
		if emptyObject(o.Kind) == nil {
			return nil, fmt.Errorf("%s %s is neither a config object nor a workload", o.Kind, o.Key)
		}
		content, err := json.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("%s %s cannot be written as JSON", o.Kind, o.Key)
		}
		to := storedObject{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Origin: storedOrigin(o.Origin), Hash: o.Hash, Object: content}
		if o.Kind == pod.KindSecret {
			version = setVersion
			if err := to.seal(layer, s.File, key); err != nil {
				return nil, fmt.Errorf("encrypt %s %s: %w", o.Kind, o.Key, err)
			}
		}
		out.Objects = append(out.Objects, to)
	}
	payload, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return frameOf(fileSetFrame, version, payload), nil
}

// seal encrypts the object.
func (o *storedObject) seal(layer, file string, key *Key) error {
	open, err := key.open(true)
	if err != nil {
		return err
	}
	text, err := json.Marshal(sealedObject{Hash: o.Hash, Object: o.Object})
	if err != nil {
		return err
	}
	o.Sealed, o.Hash, o.Object = open.seal(o.about(layer, file), text), "", nil
	return nil
}

// unseal decrypts the object.
func (o *storedObject) unseal(layer, file string, key *Key) error {
	open, err := key.open(false)
	if err != nil {
		return err
	}
	if open == nil {
		return fmt.Errorf("key %s does not exist", key.path)
	}
	text, err := open.unseal(o.about(layer, file), o.Sealed)
	var in sealedObject
	if err != nil || json.Unmarshal(text, &in) != nil {
		return errors.New("it was encrypted with another key")
	}
	o.Hash, o.Object = in.Hash, in.Object
	return nil
}

// decoded is one file of a set.
type decoded struct {
	layer string
	pod.LastGoodSet
	clear bool  // it has a Secret in clear text
	lost  error // why Secrets are missing: they cannot be decrypted
}

func decodeFileSet(data []byte, key *Key) (out decoded, err error) {
	payload, err := unframeOf(fileSetFrame, setVersion, data)
	if err != nil {
		return decoded{}, err
	}
	var in storedFileSet
	if json.Unmarshal(payload, &in) != nil {
		return decoded{}, errNoSet
	}
	out.layer, out.File = in.Layer, in.File
	for _, p := range in.Pods {
		if p == nil || p.Pod == nil {
			return decoded{}, errNoSet
		}
		out.Pods = append(out.Pods, p.spec())
	}
	for _, o := range in.Objects {
		object := emptyObject(o.Kind)
		if object == nil {
			return decoded{}, errNoSet
		}
		if o.Sealed != nil {
			if err := o.unseal(in.Layer, in.File, key); err != nil {
				out.lost = fmt.Errorf("%s %s/%s: %w", o.Kind, o.Namespace, o.Name, err)
				continue
			}
		} else if o.Kind == pod.KindSecret {
			out.clear = true
		}
		if json.Unmarshal(o.Object, object) != nil {
			return decoded{}, errNoSet
		}
		out.Objects = append(out.Objects, &pod.Object{
			Key: pod.Key{Namespace: o.Namespace, Name: o.Name}, Kind: o.Kind, Origin: pod.Origin(o.Origin), Hash: o.Hash, Object: object,
		})
	}
	return out, nil
}

var errNoSet = errors.New("not a file of a set")

// emptyObject returns an empty config object, Service or workload of kind, nil for an unknown kind.
func emptyObject(kind string) any {
	switch kind {
	case pod.KindConfigMap:
		return &v1.ConfigMap{}
	case pod.KindSecret:
		return &v1.Secret{}
	case pod.KindClaim:
		return &v1.PersistentVolumeClaim{}
	case pod.KindService:
		return &v1.Service{}
	}
	return pod.NewWorkload(kind)
}
