package volume

import v1 "k8s.io/api/core/v1"

// kind is one kind of volume: where it lies and how it is made. To add one,
// write its file and its line in kindOf. Taking away needs no code of a kind's
// own: an instance's directory goes as a whole, and nothing outside it does.
type kind interface {
	// dir names the directory under "volumes" that volumes of this kind lie in,
	// as the kubelet names it (C-1.37.4); empty when a volume keeps nothing
	// under its instance.
	dir() string
	// path returns where on the host the volume is; own is its place under the
	// instance.
	path(v v1.Volume, own string) string
	// put makes the volume. again says that it was made before and may be in
	// use. It is fast and touches no container's content.
	put(p placed, again bool) error
}

// kindOf returns the kind of v, nil when it is not supported.
func kindOf(v v1.Volume) kind {
	switch {
	case v.EmptyDir != nil:
		return emptyDir{}
	case v.HostPath != nil:
		return hostPath{}
	}
	return nil
}
