package apiclient

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Objects of storage are read one by one. One that is not there is none, and one that cannot be
// read is an error. Names that are no path are not asked for.
func TestStorage_ObjectsOfCSI_AreReadAndWritten(t *testing.T) {
	s := newFakeServer(t)
	src := s.reader(t)
	status, wrote, sent := http.StatusOK, "", ""
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", jsonType)
		body, _ := io.ReadAll(r.Body)
		switch {
		case strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews"):
			_, _ = w.Write([]byte(`{"status": {"allowed": true}}`))
			return true
		case r.Method != http.MethodGet:
			wrote, sent = r.Method+" "+r.URL.Path, string(body)
			_, _ = w.Write(body)
			return true
		case strings.HasSuffix(r.URL.Path, "/absent"):
			return false
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"metadata": {"name": "x"}, "data": {"key": "aHVudGVyMg=="}, "spec": {"attacher": "x.test"}}`))
		return true
	})
	ctx := t.Context()
	d, err := src.CSIDriver(ctx, "x")
	if err != nil || d == nil || d.Name != "x" {
		t.Errorf("%v, %v", d, err)
	}
	if d, err = src.CSIDriver(ctx, "absent"); err != nil || d != nil {
		t.Errorf("absent: %v, %v", d, err)
	}
	if a, err := src.VolumeAttachment(ctx, "x"); err != nil || a.Spec.Attacher != "x.test" {
		t.Errorf("%v, %v", a, err)
	}
	if m, err := src.SecretData(ctx, "shop", "x"); err != nil || m["key"] != "hunter2" {
		t.Errorf("%v, %v", m, err)
	}
	if m, err := src.SecretData(ctx, "shop", "absent"); err != nil || m != nil {
		t.Errorf("absent: %v, %v", m, err)
	}
	for version, want := range map[string]string{"": "POST /apis/storage.k8s.io/v1/csinodes", "7": "PUT /apis/storage.k8s.io/v1/csinodes/n1"} {
		if err := src.PutCSINode(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: version}}); err != nil || wrote != want {
			t.Errorf("%s, %v, want %s", wrote, err, want)
		}
	}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}}
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending}, {Type: "Other"}}
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{"storage": v1.PersistentVolumeClaimNodeResizePending}
	if err := src.SetClaimSize(ctx, claim, resource.MustParse("2Gi")); err != nil || wrote != "PATCH /api/v1/namespaces/shop/persistentvolumeclaims/data/status" {
		t.Errorf("%s, %v", wrote, err)
	}
	for _, part := range []string{`"capacity":{"storage":"2Gi"}`, `"allocatedResourceStatuses":{"storage":null}`, `"type":"Other"`} {
		if !strings.Contains(sent, part) || strings.Contains(sent, "FileSystemResizePending") {
			t.Errorf("sent %s", sent)
		}
	}
	claim.ResourceVersion = "5"
	for _, c := range []struct {
		state   v1.ClaimResourceStatus
		failure string
		want    string
	}{
		{v1.PersistentVolumeClaimNodeResizeInProgress, "", `{"metadata":{"resourceVersion":"5"},"status":{"allocatedResourceStatuses":{"storage":"NodeResizeInProgress"}}}`},
		{v1.PersistentVolumeClaimNodeResizeInfeasible, "no room", `"message":"no room"`},
		{"", "no room", `"type":"Other"`},
	} {
		if is, err := src.MarkClaimResize(ctx, claim, c.state, c.failure); err != nil || is == nil || !strings.Contains(sent, c.want) || strings.Contains(sent, "allocatedResourceStatuses") != (c.state != "") {
			t.Errorf("%s %q: %v, sent %s", c.state, c.failure, err, sent)
		}
	}
	status = http.StatusForbidden
	if n, err := src.CSINode(ctx, "x"); err == nil || n != nil {
		t.Errorf("forbidden: %v, %v", n, err)
	}
	before := len(s.requests())
	for _, name := range []string{"", "..", "a/b", "../secrets/x"} {
		_, one := src.CSIDriver(ctx, name)
		_, two := src.SecretData(ctx, "shop", name)
		_, three := src.SecretData(ctx, name, "x")
		if one == nil || two == nil || three == nil {
			t.Errorf("%q is asked for", name)
		}
	}
	if len(s.requests()) != before {
		t.Error("a name that is no name is asked for")
	}
}

// A claim may be bound to a volume of a CSI driver, also to a block volume, or to a directory of an NFS
// server. A block volume of another kind and volumes of other types are refused by name.
func TestClaim_VolumeOfADriver_IsReturned(t *testing.T) {
	s := newFakeServer(t)
	src := s.reader(t)
	mode := v1.PersistentVolumeFilesystem
	source := v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "x.test", VolumeHandle: "h"}}
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", jsonType)
		var is any = map[string]any{"status": map[string]any{"allowed": true}}
		switch {
		case strings.Contains(r.URL.Path, "/persistentvolumeclaims/"):
			is = &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "claim"}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
		case strings.Contains(r.URL.Path, "/persistentvolumes/"):
			is = &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{
				ClaimRef: &v1.ObjectReference{UID: "claim"}, VolumeMode: &mode,
				PersistentVolumeSource: source,
			}}
		}
		text, err := json.Marshal(is)
		_, _ = w.Write(text)
		return err == nil
	})
	want := &pod.Spec{Key: pod.Key{Namespace: "shop", Name: "one"}}
	if b, err := src.Claim(t.Context(), want, "data"); err != nil || b.CSI == nil || b.CSI.Spec.CSI.VolumeHandle != "h" || b.Directory != nil || b.Claim.UID != "claim" {
		t.Errorf("%+v, %v", b, err)
	}
	mode = v1.PersistentVolumeBlock
	if b, err := src.Claim(t.Context(), want, "data"); err != nil || b.CSI == nil || !pod.IsBlock(b.CSI) {
		t.Errorf("%+v, %v", b, err)
	}
	mode = v1.PersistentVolumeFilesystem
	source = v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/p"}}
	if b, err := src.Claim(t.Context(), want, "data"); err != nil || b.NFS == nil || b.NFS.Spec.NFS.Server != "s" || b.CSI != nil || b.Directory != nil {
		t.Errorf("%+v, %v", b, err)
	}
	for name, of := range map[string]v1.PersistentVolumeSource{"iscsi": {ISCSI: &v1.ISCSIPersistentVolumeSource{}}, "fc": {FC: &v1.FCVolumeSource{}}, "unknown": {}} {
		source = of
		if b, err := src.Claim(t.Context(), want, "data"); err == nil || !strings.Contains(fmt.Sprint(err), "is of type "+name+", which nodectl does not have") {
			t.Errorf("%+v, %v", b, err)
		}
	}
	source = v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-1a/vol-12345678"}}
	if b, err := src.Claim(t.Context(), want, "data"); err != nil || b.CSI == nil || b.CSI.Name != "pv" || b.CSI.Spec.CSI.Driver != "ebs.csi.aws.com" || b.CSI.Spec.CSI.VolumeHandle != "vol-12345678" {
		t.Errorf("%+v, %v", b, err)
	}
	source = v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-1a/disk"}}
	if b, err := src.Claim(t.Context(), want, "data"); b.CSI != nil || err == nil || !strings.Contains(err.Error(), `persistentvolume "pv": failed to translate in-tree pv to CSI: `) {
		t.Errorf("%+v, %v", b, err)
	}
	mode = v1.PersistentVolumeBlock
	source = v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/dev/vdb"}}
	if b, err := src.Claim(t.Context(), want, "data"); err == nil || !strings.Contains(fmt.Sprint(err), "is a block device") {
		t.Errorf("%+v, %v", b, err)
	}
}
