package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

// migrate writes those of ITEMS, one a line, that the database lacks.
func migrate(ctx context.Context, _ []string) error {
	var items []string
	for item := range strings.Lines(os.Getenv("ITEMS")) {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	text, err := json.Marshal(items)
	if err != nil {
		return err
	}
	db := newClient()
	if _, err := db.wait(ctx); err != nil {
		return err
	}
	answer, err := db.do(ctx, http.MethodPost, bytes.NewReader(text))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	added, err := io.ReadAll(answer.Body)
	if err == nil {
		log.Printf("added %s items", bytes.TrimSpace(added))
	}
	return err
}

// web shows the items by a template. It reads the template at every visit: a change of the ConfigMap
// changes the page. A front end without a template does not start.
func web(ctx context.Context, args []string) error {
	if _, err := template.ParseFiles(args[0]); err != nil {
		return fmt.Errorf("read the template: %w", err)
	}
	notes, err := os.OpenFile(args[1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer notes.Close()
	db := newClient()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		items, err := db.items(r.Context())
		if err == nil && len(items) == 0 {
			err = errors.New("the database is empty")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(notes, "%s visit from %s\n", time.Now().UTC().Format(time.RFC3339), r.RemoteAddr)
		items, err := db.items(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		page, err := template.ParseFiles(args[0])
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		data := map[string]any{"Title": os.Getenv("TITLE"), "Version": os.Getenv("VERSION"), "Items": items}
		if err := page.Execute(w, data); err != nil {
			log.Print(err)
		}
	})
	return serve(ctx, mux)
}

// follow prints the lines of a file as they come.
func follow(ctx context.Context, args []string) error {
	f, err := os.OpenFile(args[0], os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	lines := bufio.NewReader(f)
	part := ""
	for {
		text, err := lines.ReadString('\n')
		part += text
		switch {
		case err == nil:
			fmt.Print(part)
			part = ""
			continue
		case err != io.EOF:
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
	}
}
