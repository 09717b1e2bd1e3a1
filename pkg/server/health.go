package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// healthz answers /healthz, /livez and /readyz: it runs every check, or the one that the path
// names (C-1.40.5). The error of a check may contain the name of a pod. So healthz writes it only to
// the log, and to an authenticated caller that names the check.
func (s *Server) healthz(w http.ResponseWriter, q *request) error {
	always := func(context.Context) error { return nil }
	checks := map[string]func(context.Context) error{"ping": always, "log": always}
	maps.Copy(checks, s.cfg.Checks)
	run := func(name string) error {
		err := checks[name](q.Context())
		if err != nil {
			if notLogged, ok := s.healthWarnings[name].Allow(); ok {
				s.log.Warn("Health check failed", "check", name, "error", err, "notLogged", notLogged)
			}
		}
		return err
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if name, ok := q.values["check"]; ok {
		if checks[name] == nil {
			return &StatusError{Code: http.StatusNotFound, Message: "there is no check " + name}
		}
		if err := run(name); err != nil {
			reason := "reason withheld"
			if q.caller.Name != "" {
				reason = err.Error()
			}
			return &StatusError{Code: http.StatusInternalServerError, Message: "internal server error: " + reason}
		}
		_, _ = w.Write([]byte("ok"))
		return nil
	}
	names := []string{"ping", "log"} // first, as in the kubelet
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Checks)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var out strings.Builder
	var failed []string
	for _, name := range names {
		if slices.Contains(q.params["exclude"], name) {
			fmt.Fprintf(&out, "[+]%s excluded: ok\n", name)
			continue
		}
		if run(name) != nil {
			failed = append(failed, name)
			fmt.Fprintf(&out, "[-]%s failed: reason withheld\n", name)
			continue
		}
		fmt.Fprintf(&out, "[+]%s ok\n", name)
	}
	what := strings.TrimPrefix(q.route.path, "/")
	if len(failed) > 0 {
		return &StatusError{Code: http.StatusInternalServerError, Message: out.String() + what + " check failed"}
	}
	if _, verbose := q.params["verbose"]; !verbose {
		_, _ = w.Write([]byte("ok"))
		return nil
	}
	fmt.Fprintf(&out, "%s check passed\n", what)
	_, _ = w.Write([]byte(out.String()))
	return nil
}
