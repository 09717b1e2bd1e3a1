// Command shop is a small shop in parts, one a mode: its database (db), the job that fills it
// (migrate), its front end (web), a sidecar that copies the notes of the front end to its own output
// (follow), and the backup of the database (backup).
//
//	db DIR             keeps items in DIR; PASSWORD_FILE opens it
//	migrate            writes the ITEMS that the database at DB lacks
//	web TEMPLATE NOTES shows them by a template, and notes every visit
//	follow NOTES       prints the lines that are written to NOTES
//	backup DIR         copies the items into a new file in DIR, and keeps the newest 7 files
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
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: shop db|migrate|web|follow|backup …")
	}
	modes := map[string]struct {
		args int
		run  func(context.Context, []string) error
	}{
		"db":      {1, database},
		"migrate": {0, migrate},
		"web":     {2, web},
		"follow":  {1, follow},
		"backup":  {1, backup},
	}
	mode, ok := modes[os.Args[1]]
	args := os.Args[2:]
	if !ok || len(args) != mode.args {
		log.Fatal("usage: shop db DIR | migrate | web TEMPLATE NOTES | follow NOTES | backup DIR")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := mode.run(ctx, args)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// serve answers on PORT until ctx ends, and then finishes the requests that have begun.
func serve(ctx context.Context, h http.Handler) error {
	s := &http.Server{Addr: ":" + cmp.Or(os.Getenv("PORT"), "8080"), Handler: h, ReadHeaderTimeout: 5 * time.Second}
	finished := make(chan error, 1)
	go func() {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		finished <- s.Shutdown(end)
	}()
	log.Printf("%s listens on %s", os.Args[1], s.Addr)
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	if err := <-finished; err != nil {
		return fmt.Errorf("finish the requests: %w", err)
	}
	log.Printf("%s has finished all requests", os.Args[1])
	return nil
}

// password reads the password at every use: a change of the Secret changes it.
func password() (string, error) {
	data, err := os.ReadFile(os.Getenv("PASSWORD_FILE"))
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return string(data), nil
}
