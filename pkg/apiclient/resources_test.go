package apiclient

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// Claims are read one by one, and slices of this node are deleted by their selector. Names that are no
// path are not asked for.
func TestResources_ClaimsAndSlices_AreReadAndDeleted(t *testing.T) {
	s := newFakeServer(t)
	src := s.reader(t)
	status, deleted := http.StatusOK, ""
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", jsonType)
		switch {
		case strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews"):
			_, _ = w.Write([]byte(`{"status": {"allowed": true}}`))
			return true
		case strings.HasSuffix(r.URL.Path, "/absent"):
			return false
		case r.Method == http.MethodDelete:
			deleted = r.URL.Path + " " + r.URL.Query().Get("fieldSelector")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.Repeat(" ", 2*fetchLimit)) // it lists them
			return true
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"metadata": {"namespace": "shop", "name": "gpu", "uid": "u"}, "status": {"allocation": {"devices": {"results": [{"driver": "x.test"}]}}}}`))
		return true
	})
	ctx := t.Context()
	if c, err := src.ResourceClaim(ctx, "shop", "gpu"); err != nil || c.UID != "u" || c.Status.Allocation.Devices.Results[0].Driver != "x.test" {
		t.Errorf("%v, %v", c, err)
	}
	if c, err := src.ResourceClaim(ctx, "shop", "absent"); err != nil || c != nil {
		t.Errorf("absent: %v, %v", c, err)
	}
	for driver, want := range map[string]string{
		"":       "/apis/resource.k8s.io/v1/resourceslices spec.nodeName=n1",
		"x.test": "/apis/resource.k8s.io/v1/resourceslices spec.nodeName=n1,spec.driver=x.test",
	} {
		if err := src.DeleteResourceSlices(ctx, "n1", driver, nil); err != nil || deleted != want {
			t.Errorf("%q: %s, %v, want %s", driver, deleted, err, want)
		}
	}
	if err := src.DeleteResourceSlices(ctx, "n1", "", []string{"a.test", "b.test"}); err != nil || deleted != "/apis/resource.k8s.io/v1/resourceslices spec.nodeName=n1,spec.driver!=a.test,spec.driver!=b.test" {
		t.Errorf("but two: %s, %v", deleted, err)
	}
	status = http.StatusForbidden
	if c, err := src.ResourceClaim(ctx, "shop", "gpu"); err == nil || c != nil {
		t.Errorf("forbidden: %v, %v", c, err)
	}
	if err := src.DeleteResourceSlices(ctx, "n1", "", nil); err == nil {
		t.Error("a deletion that is forbidden succeeds")
	}
	status = http.StatusNotFound
	if err := src.DeleteResourceSlices(ctx, "n1", "", nil); err != nil {
		t.Errorf("a server without the API: %v", err)
	}
	before := len(s.requests())
	for _, name := range []string{"", "..", "a/b", "../secrets/x"} {
		_, one := src.ResourceClaim(ctx, "shop", name)
		_, two := src.ResourceClaim(ctx, name, "x")
		if one == nil || two == nil {
			t.Errorf("%q is asked for", name)
		}
	}
	if len(s.requests()) != before {
		t.Error("a name that is no name is asked for")
	}
}
