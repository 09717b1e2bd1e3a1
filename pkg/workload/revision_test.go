package workload

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// templateCases are pod templates of several forms.
func templateCases() map[string]v1.PodTemplateSpec {
	rich := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "shop", "tier": "web"}, Annotations: map[string]string{"note": "x"}},
		Spec: v1.PodSpec{
			InitContainers: []v1.Container{{Name: "prepare", Image: "shop/prepare:1"}},
			Containers: []v1.Container{{
				Name: "shop", Image: "shop/web:2",
				Ports:          []v1.ContainerPort{{ContainerPort: 8080}},
				Env:            []v1.EnvVar{{Name: "MODE", Value: "live"}, {Name: "NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
				Resources:      v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}},
				ReadinessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/ready"}}},
				VolumeMounts:   []v1.VolumeMount{{Name: "settings", MountPath: "/etc/shop"}},
			}},
			Volumes: []v1.Volume{{Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "shop"}}}}},
		},
	}
	return map[string]v1.PodTemplateSpec{"plain": webTemplate("web:1"), "other image": webTemplate("web:2"), "rich": rich}
}

// The hashes are those that controller.ComputeHash of k8s.io/kubernetes v1.36.3 returned for
// these templates after SetObjectDefaults_Deployment, in a test that is not kept: that package
// is too large for this module.
func TestTemplateHash_IsThatOfKubernetes(t *testing.T) {
	t.Parallel()
	cases := templateCases()
	for _, c := range []struct {
		name       string
		collisions int32
		want       string
	}{
		{"plain", 0, "6444769cf"},
		{"other image", 0, "85d5b476dd"},
		{"rich", 0, "65f77f7895"},
		{"plain", 1, "7f648dd766"},
	} {
		template := cases[c.name]
		equal(t, c.name, templateHash(&template, c.collisions), c.want)
	}
}

func TestRevise_HashIsTaken_AnotherOneIsComputed(t *testing.T) {
	t.Parallel()
	a, b := webTemplate("web:1"), webTemplate("web:2")
	hash := func(collisions int32) string { return []string{"same", "other"}[collisions] }
	list := revise(nil, &a, worldBegin, hash)
	list = revise(list, &b, worldBegin, hash)
	equal(t, "the first hash", list[0].Hash, "same")
	equal(t, "the second hash", list[1].Hash, "other")
	equal(t, "the second number", list[1].Number, 2)
}

func TestRevise_OlderTemplate_MovesToTheEndWithANewNumber(t *testing.T) {
	t.Parallel()
	a, b := webTemplate("web:1"), webTemplate("web:2")
	hash := func(collisions int32) string { return "hash" + string('0'+collisions) }
	first := revise(nil, &a, worldBegin, hash)
	second := revise(first, &b, worldBegin, hash)
	third := revise(second, &a, worldBegin, hash)
	equal(t, "the hashes", []string{third[0].Hash, third[1].Hash}, []string{"hash1", "hash0"})
	equal(t, "the numbers", []int64{third[0].Number, third[1].Number}, []int64{2, 3})
	equal(t, "the first numbers", []int64{third[0].First, third[1].First}, []int64{2, 1})
	equal(t, "the number in the earlier list", second[0].Number, 1)
}

func TestPrune_RevisionsBeyondTheLimit_UsedOnesAndTheNewestStay(t *testing.T) {
	t.Parallel()
	list := []Revision{{Number: 1}, {Number: 2}, {Number: 3}, {Number: 4}}
	used := func(r *Revision) bool { return r.Number == 1 }
	numbers := func(limit int32) (out []int64) {
		for _, r := range prune(list, &limit, used) {
			out = append(out, r.Number)
		}
		return out
	}
	equal(t, "limit 0", numbers(0), []int64{1, 4})
	equal(t, "limit 2", numbers(2), []int64{1, 3, 4})
	equal(t, "limit 3", numbers(3), []int64{1, 2, 3, 4})
	equal(t, "no limit of its own", len(prune(list, nil, used)), 4)
}
