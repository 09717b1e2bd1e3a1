package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// migrate writes those of ITEMS, one a line, that the database lacks.
func migrate(ctx context.Context, _ []string) error {
	var db client
	have, err := db.items(ctx)
	if err != nil {
		return err
	}
	for item := range strings.Lines(os.Getenv("ITEMS")) {
		item = strings.TrimSpace(item)
		if item == "" || slices.Contains(have, item) {
			continue
		}
		text, err := json.Marshal(item)
		if err != nil {
			return err
		}
		answer, err := db.do(ctx, http.MethodPost, bytes.NewReader(text))
		if err != nil {
			return err
		}
		answer.Body.Close()
		log.Printf("added %s", item)
	}
	return nil
}

// web shows the items by a template that is read at every visit: who changes the
// ConfigMap changes the page.
func web(ctx context.Context, args []string) error {
	notes, err := os.OpenFile(args[1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer notes.Close()
	var db client
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		if _, err := db.items(r.Context()); err != nil {
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
		if err := page.Execute(w, map[string]any{"Title": os.Getenv("TITLE"), "Items": items}); err != nil {
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
