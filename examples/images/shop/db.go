package main

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// store is a list of items in a file, one JSON text a line.
type store struct {
	mu   sync.Mutex
	path string
}

func database(ctx context.Context, args []string) error {
	s := &store{path: filepath.Join(args[0], "items.jsonl")}
	if err := s.touch(); err != nil {
		return err
	}
	first, err := password()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ready") })
	mux.HandleFunc("GET /items", s.list)
	mux.HandleFunc("POST /items", s.add)
	return serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, given, _ := r.BasicAuth()
		if r.URL.Path != "/ready" && subtle.ConstantTimeCompare([]byte(given), []byte(first)) != 1 {
			http.Error(w, "wrong password", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

func (s *store) touch() error {
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func (s *store) list(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.Open(s.path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer f.Close()
	_, _ = io.Copy(w, f)
}

func (s *store) add(w http.ResponseWriter, r *http.Request) {
	var item string
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&item); err != nil {
		http.Error(w, "not a JSON text", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(item); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (s *store) write(item string) error {
	f, err := os.OpenFile(s.path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := json.NewEncoder(f).Encode(item); err != nil {
		return err
	}
	return f.Sync()
}

// client speaks to the database at DB.
type client struct{ http.Client }

func (c *client) do(ctx context.Context, method string, body io.Reader) (*http.Response, error) {
	secret, err := password()
	if err != nil {
		return nil, err
	}
	c.Timeout = 5 * time.Second
	r, err := http.NewRequestWithContext(ctx, method, "http://"+os.Getenv("DB")+"/items", body)
	if err != nil {
		return nil, err
	}
	r.SetBasicAuth("shop", secret)
	answer, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		c.CloseIdleConnections() // it may lead to another server: a service's rules change
		return nil, fmt.Errorf("the database answers %s", answer.Status)
	}
	return answer, nil
}

// items returns what the database has.
func (c *client) items(ctx context.Context) (all []string, err error) {
	answer, err := c.do(ctx, http.MethodGet, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	for dec := json.NewDecoder(answer.Body); ; {
		var item string
		if err := dec.Decode(&item); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, item)
	}
}
