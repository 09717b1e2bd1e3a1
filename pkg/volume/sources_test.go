package volume_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A volume with two sources is refused: one that was checked as a ConfigMap must not be
// mounted as a host path.
func TestPut_VolumeWithTwoSources_IsRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for name, source := range map[string]v1.VolumeSource{
		"two":  {EmptyDir: &v1.EmptyDirVolumeSource{}, HostPath: &v1.HostPathVolumeSource{Path: "/"}},
		"none": {},
	} {
		s := withUID(spec(v1.Volume{Name: "a", VolumeSource: source}), uid)
		if err := p.SetUp(s, 1); err == nil || !strings.Contains(err.Error(), "volume a: has not exactly one source") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
