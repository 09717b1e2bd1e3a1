package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"
)

// maxProfileTime is how long a CPU profile or a trace may take: less than the time limit of the
// route.
const maxProfileTime = 100 * time.Second

// profilesOff returns the kubelet's answer if the TLS port serves no profiles.
func profilesOff(c *Config) string {
	if c.Profiling {
		return ""
	}
	return "profiling endpoint is disabled."
}

// flagsOff returns the kubelet's answer if the TLS port does not change the log level.
func flagsOff(c *Config) string {
	if c.DebugFlags {
		return ""
	}
	return "flags endpoint is disabled."
}

// profiles answers /debug/pprof with the names of all profiles, one a line.
func (s *Server) profiles(w http.ResponseWriter, _ *request) error {
	plainText(w)
	for _, p := range pprof.Profiles() {
		_, _ = fmt.Fprintf(w, "%d\t%s\n", p.Count(), p.Name())
	}
	_, _ = io.WriteString(w, "\tcmdline\n\tprofile\n\tsymbol\n\ttrace\n")
	return nil
}

// profile answers /debug/pprof/{profile} as net/http/pprof does. That package would register its
// own handlers with http.DefaultServeMux.
func (s *Server) profile(w http.ResponseWriter, q *request) error {
	switch name := q.values["profile"]; name {
	case "cmdline": // without the arguments, which may be secrets
		plainText(w)
		_, _ = io.WriteString(w, os.Args[0])
		return nil
	case "symbol":
		plainText(w)
		writeSymbols(w, q.URL.RawQuery)
		return nil
	case "profile":
		return record(w, q, 30*time.Second, pprof.StartCPUProfile, pprof.StopCPUProfile)
	case "trace":
		return record(w, q, time.Second, trace.Start, trace.Stop)
	default:
		p := pprof.Lookup(name)
		if p == nil {
			return &StatusError{Code: http.StatusNotFound, Message: "Unknown profile"}
		}
		if name == "heap" && q.params.Get("gc") == "1" {
			runtime.GC()
		}
		debug, _ := strconv.Atoi(q.params.Get("debug"))
		if debug > 0 {
			plainText(w)
		} else {
			profileHeader(w, q)
		}
		_ = p.WriteTo(w, debug) // an error means that the caller has closed its connection
		return nil
	}
}

// record writes a recording to w. It lasts as long as the query's parameter seconds says.
func record(w http.ResponseWriter, q *request, byDefault time.Duration, start func(io.Writer) error, stop func()) error {
	length := byDefault
	if text := q.params.Get("seconds"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		length = time.Duration(seconds * float64(time.Second))
		if err != nil || length <= 0 || length > maxProfileTime {
			return &StatusError{Code: http.StatusBadRequest, Message: fmt.Sprintf("seconds must be between 0 and %.0f", maxProfileTime.Seconds())}
		}
	}
	profileHeader(w, q)
	ctx, cancel := context.WithTimeout(q.Context(), length)
	defer cancel()
	if err := start(&promptWriter{ResponseWriter: w, cancel: cancel}); err != nil { // another one is being recorded
		return &StatusError{Code: http.StatusInternalServerError, Message: err.Error()}
	}
	defer stop()
	<-ctx.Done()
	return nil
}

// profileReadTime is how long the caller may take to read a part of a profile.
const profileReadTime = 5 * time.Second

// promptWriter writes to a caller, and calls cancel if the caller does not read within
// profileReadTime. Until a part of a trace is written, the Go runtime keeps it in memory.
type promptWriter struct {
	http.ResponseWriter
	cancel func()
}

func (p *promptWriter) Write(data []byte) (int, error) {
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(profileReadTime))
	n, err := p.ResponseWriter.Write(data)
	if err != nil {
		p.cancel()
	}
	return n, err
}

// writeSymbols names the function at each address of a query such as 0x401000+0x402000.
func writeSymbols(w io.Writer, query string) {
	_, _ = io.WriteString(w, "num_symbols: 1\n")
	for text := range strings.SplitSeq(query, "+") {
		pc, _ := strconv.ParseUint(text, 0, 64)
		if f := runtime.FuncForPC(uintptr(pc)); pc != 0 && f != nil {
			_, _ = fmt.Fprintf(w, "%#x %s\n", pc, f.Name())
		}
	}
}

func plainText(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
}

// profileHeader announces a profile in the format of the pprof tool.
func profileHeader(w http.ResponseWriter, q *request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+q.values["profile"]+`"`)
}

// setVerbosity answers PUT /debug/flags/v, whose body is the verbosity.
func (s *Server) setVerbosity(w http.ResponseWriter, q *request) error {
	if s.cfg.SetVerbosity == nil {
		return notImplemented(q)
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return &StatusError{Code: http.StatusBadRequest, Message: "error reading request body: " + err.Error()}
	}
	n, err := strconv.ParseUint(string(body), 10, 31)
	if err != nil {
		return &StatusError{Code: http.StatusBadRequest, Message: err.Error()}
	}
	s.cfg.SetVerbosity(int(n))
	s.log.Info("Changed log verbosity", "verbosity", n, "user", q.caller.Name)
	plainText(w)
	_, _ = fmt.Fprintf(w, "successfully set klog.logging.verbosity to %d", n)
	return nil
}
