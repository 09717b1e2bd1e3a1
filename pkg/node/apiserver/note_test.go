package apiserver

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
)

// TestF70_OutageIsLoggedOnce: the address of a watch differs each time, but the failure
// is the same.
//
// Shows: F70
func TestF70_OutageIsLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	in(t, func(_ *world, cfg *Config) { cfg.Log = slog.New(slog.NewTextHandler(&out, nil)) }, func(t *testing.T, w *world) {
		away := errors.New("connection refused")
		for i := range 10 {
			w.note("watch", fmt.Errorf("follow: %w", &url.Error{Op: "Get", URL: fmt.Sprintf("https://kubernetes.invalid/api/v1/nodes?timeoutSeconds=%d", i), Err: away}))
		}
		w.note("watch", errors.New("reset"))
		w.note("watch", nil)
		if said := out.String(); strings.Count(said, "what=watch") != 3 || strings.Count(said, `error="connection refused"`) != 1 {
			t.Errorf("the log:\n%s", said)
		}
	})
}
