package server

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestDevices_Socket_ListsResources: /v1/devices lists the resources of device plugins, and
// /v1/allocations those of containers. Only the socket has both routes.
func TestDevices_Socket_ListsResources(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Devices = func() []DeviceResource {
		return []DeviceResource{{Name: "x.com/gpu", Connected: true, Devices: []Device{{ID: "a", Health: "Healthy", UsedBy: []DeviceUser{{"shop", "web", "main"}}}}}}
	}
	cfg.Allocations = func(context.Context) ([]Allocation, error) {
		return []Allocation{{Namespace: "shop", Pod: "web", Container: "main", CPUs: "2-3"}}, nil
	}
	p := opened(t, cfg)
	const want = `{"kind":"DeviceResourceList","items":[{"name":"x.com/gpu","connected":true,"devices":[{"id":"a","health":"Healthy","usedBy":[{"namespace":"shop","pod":"web","container":"main"}]}]}]}`
	if code, text := plain(t, client(cfg.Socket), http.MethodGet, "/v1/devices", ""); code != 200 || strings.TrimSpace(text) != want {
		t.Errorf("%d %s, want %s", code, text, want)
	}
	const allocated = `{"kind":"AllocationList","items":[{"namespace":"shop","pod":"web","container":"main","cpus":"2-3"}]}`
	if code, text := plain(t, client(cfg.Socket), http.MethodGet, "/v1/allocations", ""); code != 200 || strings.TrimSpace(text) != allocated {
		t.Errorf("%d %s, want %s", code, text, allocated)
	}
	if code, text, _ := p.fetch(t, p.web(t, "admin"), http.MethodGet, "/v1/devices", nil); code != 404 {
		t.Errorf("on TLS: %d %s", code, text)
	}
}
