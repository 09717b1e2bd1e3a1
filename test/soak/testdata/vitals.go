// Package main gets this file by go build -overlay, for a soak alone: on SIGUSR2
// the agent writes down what of it only it can count. The released program has
// no such thing.
package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"syscall"
)

func init() {
	path := os.Getenv("SOAK_VITALS")
	if path == "" {
		return
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	go func() {
		for range asked {
			runtime.GC() // finalizers of objects that the next collection frees
			debug.FreeOSMemory()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if f, err := os.Create(path + ".goroutines"); err == nil {
				_ = pprof.Lookup("goroutine").WriteTo(f, 1)
				_ = f.Close()
			}
			if f, err := os.Create(path + ".heap"); err == nil {
				_ = pprof.Lookup("heap").WriteTo(f, 1)
				_ = f.Close()
			}
			text, _ := json.Marshal(map[string]uint64{
				"goroutines": uint64(runtime.NumGoroutine()), "heap": m.HeapAlloc, "objects": m.HeapObjects,
			})
			_ = os.WriteFile(path+".new", text, 0o600)
			_ = os.Rename(path+".new", path)
		}
	}()
}
