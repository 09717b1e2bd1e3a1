package server

import (
	"io/fs"
	"net/http"
	"os"
	"strings"
	"syscall"
)

// systemLogsOff returns the kubelet's answer if there is no directory of logs.
func systemLogsOff(c *Config) string {
	if c.SystemLogs != "" {
		return ""
	}
	return "logs endpoint is disabled."
}

// systemLogs answers /logs and /logs/{path...} with files and lists of directories below
// Config.SystemLogs.
func (s *Server) systemLogs(w http.ResponseWriter, q *request) error {
	if s.cfg.SystemLogs == "" {
		return notImplemented(q)
	}
	root, err := os.OpenRoot(s.cfg.SystemLogs)
	if err != nil {
		return err
	}
	defer root.Close()
	if s.cfg.LogQuery {
		n, err := parseLogQuery(q.params)
		switch {
		case err != nil:
			return err
		case n == nil:
		case q.values["path"] != "":
			return &StatusError{Code: http.StatusNotAcceptable, Message: "path not allowed in query mode"}
		case n.file == "":
			return s.queryLogs(w, q, n, regularFiles{root})
		default:
			http.ServeFileFS(w, q.Request, regularFiles{root}, n.file)
			return nil
		}
	}
	http.StripPrefix("/logs", http.FileServerFS(regularFiles{root})).ServeHTTP(w, q.Request)
	return nil
}

// regularFiles has the regular files and directories below a directory, and follows no link out of
// it. It opens no FIFO, which could block, and no device, on which opening may have an effect.
type regularFiles struct{ root *os.Root }

// Open implements fs.FS.
func (f regularFiles) Open(name string) (fs.File, error) {
	info, err := f.root.Stat(name)
	if err != nil || !isFileOrDir(info) {
		return nil, fs.ErrNotExist
	}
	file, err := f.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = file.Stat(); err != nil || !isFileOrDir(info) { // it was replaced meanwhile
		_ = file.Close()
		return nil, fs.ErrNotExist
	}
	return file, nil
}

func isFileOrDir(info fs.FileInfo) bool { return info.Mode().IsRegular() || info.IsDir() }

// matchRest returns the rest of an escaped path as a relative path; ok is false if the path leaves
// its directory or is not clean.
func matchRest(escaped string, unescape func(string) (string, error)) (value string, ok bool) {
	for part := range strings.SplitSeq(escaped, "/") {
		text, err := unescape(part)
		if err != nil || strings.ContainsAny(text, "/\x00") {
			return "", false
		}
	}
	value, err := unescape(escaped)
	return value, err == nil && fs.ValidPath(value) && value != "."
}
