// Command init prepares what another container of the pod serves: it writes
// index.html to the directory its argument names.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: init DIRECTORY")
	}
	host, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	page := fmt.Sprintf("This page was written by an init container of pod %s at %s.\n", host, time.Now().UTC().Format(time.RFC3339))
	name := filepath.Join(os.Args[1], "index.html")
	if err := os.WriteFile(name, []byte(page), 0o644); err != nil {
		log.Fatal(err)
	}
	log.Printf("Wrote %s", name)
}
