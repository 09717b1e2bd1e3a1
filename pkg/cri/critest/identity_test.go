package critest_test

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

func TestHandlersAndFeaturesAreListed(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	status := func() *runtimeapi.StatusResponse {
		a, err := c.rt.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := status(); len(a.GetRuntimeHandlers()) != 0 || a.GetFeatures().GetSupplementalGroupsPolicy() {
		t.Errorf("at first: %v", a)
	}
	rt.SetHandlers(critest.Handler{Name: ""}, critest.Handler{Name: "kata", RecursiveReadOnly: true, UserNamespaces: true})
	rt.SetGroupsPolicy(true)
	a := status()
	if h := a.GetRuntimeHandlers(); len(h) != 2 || h[0].GetFeatures().GetUserNamespaces() || h[1].GetName() != "kata" ||
		!h[1].GetFeatures().GetUserNamespaces() || !h[1].GetFeatures().GetRecursiveReadOnlyMounts() || !a.GetFeatures().GetSupplementalGroupsPolicy() {
		t.Errorf("%v", a)
	}
	for i, handler := range []string{"", "kata", "runc"} {
		q := &runtimeapi.RunPodSandboxRequest{Config: box(uint32(i)), RuntimeHandler: handler}
		if _, err := c.rt.RunPodSandbox(t.Context(), q); (err == nil) != (handler != "runc") || err != nil && !strings.Contains(err.Error(), `no runtime for "runc" is configured`) {
			t.Errorf("%q: %v", handler, err)
		}
	}
}

func TestImagesHaveUsers(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	rt.SetImageUser("a:1", ptr.To(int64(7)), "")
	rt.SetImageUser("b:1", nil, "app")
	for name, want := range map[string]string{"a:1": "7/", "b:1": "none/app", "c:1": "none/"} {
		a, err := c.img.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		if err != nil {
			t.Fatal(err)
		}
		got := "none"
		if u := a.GetImage().GetUid(); u != nil {
			got = strings.TrimPrefix(u.String(), "value:")
		}
		if got += "/" + a.GetImage().GetUsername(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestNewestConfig(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	key := pod.Key{Namespace: box(0).GetMetadata().GetNamespace(), Name: box(0).GetMetadata().GetName()}
	if got, handler := rt.SandboxConfig(key); got != nil || handler != "" || rt.ContainerConfig(key, "missing") != nil {
		t.Errorf("of nothing: %v, %q", got, handler)
	}
	c.run(c.sandbox(0), 0)
	c.run(c.sandbox(1), 1)
	got, _ := rt.SandboxConfig(key)
	if got.GetMetadata().GetAttempt() != 1 {
		t.Errorf("sandbox %v", got)
	}
}
