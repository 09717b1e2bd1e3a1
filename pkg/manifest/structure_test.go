package manifest

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// malformed has edits of a pod, by the path of the field that each edits. No API server admits such
// a pod, but a hostile one can serve it. The field then leads to another path of this machine, or
// two readers of the pod understand it in two ways.
var malformed = map[string]func(*v1.Pod){
	"metadata.name":      func(p *v1.Pod) { p.Name = "../../etc" },
	"metadata.namespace": func(p *v1.Pod) { p.Namespace = "../.." },
	"metadata.uid":       func(p *v1.Pod) { p.UID = "../../../var/lib" },
	"spec.volumes[0]": func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "a", VolumeSource: v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "a"}},
			HostPath:  &v1.HostPathVolumeSource{Path: "/"},
		}}}
	},
	"spec.volumes[1]": func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "a", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}, {Name: "b"}}
	},
	"spec.volumes[0].name": func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "../a", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	},
	"spec.volumes[1].name": func(p *v1.Pod) {
		empty := v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
		p.Spec.Volumes = []v1.Volume{{Name: "a", VolumeSource: empty}, {Name: "a", VolumeSource: empty}}
	},
	"spec.volumes[0].projected.sources[0]": func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "a", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{
			Secret: &v1.SecretProjection{}, ConfigMap: &v1.ConfigMapProjection{},
		}}}}}}
	},
	"spec.containers[0].name": func(p *v1.Pod) { p.Spec.Containers[0].Name = "../../../../etc/cron.d/x" },
	"spec.containers[1].name": func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) },
	"spec.initContainers[0].name": func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{{Name: "a/b", Image: "a"}}
	},
	"spec.ephemeralContainers[0].name": func(p *v1.Pod) {
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "..", Image: "a"}}}
	},
	"spec.containers": func(p *v1.Pod) { p.Spec.Containers = nil },
}

// An API server is not trusted to validate: a pod whose names are no DNS names, or one
// of whose volumes has not exactly one source, is rejected by the field.
//
// Shows: D1
func TestFromAPI_MalformedPod_IsRejectedByTheField(t *testing.T) {
	t.Parallel()
	for path, edit := range malformed {
		p := servedPod(t)
		edit(p)
		s, problems := FromAPI(p, apiOptions())
		if s != nil || len(problems) != 1 || problems[0].Path != path || problems[0].File != "shop/web" || problems[0].Msg == "" {
			t.Errorf("%s: spec %v, problems %+v", path, s != nil, problems)
		}
	}
}

// A pod that is being deleted has to stop whatever it asks for. Its directories and logs
// are found by its names, which have to be names all the same.
func TestFromAPI_MalformedPodBeingDeleted_IsAcceptedButForItsNames(t *testing.T) {
	t.Parallel()
	for path, edit := range malformed {
		p := servedPod(t)
		edit(p)
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		s, problems := FromAPI(p, apiOptions())
		if names := strings.HasPrefix(path, "metadata."); names != (s == nil) || names != (len(problems) > 0) {
			t.Errorf("%s: spec %v, problems %+v", path, s != nil, problems)
		}
	}
}

// Names as API servers give them pass.
func TestFromAPI_UsualNames_AreAccepted(t *testing.T) {
	t.Parallel()
	for _, edit := range []func(*v1.Pod){
		func(p *v1.Pod) { p.Name = "a.b-1" },
		func(p *v1.Pod) { p.UID = types.UID("0f6d7d1a-1111-4222-8333-123456789abc") },
		func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "kube-api-access-x2x7k", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		},
	} {
		p := servedPod(t)
		edit(p)
		fromAPI(t, p)
	}
}
