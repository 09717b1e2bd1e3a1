package server

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestDevices_Socket_ListsResources: /v1/devices lists the resources of device plugins. Only the
// socket has it.
func TestDevices_Socket_ListsResources(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Devices = func() []DeviceResource {
		return []DeviceResource{{Name: "x.com/gpu", Connected: true, Devices: []Device{{ID: "a", Health: "Healthy", UsedBy: []DeviceUser{{"shop", "web", "main"}}}}}}
	}
	p := opened(t, cfg)
	const want = `{"kind":"DeviceResourceList","items":[{"name":"x.com/gpu","connected":true,"devices":[{"id":"a","health":"Healthy","usedBy":[{"namespace":"shop","pod":"web","container":"main"}]}]}]}`
	if code, text := plain(t, client(cfg.Socket), http.MethodGet, "/v1/devices", ""); code != 200 || strings.TrimSpace(text) != want {
		t.Errorf("%d %s, want %s", code, text, want)
	}
	if code, text, _ := p.fetch(t, p.web(t, "admin"), http.MethodGet, "/v1/devices", nil); code != 404 {
		t.Errorf("on TLS: %d %s", code, text)
	}
}
