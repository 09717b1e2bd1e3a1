package volume_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/volume"
)

func configMapObject(name string, data map[string]string) *pod.Object {
	return &pod.Object{Key: pod.Key{Namespace: key.Namespace, Name: name}, Kind: pod.KindConfigMap,
		Hash: fmt.Sprint(data), Object: &v1.ConfigMap{Data: data}}
}

func secretObject(name string, data map[string]string) *pod.Object {
	bytes := map[string][]byte{}
	for k, v := range data {
		bytes[k] = []byte(v)
	}
	return &pod.Object{Key: pod.Key{Namespace: key.Namespace, Name: name}, Kind: pod.KindSecret,
		Hash: fmt.Sprint(data), Object: &v1.Secret{Data: bytes}}
}

func claimObject(name string) *pod.Object {
	return &pod.Object{Key: pod.Key{Namespace: key.Namespace, Name: name}, Kind: pod.KindClaim, Object: &v1.PersistentVolumeClaim{}}
}

// bound is s with these objects as its data.
func bound(s *pod.Spec, objects ...*pod.Object) *pod.Spec {
	return podspec.Bind(s, podspec.NewData(objects))
}

func vol(name string, source v1.VolumeSource) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: source}
}

func configMapVolume(name, object string) v1.Volume {
	return vol(name, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: object}, DefaultMode: ptr.To[int32](0o644)}})
}

func secretVolume(name, object string) v1.Volume {
	return vol(name, v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: object, DefaultMode: ptr.To[int32](0o644)}})
}

func downwardVolume(name string, fields ...string) v1.Volume {
	d := &v1.DownwardAPIVolumeSource{DefaultMode: ptr.To[int32](0o644)}
	for _, f := range fields {
		d.Items = append(d.Items, v1.DownwardAPIVolumeFile{Path: f, FieldRef: &v1.ObjectFieldSelector{FieldPath: f}})
	}
	return vol(name, v1.VolumeSource{DownwardAPI: d})
}

func projectedVolume(name string, sources ...v1.VolumeProjection) v1.Volume {
	return vol(name, v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources, DefaultMode: ptr.To[int32](0o644)}})
}

func tokenSource(path string) v1.VolumeProjection {
	return v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: path}}
}

func (p place) volume(kind, name string) string {
	return filepath.Join(p.instance(1), "volumes", kind, name)
}

// tree lists the files under dir: mode, owner and group, content or link target, without
// the time in names.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	now, _ := os.Readlink(filepath.Join(dir, "..data"))
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s %d:%d %s", info.Mode(), st.Uid, st.Gid, rel)
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", text)
		case info.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(path)
			line += " -> " + to
		}
		if now != "" {
			line = strings.ReplaceAll(line, now, "..TIME")
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func wantTree(t *testing.T, dir string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", filepath.Base(dir), diff)
	}
}

// Every volume of files equals the kubelet's byte for byte, whatever the agent's umask.
//
// Shows: C-1.37.6
func TestC_1_37_6_TreesOfFiles(t *testing.T) {
	needRoot(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	p := newPlace(t)
	items := []v1.KeyToPath{{Key: "a", Path: "x/y/a"}, {Key: "b", Path: "b", Mode: ptr.To[int32](0o400)}, {Key: "none", Path: "none"}}
	cm := configMapVolume("cm", "conf")
	some := configMapVolume("some", "conf")
	some.ConfigMap.Items, some.ConfigMap.Optional = items, ptr.To(true)
	sec := secretVolume("sec", "pass")
	sec.Secret.DefaultMode = ptr.To[int32](0o440)
	gone := secretVolume("gone", "nothing")
	gone.Secret.Optional = ptr.To(true)
	all := projectedVolume("all",
		v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}}},
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "pass"}, Items: []v1.KeyToPath{{Key: "word", Path: "a"}, {Key: "word", Path: "deep/word", Mode: ptr.To[int32](0o600)}}}},
		v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}},
			{Path: "memory", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.memory"}},
		}}})
	s := withUID(spec(cm, some, sec, gone, downwardVolume("down", "metadata.labels", "metadata.annotations['x']"), all), uid)
	s.Pod.Name, s.Pod.Labels, s.Pod.Annotations = "web-n1", map[string]string{"b": "2", "a": "1"}, map[string]string{"x": "say \"hi\""}
	s = bound(s, configMapObject("conf", map[string]string{"a": "one", "b": "two"}), secretObject("pass", map[string]string{"word": "s3cret"}))
	p.setUp(t, s, 1)
	for range 2 { // the second SetUp changes nothing
		wantTree(t, p.volume("kubernetes.io~configmap", "cm"),
			"drwxrwxrwx 0:0 .",
			"drwxr-xr-x 0:0 ..TIME",
			"Lrwxrwxrwx 0:0 ..data -> ..TIME",
			`-rw-r--r-- 0:0 ..TIME/a "one"`, `-rw-r--r-- 0:0 ..TIME/b "two"`,
			"Lrwxrwxrwx 0:0 a -> ..data/a", "Lrwxrwxrwx 0:0 b -> ..data/b")
		wantTree(t, p.volume("kubernetes.io~configmap", "some"),
			"drwxrwxrwx 0:0 .",
			"drwxr-xr-x 0:0 ..TIME", "drwxr-xr-x 0:0 ..TIME/x", "drwxr-xr-x 0:0 ..TIME/x/y",
			"Lrwxrwxrwx 0:0 ..data -> ..TIME",
			`-rw-r--r-- 0:0 ..TIME/x/y/a "one"`, `-r-------- 0:0 ..TIME/b "two"`,
			"Lrwxrwxrwx 0:0 x -> ..data/x", "Lrwxrwxrwx 0:0 b -> ..data/b")
		wantTree(t, p.volume("kubernetes.io~secret", "sec"),
			"dtrwxrwxrwx 0:0 .",
			"drwxr-xr-x 0:0 ..TIME",
			"Lrwxrwxrwx 0:0 ..data -> ..TIME",
			`-r--r----- 0:0 ..TIME/word "s3cret"`,
			"Lrwxrwxrwx 0:0 word -> ..data/word")
		wantTree(t, p.volume("kubernetes.io~secret", "gone"),
			"dtrwxrwxrwx 0:0 .", "drwxr-xr-x 0:0 ..TIME", "Lrwxrwxrwx 0:0 ..data -> ..TIME")
		wantTree(t, p.volume("kubernetes.io~downward-api", "down"),
			"dtrwxrwxrwx 0:0 .",
			"drwxr-xr-x 0:0 ..TIME",
			"Lrwxrwxrwx 0:0 ..data -> ..TIME",
			`-rw-r--r-- 0:0 ..TIME/metadata.labels "a=\"1\"\nb=\"2\""`,
			`-rw-r--r-- 0:0 ..TIME/metadata.annotations['x'] "say \"hi\""`,
			"Lrwxrwxrwx 0:0 metadata.labels -> ..data/metadata.labels",
			"Lrwxrwxrwx 0:0 metadata.annotations['x'] -> ..data/metadata.annotations['x']")
		wantTree(t, p.volume("kubernetes.io~projected", "all"),
			"dtrwxrwxrwx 0:0 .",
			"drwxr-xr-x 0:0 ..TIME", "drwxr-xr-x 0:0 ..TIME/deep",
			"Lrwxrwxrwx 0:0 ..data -> ..TIME",
			`-rw-r--r-- 0:0 ..TIME/a "s3cret"`, `-rw-r--r-- 0:0 ..TIME/b "two"`, `-rw------- 0:0 ..TIME/deep/word "s3cret"`,
			`-rw-r--r-- 0:0 ..TIME/name "web-n1"`, `-rw-r--r-- 0:0 ..TIME/memory "0"`,
			"Lrwxrwxrwx 0:0 a -> ..data/a", "Lrwxrwxrwx 0:0 b -> ..data/b", "Lrwxrwxrwx 0:0 deep -> ..data/deep",
			"Lrwxrwxrwx 0:0 name -> ..data/name", "Lrwxrwxrwx 0:0 memory -> ..data/memory")
		p.setUp(t, s, 1)
	}
}

// With fsGroup the group may read the shown files, and write in other volumes.
//
// Shows: C-1.37.5
func TestC_1_37_5_TreesWithFSGroup(t *testing.T) {
	needRoot(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	p := newPlace(t)
	mem := vol("mem", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}})
	sec := secretVolume("sec", "pass")
	sec.Secret.DefaultMode = ptr.To[int32](0o400)
	sec.Secret.Items = []v1.KeyToPath{{Key: "word", Path: "in/word"}}
	s := withUID(spec(empty("data"), mem, configMapVolume("cm", "conf"), sec), uid)
	s.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](2000)}
	s = bound(s, configMapObject("conf", map[string]string{"a": "one"}), secretObject("pass", map[string]string{"word": "s3cret"}))
	p.setUp(t, s, 1)
	wantTree(t, p.emptyDir(1, "data"), "dgrwxrwxrwx 0:2000 .")
	wantTree(t, p.emptyDir(1, "mem"), "dgtrwxrwxrwx 0:2000 .")
	wantTree(t, p.volume("kubernetes.io~configmap", "cm"),
		"dgrwxrwxrwx 0:2000 .",
		"dgrwxr-xr-x 0:2000 ..TIME",
		"Lrwxrwxrwx 0:2000 ..data -> ..TIME",
		`-rw-r--r-- 0:2000 ..TIME/a "one"`,
		"Lrwxrwxrwx 0:2000 a -> ..data/a")
	wantTree(t, p.volume("kubernetes.io~secret", "sec"),
		"dgtrwxrwxrwx 0:2000 .",
		"dgrwxr-xr-x 0:2000 ..TIME", "dgrwxr-xr-x 0:2000 ..TIME/in",
		"Lrwxrwxrwx 0:2000 ..data -> ..TIME",
		`-r--r----- 0:2000 ..TIME/in/word "s3cret"`,
		"Lrwxrwxrwx 0:2000 in -> ..data/in")
	// Changes by containers stay.
	for _, name := range []string{"data", "mem"} {
		if err := errors.Join(os.Chown(p.emptyDir(1, name), 7, 7), os.Chmod(p.emptyDir(1, name), 0o700)); err != nil {
			t.Fatal(err)
		}
		p.setUp(t, s, 1)
		wantTree(t, p.emptyDir(1, name), "drwx------ 7:7 .")
	}
}

// After a change of an object all its files change at once; removed keys disappear.
//
// Shows: C-1.37.6
func TestC_1_37_6_ChangedObjectIsShown(t *testing.T) {
	needRoot(t)
	t.Parallel()
	p := newPlace(t)
	s := withUID(spec(configMapVolume("cm", "conf")), uid)
	first := bound(s, configMapObject("conf", map[string]string{"a": "one", "b": "two"}))
	next := bound(s, configMapObject("conf", map[string]string{"a": "1", "c": "three"}))
	p.setUp(t, first, 1)
	dir := p.volume("kubernetes.io~configmap", "cm")
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	if !p.Ready(first, 1) || p.Ready(next, 1) {
		t.Errorf("ready: first %t, next %t; want only the first", p.Ready(first, 1), p.Ready(next, 1))
	}
	p.setUp(t, first, 1)
	if now, _ := os.Readlink(filepath.Join(dir, "..data")); now != before {
		t.Error("the same content was written again")
	}
	p.setUp(t, next, 1)
	if p.Ready(first, 1) || !p.Ready(next, 1) {
		t.Errorf("ready: first %t, next %t; want only the next", p.Ready(first, 1), p.Ready(next, 1))
	}
	wantTree(t, dir, "drwxrwxrwx 0:0 .", "drwxr-xr-x 0:0 ..TIME", "Lrwxrwxrwx 0:0 ..data -> ..TIME",
		`-rw-r--r-- 0:0 ..TIME/a "1"`, `-rw-r--r-- 0:0 ..TIME/c "three"`,
		"Lrwxrwxrwx 0:0 a -> ..data/a", "Lrwxrwxrwx 0:0 c -> ..data/c")
}

// Only changes to shown data make a volume out of date.
func TestReadyNoticesWhatVolumesShow(t *testing.T) {
	needRoot(t)
	t.Parallel()
	p := newPlace(t)
	make := func(labels map[string]string, limit string, data ...*pod.Object) *pod.Spec {
		down := vol("down", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}},
		}}})
		s := withUID(spec(down, configMapVolume("cm", "conf")), uid)
		s.Pod.Labels, s.Pod.Annotations = labels, map[string]string{"at": time.Now().String()}
		s.Pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: quantity(limit)}
		return bound(s, data...)
	}
	conf, other := configMapObject("conf", map[string]string{"a": "1"}), secretObject("env", map[string]string{"a": "1"})
	a := map[string]string{"l": "a"}
	p.setUp(t, make(a, "1", conf, other), 1)
	for name, tt := range map[string]struct {
		want *pod.Spec
		ok   bool
	}{
		"the same, read again":    {make(a, "1", conf, other), true},
		"an object of no volume":  {make(a, "1", conf, secretObject("env", map[string]string{"a": "2"})), true},
		"another label":           {make(map[string]string{"l": "b"}, "1", conf, other), false},
		"another limit":           {make(a, "2", conf, other), false},
		"another content":         {make(a, "1", configMapObject("conf", map[string]string{"a": "2"}), other), false},
		"an object that has gone": {make(a, "1", other), false},
		"the first once more":     {make(a, "1", conf, other), true},
	} {
		if ok := p.Ready(tt.want, 1); ok != tt.ok {
			t.Errorf("%s: ready %t", name, ok)
		}
	}
}

func TestPutSaysWhatIsMissing(t *testing.T) {
	needRoot(t)
	t.Parallel()
	items := []v1.KeyToPath{{Key: "none", Path: "x"}}
	cm, sec := configMapVolume("v", "conf"), secretVolume("v", "pass")
	cm.ConfigMap.Items, sec.Secret.Items = items, items
	both := projectedVolume("v",
		v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "no"}}},
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "no"}}})
	claim := vol("v", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "no"}})
	outside := vol("v", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "../../x"}})
	for _, tt := range []struct {
		volume v1.Volume
		want   string
	}{
		{configMapVolume("v", "no"), `volume v: configmap "no" not found`},
		{secretVolume("v", "no"), `volume v: secret "no" not found`},
		{cm, "volume v: configmap references non-existent config key: none"},
		{sec, "volume v: references non-existent secret key: none"},
		{both, `volume v: [configmap "no" not found, secret "no" not found]`},
		{claim, `volume v: persistentvolumeclaim "no" not found`},
		{outside, `volume v: claim "../../x" in namespace "default": is not a plain file name`},
		{projectedVolume("v", tokenSource("token")), "volume v: serviceAccountToken: there is no API server to ask for a token"},
		{projectedVolume("v", v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "ca"}}), "volume v: clusterTrustBundle: there is no API server to ask for it"},
		{projectedVolume("v", v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{}}), "volume v: this kind of source is not supported"},
		{downwardVolume("v", "spec.nodeName"), `volume v: spec.nodeName: field "spec.nodeName" is not supported`},
	} {
		p := newPlace(t)
		s := bound(withUID(spec(tt.volume), uid), configMapObject("conf", map[string]string{"a": "b"}), secretObject("pass", map[string]string{"a": "b"}))
		if err := p.SetUp(s, 1); err == nil || err.Error() != tt.want || p.Ready(s, 1) {
			t.Errorf("got %v, want %q and not ready", err, tt.want)
		}
	}
}

// A name in an object or a pod never leads out of its volume.
func TestPathsOfFilesStayInTheirVolume(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"../x": "must not contain '..'", "a/../../x": "must not contain '..'", "/etc/x": "must be a relative path", "..x": "must not start with '..'", "./..x": "must not start with '..'",
		"..data": "must not start with '..'", "": "must not be empty", ".": "must not be empty", "a/.": "", "a\nb": "", "a/b..c": "", strings.Repeat("n", 256): "file names must be at most 255 characters",
		strings.Repeat("long/", 1000): "must be at most 4095 characters", "a\x00b": "must not contain a zero byte",
	} {
		p := newPlace(t)
		v := configMapVolume("v", "conf")
		v.ConfigMap.Items = []v1.KeyToPath{{Key: "k", Path: name}}
		s := bound(withUID(spec(v), uid), configMapObject("conf", map[string]string{"k": "canary"}))
		err := p.SetUp(s, 1)
		if want == "" {
			if text, rerr := os.ReadFile(filepath.Join(p.volume("kubernetes.io~configmap", "v"), name)); err != nil || string(text) != "canary" {
				t.Errorf("%q: %v, %q %v", name, err, text, rerr)
			}
			continue
		}
		if wrong := fmt.Sprintf("volume v: invalid path %q: %s", name, want); err == nil || err.Error() != wrong {
			t.Errorf("got %v, want %s", err, wrong)
		}
		filepath.WalkDir(filepath.Dir(p.root), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				t.Errorf("%q: %s was written", name, path)
			}
			return nil
		})
	}
}

// Keys of an object that were never validated are as hostile as paths.
func TestKeysStayInTheirVolume(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, name := range []string{"../x", "/x", "..", "..data", "..2026_01_01_00_00_00.1/x"} {
		p := newPlace(t)
		s := bound(withUID(spec(secretVolume("v", "pass")), uid), secretObject("pass", map[string]string{name: "canary"}))
		if err := p.SetUp(s, 1); err == nil || p.Ready(s, 1) {
			t.Errorf("%q: no error", name)
		}
	}
}

// An object of the largest size, and one of very many keys.
//
// Shows: I5
func TestHugeObjects(t *testing.T) {
	needRoot(t)
	t.Parallel()
	p := newPlace(t)
	many := map[string]string{}
	for i := range 2000 {
		many[fmt.Sprint("key", i)] = "v"
	}
	s := bound(withUID(spec(configMapVolume("cm", "big"), secretVolume("sec", "many")), uid),
		configMapObject("big", map[string]string{"k": strings.Repeat("x", 1<<20)}), secretObject("many", many))
	p.setUp(t, s, 1)
	if info, err := os.Stat(filepath.Join(p.volume("kubernetes.io~configmap", "cm"), "k")); err != nil || info.Size() != 1<<20 {
		t.Errorf("big: %v", err)
	}
	if links, err := filepath.Glob(filepath.Join(p.volume("kubernetes.io~secret", "sec"), "key*")); err != nil || len(links) != 2000 {
		t.Errorf("many: %d links, %v", len(links), err)
	}
}

// C-1.38.11: only its user can read a token, and it is renewed when due.
//
// Shows: C-1.38.11
func TestC_1_38_11_Tokens(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for name, tt := range map[string]struct {
		context *v1.PodSecurityContext
		want    []string // the token and the link to it
	}{
		"any user":  {nil, []string{`-rw-r--r-- 0:0 ..TIME/token "token 1"`, "Lrwxrwxrwx 0:0 token -> ..data/token"}},
		"one user":  {&v1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}, []string{`-rw------- 1000:0 ..TIME/token "token 1"`, "Lrwxrwxrwx 1000:0 token -> ..data/token"}},
		"one group": {&v1.PodSecurityContext{FSGroup: ptr.To[int64](2000)}, []string{`-rw-r----- 0:2000 ..TIME/token "token 1"`, "Lrwxrwxrwx 0:2000 token -> ..data/token"}},
		"both":      {&v1.PodSecurityContext{RunAsUser: ptr.To[int64](1000), FSGroup: ptr.To[int64](2000)}, []string{`-rw-r----- 1000:2000 ..TIME/token "token 1"`, "Lrwxrwxrwx 1000:2000 token -> ..data/token"}},
	} {
		p := newPlace(t)
		calls, due := 0, time.Now().Add(time.Hour)
		var failure error
		c := p.config()
		c.Token = func(_ context.Context, want *pod.Spec, s *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
			calls++
			return fmt.Sprint("token ", calls), due, failure
		}
		c.TrustBundle = func(context.Context, *v1.ClusterTrustBundleProjection) (string, error) { return "cert", nil }
		p.Volumes = volume.New(c)
		s := withUID(spec(projectedVolume("v", tokenSource("token"))), uid)
		s.Pod.Spec.SecurityContext = tt.context
		p.setUp(t, s, 1)
		got := tree(t, p.volume("kubernetes.io~projected", "v"))
		for _, line := range tt.want {
			if !slices.Contains(got, line) {
				t.Errorf("%s: no %s in\n%s", name, line, strings.Join(got, "\n"))
			}
		}
		if _, ok, until := p.Volumes.Ready(s, 1); !ok || !until.Equal(due) {
			t.Errorf("%s: ready %t until %v, want until %v", name, ok, until, due)
		}
		// After a restart the agent knows when the token is due; Ready then asks for a SetUp.
		p.Volumes = volume.New(c)
		if _, ok, until := p.Volumes.Ready(s, 1); !ok || !until.Equal(due) {
			t.Errorf("%s: after a restart: ready %t until %v, want until %v", name, ok, until, due)
		}
		due = time.Now().Add(-time.Second)
		p.setUp(t, s, 1)
		if _, ok, _ := p.Volumes.Ready(s, 1); ok {
			t.Errorf("%s: ready with a token that is due", name)
		}
		// If there is no new token, the old one stays, and other volumes are not delayed.
		failure = errors.New("no")
		more := withUID(spec(projectedVolume("v", tokenSource("token")), configMapVolume("cm", "conf")), uid)
		more.Pod.Spec.SecurityContext = tt.context
		if err := p.SetUp(bound(more, configMapObject("conf", map[string]string{"a": "b"})), 1); err == nil || err.Error() != "volume v: serviceAccountToken: no" {
			t.Errorf("%s: %v", name, err)
		}
		if !exists(t, filepath.Join(p.volume("kubernetes.io~configmap", "cm"), "a")) {
			t.Errorf("%s: a ConfigMap waits for a token", name)
		}
		if text, err := os.ReadFile(filepath.Join(p.volume("kubernetes.io~projected", "v"), "token")); string(text) != "token 2" {
			t.Errorf("%s: %q %v, want the second token", name, text, err)
		}
		bundle := withUID(spec(projectedVolume("v", v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "ca.pem"}})), "other")
		p.setUp(t, bundle, 1)
		if _, ok, until := p.Volumes.Ready(bundle, 1); !ok || until.IsZero() || time.Until(until) > time.Minute {
			t.Errorf("%s: trust bundle: ready %t until %v, want within a minute", name, ok, until)
		}
	}
}

// Containers with several users, or with the image's user, can all read the token.
//
// Shows: C-1.38.11
func TestC_1_38_11_TokenOfSeveralUsers(t *testing.T) {
	needRoot(t)
	t.Parallel()
	p := newPlace(t)
	c := p.config()
	c.Token = func(context.Context, *pod.Spec, *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
		return "t", time.Time{}, nil
	}
	p.Volumes = volume.New(c)
	user := func(n int64) *v1.SecurityContext { return &v1.SecurityContext{RunAsUser: &n} }
	for i, containers := range [][]v1.Container{
		{{Name: "a", SecurityContext: user(1)}, {Name: "b", SecurityContext: user(2)}},
		{{Name: "a", SecurityContext: user(1)}, {Name: "b"}},
		{{Name: "a"}, {Name: "b", SecurityContext: user(1)}},
	} {
		s := withUID(spec(projectedVolume("v", tokenSource("token"))), fmt.Sprint("u", i))
		s.Pod.Spec.Containers = containers
		p.setUp(t, s, 1)
		info, err := os.Stat(filepath.Join(p.root, "pods", fmt.Sprint("u", i), "1/volumes/kubernetes.io~projected/v/token"))
		if err != nil || info.Mode() != 0o644 || info.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%d: %v %v, want 0644 of root", i, info, err)
		}
	}
}

// If another volume is mounted inside a volume of files, its directory exists.
func TestNestedMountPointsAreMade(t *testing.T) {
	needRoot(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	p := newPlace(t)
	s := withUID(spec(configMapVolume("cm", "conf"), empty("data")), uid)
	s.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{
		{Name: "data", MountPath: "/etc/conf/in/deep"}, {Name: "data", MountPath: "/etc/conf/in/deep/er"}, {Name: "data", MountPath: "/etc/conf-not"},
		{Name: "data", MountPath: "/etc/conf/../../../elsewhere"}, {Name: "cm", MountPath: "/etc/conf"}, {Name: "data", MountPath: "/etc/conf/key"},
	}
	s = bound(s, configMapObject("conf", map[string]string{"a": "1", "key": "hidden by a mount"}))
	p.setUp(t, s, 1)
	p.setUp(t, s, 1)
	wantTree(t, p.volume("kubernetes.io~configmap", "cm"),
		"drwxrwxrwx 0:0 .", "drwxr-xr-x 0:0 in", "drwxr-xr-x 0:0 in/deep", "drwxr-xr-x 0:0 key",
		"drwxr-xr-x 0:0 ..TIME", "Lrwxrwxrwx 0:0 ..data -> ..TIME", `-rw-r--r-- 0:0 ..TIME/a "1"`, `-rw-r--r-- 0:0 ..TIME/key "hidden by a mount"`, "Lrwxrwxrwx 0:0 a -> ..data/a")
}
