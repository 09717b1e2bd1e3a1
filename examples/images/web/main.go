// Command web is a small web server: a page at /, and /ready, which says so
// from one second after the start on. PORT (8080) is where it listens; TITLE is
// the page's first line; a file /site/index.html, if there is one, is the page.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	started := time.Now()
	host, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)

	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if page, err := os.ReadFile("/site/index.html"); err == nil {
			_, _ = w.Write(page)
			return
		}
		fmt.Fprintf(w, "%s\nThis is pod %s, up for %s.\n", cmp.Or(os.Getenv("TITLE"), "Hello from nodectl"), host, time.Since(started).Round(time.Second))
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		if time.Since(started) < time.Second {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})

	server := &http.Server{Addr: ":" + cmp.Or(os.Getenv("PORT"), "8080"), Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-signals
		log.Print("Shutting down")
		deadline, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(deadline)
	}()
	log.Printf("Serving on %s", server.Addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	<-closed
}
