package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// kept is how many backups stay.
const kept = 7

// backup writes the items into a new file, one JSON text a line, and removes the oldest files.
func backup(ctx context.Context, args []string) error {
	db := newClient()
	items, err := db.wait(ctx)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, item := range items {
		if err := json.NewEncoder(&text).Encode(item); err != nil {
			return err
		}
	}
	name := filepath.Join(args[0], "items-"+time.Now().UTC().Format("20060102T150405Z")+".jsonl")
	if err := write(name, text.Bytes()); err != nil {
		return err
	}
	log.Printf("wrote %d items to %s", len(items), name)
	all, err := filepath.Glob(filepath.Join(args[0], "items-*.jsonl"))
	if err != nil {
		return err
	}
	slices.Sort(all)
	for _, old := range all[:max(0, len(all)-kept)] {
		if err := os.Remove(old); err != nil {
			return err
		}
		log.Printf("removed %s", old)
	}
	return nil
}

// write writes a file that is whole or not there, also after a power loss.
func write(name string, content []byte) error {
	f, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
