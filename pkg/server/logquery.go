package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os/exec"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits of a log query: the kubelet's.
const (
	maxLogServices = 4
	maxServiceName = 256
	maxTailLines   = 100_000
	logQueryTime   = 30 * time.Second
)

// maxJournalQueries limits the queries that run at a time, on all listeners together: each runs
// journalctl, which reads the whole journal for a pattern.
const maxJournalQueries = 2

// logQuery is a query of the machine's logs (C-1.40.15).
type logQuery struct {
	services []string
	file     string   // below Config.SystemLogs; "" unless the query names one
	options  []string // of journalctl
}

// parseLogQuery reads the parameters of /logs/. It returns nil if no parameter belongs to a log query.
func parseLogQuery(v url.Values) (*logQuery, error) {
	var n logQuery
	var files []string
	for _, text := range v["query"] {
		switch {
		case strings.ContainsAny(text, `/\`):
			files = append(files, strings.TrimPrefix(strings.ReplaceAll(text, `\`, "/"), "/"))
		case strings.TrimSpace(text) != "":
			n.services = append(n.services, text)
		}
	}
	for _, o := range logOptions() {
		text := v.Get(o.name)
		if text == "" {
			continue
		}
		option, err := o.read(text)
		if err != nil {
			return nil, &StatusError{Code: http.StatusBadRequest, Message: o.name + ": " + err.Error()}
		}
		n.options = append(n.options, option...)
	}
	if !v.Has("query") && len(n.options) == 0 {
		return nil, nil
	}
	n.file = strings.Join(files, "")
	if err := n.check(files); err != nil {
		return nil, &StatusError{Code: http.StatusNotAcceptable, Message: "query: " + err.Error()}
	}
	return &n, nil
}

// check returns an error for an invalid query, as the kubelet does.
func (n *logQuery) check(files []string) error {
	switch {
	case len(files) == 0 && len(n.services) == 0:
		return errors.New("may not be empty")
	case len(files) > 0 && len(n.services) > 0:
		return errors.New("cannot specify a file and service")
	case len(files) > 1:
		return errors.New("cannot specify more than one file")
	case len(files) == 1 && len(n.options) > 0:
		return errors.New("cannot specify file with options")
	case len(files) == 1 && !fs.ValidPath(n.file):
		return fmt.Errorf("%q is not a path below the directory of logs", n.file)
	case len(n.services) > maxLogServices:
		return fmt.Errorf("must have at most %d services", maxLogServices)
	}
	for _, name := range n.services {
		unsafe := strings.ContainsFunc(name, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:@", r)
		})
		if unsafe || len(name) > maxServiceName {
			return fmt.Errorf("%q is not the name of a service", name)
		}
	}
	return nil
}

// logOption is a parameter of a log query that becomes options of journalctl.
type logOption struct {
	name string
	read func(text string) ([]string, error)
}

func logOptions() []logOption {
	at := func(option string) func(string) ([]string, error) {
		return func(text string) ([]string, error) {
			t, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return nil, errors.New("invalid time format")
			}
			return []string{option + t.UTC().Format("2006-01-02 15:04:05 UTC")}, nil
		}
	}
	number := func(least, most int, options ...string) func(string) ([]string, error) {
		return func(text string) ([]string, error) {
			n, err := strconv.Atoi(text)
			if err != nil || n < least || n > most {
				return nil, fmt.Errorf("must be a number between %d and %d", least, most)
			}
			last := len(options) - 1
			return append(slices.Clone(options[:last]), options[last]+strconv.Itoa(n)), nil
		}
	}
	return []logOption{
		{"sinceTime", at("--since=")},
		{"untilTime", at("--until=")},
		{"tailLines", number(0, maxTailLines, "--pager-end", "--lines=")},
		{"pattern", func(text string) ([]string, error) {
			_, err := syntax.Parse(text, syntax.Perl)
			return []string{"--grep=" + text}, err
		}},
		{"boot", number(-1<<20, 0, "--boot=")},
	}
}

// queryLogs answers a query for the logs of services.
func (s *Server) queryLogs(w http.ResponseWriter, q *request, n *logQuery, files fs.FS) error {
	select {
	case s.logQueries <- struct{}{}:
		defer func() { <-s.logQueries }()
	default:
		return &StatusError{Code: http.StatusTooManyRequests, Message: fmt.Sprintf("%d other log queries are running", maxJournalQueries)}
	}
	plainText(w)
	n.write(q.Context(), w, files)
	return nil
}

// write writes the logs of the services of a query: from the journal if it has their units, else from
// files with their names.
func (n *logQuery) write(ctx context.Context, w http.ResponseWriter, files fs.FS) {
	ctx, cancel := context.WithTimeout(ctx, logQueryTime)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(logQueryTime + errorTime)) // a slow caller
	var units, others []string
	known, _ := journalctl(ctx, "--field=_SYSTEMD_UNIT").Output() // without a journal there may be files
	for _, name := range n.services {
		if slices.Contains(strings.Fields(string(known)), name+".service") {
			units = append(units, "--unit="+name)
		} else {
			others = append(others, name)
		}
	}
	if len(units) > 0 {
		cmd := journalctl(ctx, slices.Concat([]string{"--utc", "--no-pager", "--output=short-precise"}, n.options, units)...)
		if err := copyOutput(w, cmd); err != nil {
			_, _ = io.WriteString(w, "\nerror: journal output not available\n")
		}
	}
	if len(others) > 0 && len(n.options) > 0 {
		_, _ = fmt.Fprintf(w, "\noptions present and query resolved to log files for %v\ntry without specifying options\n", others)
		return
	}
	for _, name := range others {
		writeServiceFile(w, files, name)
	}
}

// copyOutput runs a command and writes its output. It returns an error if the command does not
// start.
func copyOutput(w io.Writer, cmd *exec.Cmd) error {
	out, err := cmd.StdoutPipe() // os/exec would write to w beyond the end of the request
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	_, _ = io.Copy(w, out) // an error means that the caller has closed its connection
	_ = out.Close()        // ends a command that still prints
	_ = cmd.Wait()
	return nil
}

// journalctl returns a call of journalctl that ends with ctx.
func journalctl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	cmd.WaitDelay = time.Second
	return cmd
}

// writeServiceFile writes the log file of a service: the first that exists of the usual names.
func writeServiceFile(w io.Writer, files fs.FS, service string) {
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		file, err := files.Open(name)
		if err != nil {
			continue
		}
		info, err := file.Stat()
		if err == nil && info.Mode().IsRegular() {
			_, _ = io.Copy(w, file) // an error means that the caller has closed its connection
		}
		_ = file.Close()
		if err == nil && info.Mode().IsRegular() {
			return
		}
	}
	_, _ = fmt.Fprintf(w, "\nlog not found for %s\n", service)
}
