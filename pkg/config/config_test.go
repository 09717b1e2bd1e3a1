package config

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func valid() Config {
	c := Default()
	c.NodeName = "n1"
	return c
}

func TestDefaultNeedsOnlyANodeName(t *testing.T) {
	t.Parallel()
	if err := valid().Check(); err != nil {
		t.Fatalf("the defaults are refused: %v", err)
	}
	var e *Error
	if err := Default().Check(); !errors.As(err, &e) || e.Key != "node-name" {
		t.Fatalf("an empty node name: got %v, want an error for node-name", err)
	}
}

func TestCheckNamesTheWrongSetting(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key, says string
		set       func(*Config)
	}{
		{"log-level", "error, warn, info, debug", func(c *Config) { c.LogLevel = "loud" }},
		{"color", "auto, always, never", func(c *Config) { c.Color = "yes" }},
		{"root-dir", "absolute", func(c *Config) { c.RootDir = "var" }},
		{"runtime-endpoint", "unix", func(c *Config) { c.RuntimeEndpoint = "tcp://h:1" }},
		{"pod-logs-dir", "absolute", func(c *Config) { c.PodLogsDir = "" }},
		{"cgroup-root", "absolute", func(c *Config) { c.CgroupRoot = "x" }},
		{"node-name", "node name", func(c *Config) { c.NodeName = "Node_1" }},
		{"filename", "only once", func(c *Config) { c.Filename = []string{"-", "a", "-"} }},
		{"filename", `"ftp://" is no scheme that is read`, func(c *Config) { c.Filename = []string{"ftp://me:hunter2@h/x"} }},
		{"filename", "empty", func(c *Config) { c.Filename = []string{""} }},
		{"manifest-url-header", "header 2", func(c *Config) { c.ManifestURLHeader = []string{"A: b", "hunter2"} }},
		{"manifest-url-header", "header 1", func(c *Config) { c.ManifestURLHeader = []string{"A: b\r\nX: hunter2"} }},
		{"file-check-frequency", "0s", func(c *Config) { c.FileCheckFrequency = 0 }},
		{"http-check-frequency", "-1s", func(c *Config) { c.HTTPCheckFrequency = -time.Second }},
		{"validate", "strict, warn, ignore", func(c *Config) { c.Validate = "" }},
		{"pod-cidr", "network", func(c *Config) { c.PodCIDR = "10.88.0.1/16" }},
		{"sync-frequency", "0s", func(c *Config) { c.SyncFrequency = 0 }},
	} {
		cfg := valid()
		c.set(&cfg)
		err := cfg.Check()
		var e *Error
		if !errors.As(err, &e) || e.Key != c.key || !strings.Contains(e.Msg, c.says) {
			t.Errorf("%s: got %v, want an error that says %q", c.key, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error repeats a header's value: %v", c.key, err)
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	c := Config{ManifestURLHeader: []string{"x-a: 1", "X-A:2", "Authorization:  Bearer a:b"}}
	h := c.Headers()
	if got := h.Values("X-A"); len(got) != 2 || got[0] != "1" || got[1] != "2" {
		t.Errorf("X-A = %q", got)
	}
	if got := h.Get("Authorization"); got != "Bearer a:b" {
		t.Errorf("Authorization = %q", got)
	}
}
