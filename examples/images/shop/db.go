package main

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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

// add writes those items of the request that the store lacks.
func (s *store) add(w http.ResponseWriter, r *http.Request) {
	var items []string
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&items); err != nil {
		http.Error(w, "not a JSON list of texts", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	added, err := s.write(items)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, added)
}

func (s *store) write(items []string) (added int, err error) {
	f, err := os.OpenFile(s.path, os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	have, err := decode(f)
	if err != nil {
		return 0, err
	}
	var text bytes.Buffer
	for _, item := range items {
		if slices.Contains(have, item) {
			continue
		}
		if err := json.NewEncoder(&text).Encode(item); err != nil {
			return 0, err
		}
		added++
	}
	if _, err := f.Write(text.Bytes()); err != nil {
		return 0, err
	}
	return added, f.Sync()
}

// decode reads items, one JSON text a line.
func decode(r io.Reader) (all []string, err error) {
	for dec := json.NewDecoder(r); ; {
		var item string
		if err := dec.Decode(&item); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, item)
	}
}

// client is a client of the database at DB.
type client struct{ http.Client }

func newClient() *client { return &client{http.Client{Timeout: 5 * time.Second}} }

func (c *client) do(ctx context.Context, method string, body io.Reader) (*http.Response, error) {
	secret, err := password()
	if err != nil {
		return nil, err
	}
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
		c.CloseIdleConnections() // a new connection looks the name up again
		return nil, fmt.Errorf("the database answers %s", answer.Status)
	}
	return answer, nil
}

// items returns the items of the database.
func (c *client) items(ctx context.Context) (all []string, err error) {
	answer, err := c.do(ctx, http.MethodGet, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return decode(answer.Body)
}

// wait is items, and asks again for a minute while the database does not answer.
func (c *client) wait(ctx context.Context) ([]string, error) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	again := time.NewTicker(500 * time.Millisecond)
	defer again.Stop()
	for {
		all, err := c.items(ctx)
		if err == nil {
			return all, nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}
