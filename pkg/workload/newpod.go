package workload

import (
	"crypto/sha256"
	"maps"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/podstatic"
)

// podParts are the parts of a pod that do not come from its template.
type podParts struct {
	name         string
	generateName string // the name without its suffix; "" for a kind that numbers its pods
	uid          string // "": pod.StaticUID of the name
	owner        metav1.OwnerReference
	labels       map[string]string // override the labels of the template
	annotations  map[string]string // override the annotations of the template
	// positions are the positions of the template's fields in the file; nil for the template of an
	// older revision.
	positions map[string]pod.Position
	// edit changes the pod before it is hashed and defaulted: volumes of claims, the host name,
	// environment. It may be nil.
	edit func(*v1.Pod)
}

// newPod returns the pod of a template. Its hashes cover the template without defaults, as the
// hashes of a static pod cover the manifest without defaults.
func (in *Input) newPod(template *v1.PodTemplateSpec, parts podParts) *pod.Spec {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: parts.name, GenerateName: parts.generateName, Namespace: in.Object.Namespace, UID: types.UID(parts.uid),
			Labels: merged(template.Labels, parts.labels), Annotations: merged(template.Annotations, parts.annotations),
			OwnerReferences: []metav1.OwnerReference{parts.owner},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	if parts.edit != nil {
		parts.edit(p)
	}
	s := &pod.Spec{Origin: in.Object.Origin, Pod: p, Positions: parts.positions}
	podspec.Fingerprint(s, p)
	podstatic.Bind(s, in.Node, in.Object.Origin.Source)
	return s
}

func merged(a, b map[string]string) map[string]string {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := make(map[string]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

// keep returns the spec of a pod that stays in the set. If the workload has moved to another file
// or layer, the result is a copy with the new place. A move does not restart a container.
func (in *Input) keep(p Pod) *pod.Spec {
	if p.Spec.Origin == in.Object.Origin {
		return p.Spec
	}
	moved := *p.Spec
	moved.Origin = in.Object.Origin
	if source := moved.Origin.Source; pod.SourceOf(moved.Pod) != source {
		moved.Pod = moved.Pod.DeepCopy()
		metav1.SetMetaDataAnnotation(&moved.Pod.ObjectMeta, pod.AnnotationConfigSource, source)
	}
	return &moved
}

// owner returns the owner reference to the workload, as the controller of its pods.
func (in *Input) owner() metav1.OwnerReference {
	return controllerRef(in.Object.Kind, in.Object.Name, workloadUID(in.Node, in.Object))
}

// child returns the owner reference to an object that Kubernetes has between a workload and its
// pods: the ReplicaSet of a Deployment, the Job of a CronJob.
func (in *Input) child(kind, name string) metav1.OwnerReference {
	return controllerRef(kind, name, childUID(workloadUID(in.Node, in.Object), kind, name))
}

func controllerRef(kind, name string, uid types.UID) metav1.OwnerReference {
	version, yes := "apps/v1", true
	if kind == KindJob || kind == KindCronJob {
		version = "batch/v1"
	}
	return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: name, UID: uid, Controller: &yes, BlockOwnerDeletion: &yes}
}

// workloadUID returns the UID of a workload. It depends only on the node and the names, so that the
// next agent recognises the pods in the records as pods of the workload.
func workloadUID(node string, o *pod.Object) types.UID {
	return types.UID(pod.Digest([]byte(strings.ToLower(node) + "\x00" + o.Kind + "\x00" + o.Namespace + "\x00" + o.Name)))
}

func childUID(parent types.UID, kind, name string) types.UID {
	return types.UID(pod.Digest([]byte(string(parent) + "\x00" + kind + "\x00" + name)))
}

// Owns reports whether workload o made the pod: o, or a ReplicaSet or Job of o, is the pod's
// controller. A pod of another layer never counts: the author of its manifest chooses its owner
// references, and must not add a pod to a workload of another source.
func Owns(o *pod.Object, node string, s *pod.Spec) bool {
	ref := metav1.GetControllerOfNoCopy(s.Pod)
	if ref == nil || s.Namespace != o.Namespace || s.Origin.Layer() != o.Origin.Layer() {
		return false
	}
	uid := workloadUID(node, o)
	if ref.Kind == o.Kind {
		return ref.UID == uid
	}
	return ref.UID == childUID(uid, ref.Kind, ref.Name)
}

// MayOwn reports whether a workload of a source without an API server may have made the pod.
func MayOwn(s *pod.Spec) bool {
	ref := metav1.GetControllerOfNoCopy(s.Pod)
	return ref != nil && pod.IsWorkload(ref.Kind) && !s.Origin.FromAPI()
}

// maxGeneratedBase is the length to which API servers cut the base of a generated name.
const maxGeneratedBase = 58

// generateName returns the metadata.generateName of the pods of a controller.
func generateName(controller string) string { return controller + "-" }

// freeNames returns the names of n new pods of a controller, and adds them to taken. Each slot,
// counted from 0, has one name: its suffix depends on the controller, the revision and the slot.
// freeNames leaves out slots whose names are taken.
func freeNames(controller, revision string, n int, taken map[string]bool) []string {
	names := make([]string, 0, n)
	for slot := 0; len(names) < n; slot++ {
		name := slotName(controller, revision, slot)
		if !taken[name] {
			taken[name] = true
			names = append(names, name)
		}
	}
	return names
}

func slotName(controller, revision string, slot int) string {
	base := generateName(controller)
	return base[:min(len(base), maxGeneratedBase)] + suffix(controller+"\x00"+revision+"\x00"+strconv.Itoa(slot))
}

// suffix returns five characters of the alphabet of Kubernetes' generated names.
func suffix(of string) string {
	const alphabet = "bcdfghjklmnpqrstvwxz2456789"
	sum := sha256.Sum256([]byte(of))
	out := sum[:5]
	for i := range out {
		out[i] = alphabet[int(out[i])%len(alphabet)]
	}
	return string(out)
}
