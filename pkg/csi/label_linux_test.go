package csi

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

// A driver that asks for it mounts a volume that only one pod can use with the SELinux label of the pod's
// containers. For the next pod, which has another label, the volume is staged again.
func TestPublish_DriverMountsWithLabels_OptionIsTheKubelets(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	m.object(func(s *storagev1.CSIDriverSpec) { s.SELinuxMount = ptr.To(true) })
	f, v := newFake(t), m.agent()
	m.plug(v, f)
	const one, two = "system_u:object_r:container_file_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c3,c4"
	q := request("u1", "pv-1", "vol-1")
	q.Persistent.Spec.AccessModes, q.Persistent.Spec.MountOptions, q.Labels = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, []string{"noatime"}, []string{one}
	want := []string{"noatime", `context="` + one + `"`}
	if got := publish(t, v, q); !got.Labeled || !slices.Equal(f.stages[0].GetVolumeCapability().GetMount().GetMountFlags(), want) || !slices.Equal(f.publishes[0].GetVolumeCapability().GetMount().GetMountFlags(), want) {
		t.Errorf("%+v, staged with %q", got, f.stages[0].GetVolumeCapability().GetMount().GetMountFlags())
	}
	for _, dir := range []string{v.stageDir(volumeID{driver: driverName, handle: "vol-1"}), v.userDir(user{uid: "u1", name: "pv-1"})} {
		if d, err := readData(dir); err != nil || d["seLinuxMountContext"] != one {
			t.Errorf("%s: %v, %v", dir, d, err)
		}
	}
	if got := publish(t, v, q); !got.Labeled || len(f.publishes) != 1 {
		t.Errorf("%+v, published %d times", got, len(f.publishes))
	}
	f.called()
	next := q
	next.Want, next.Labels = podOf("u2"), []string{two}
	v.want(volumeID{driver: driverName, handle: "vol-1"}, user{uid: "u2", name: "pv-1"}, true) // so that it stays staged
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	publish(t, v, next)
	if got := f.called(); !slices.Equal(got, []string{"NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume"}) || f.stages[1].GetVolumeCapability().GetMount().GetMountFlags()[1] != `context="`+two+`"` {
		t.Errorf("calls %v", got)
	}
	if err := v.Unpublish(t.Context(), "u2"); err != nil || len(m.left()) > 0 {
		t.Errorf("%v, left %v", err, m.left())
	}
}

// Without the driver's wish, for a volume that several pods can use, or without a label there is no option.
// Two labels are refused.
func TestPublish_NoLabelForAllContainers_NoOption(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for name, c := range map[string]struct {
		asks   *bool
		modes  []v1.PersistentVolumeAccessMode
		labels []string
		fails  bool
	}{
		"not asked":  {ptr.To(false), []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, []string{"a:b:c:d"}, false},
		"no field":   {nil, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, []string{"a:b:c:d", "e:f:g:h"}, false},
		"shared":     {ptr.To(true), []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, []string{"a:b:c:d"}, false},
		"two modes":  {ptr.To(true), []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod, v1.ReadWriteOnce}, []string{"a:b:c:d"}, false},
		"no label":   {ptr.To(true), []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, nil, false},
		"two labels": {ptr.To(true), []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, []string{"a:b:c:d", "e:f:g:h"}, true},
	} {
		m := newMachine(t)
		m.object(func(s *storagev1.CSIDriverSpec) { s.SELinuxMount = c.asks })
		f, v := newFake(t), m.agent()
		m.plug(v, f)
		q := request("u1", "pv-1", "vol-1")
		q.Persistent.Spec.AccessModes, q.Labels = c.modes, c.labels
		got, err := v.Publish(t.Context(), q)
		if c.fails {
			if err == nil || !strings.Contains(err.Error(), "multiple SELinux labels found: a:b:c:d,e:f:g:h") || len(f.called()) > 0 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || got.Labeled || len(f.stages[0].GetVolumeCapability().GetMount().GetMountFlags()) > 0 {
			t.Errorf("%s: %+v, %v, staged with %v", name, got, err, f.stages)
		}
		if err := v.Unpublish(t.Context(), "u1"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
