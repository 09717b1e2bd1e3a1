// Command shop is a small shop in four parts, one a mode: its database (db), the
// job that fills it (migrate), its front end (web), and a sidecar that copies what
// the front end notes to its own output (follow).
//
//	db DIR             keeps items in DIR; PASSWORD_FILE opens it
//	migrate            writes the items that DB has to have, once
//	web TEMPLATE NOTES shows them by a template, and notes every visit
//	follow NOTES       prints what is written to NOTES
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
		log.Fatal("usage: shop db|migrate|web|follow …")
	}
	modes := map[string]struct {
		args int
		run  func(context.Context, []string) error
	}{
		"db":      {1, database},
		"migrate": {0, migrate},
		"web":     {2, web},
		"follow":  {1, follow},
	}
	mode, ok := modes[os.Args[1]]
	args := os.Args[2:]
	if !ok || len(args) != mode.args {
		log.Fatal("usage: shop db DIR | migrate | web TEMPLATE NOTES | follow NOTES")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := mode.run(ctx, args)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// serve answers on PORT until ctx ends.
func serve(ctx context.Context, h http.Handler) error {
	s := &http.Server{Addr: ":" + cmp.Or(os.Getenv("PORT"), "8080"), Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Shutdown(end)
	}()
	log.Printf("%s listens on %s", os.Args[1], s.Addr)
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	log.Printf("%s has ended well", os.Args[1])
	return nil
}

// password reads the password at every use: who changes the Secret changes it.
func password() (string, error) {
	data, err := os.ReadFile(os.Getenv("PASSWORD_FILE"))
	if err != nil {
		return "", fmt.Errorf("the password: %w", err)
	}
	return string(data), nil
}
