package cmd

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/file"
)

// example is the one-container pod of examples/, under another name.
func example(b *testing.B, name string) []byte {
	b.Helper()
	text, err := os.ReadFile("../examples/web.yaml")
	if err != nil {
		b.Fatal(err)
	}
	return []byte(strings.Replace(string(text), "  name: web\n", "  name: "+name+"\n", 1))
}

// BenchmarkDropFiles drops files of the one-container pod of examples/ one by one
// into a directory that is watched, as fast as they can be renamed into it, until
// every ADD is there: from rename(2) over inotify, decoding, defaulting and
// validation to the PodUpdate. An operation is the whole drop.
func BenchmarkDropFiles(b *testing.B) {
	for _, n := range []int{300, 1000, 3000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var bytes, took int64
			for b.Loop() {
				t, a := dropFiles(b, n)
				took, bytes = took+t.Nanoseconds(), bytes+a
			}
			b.ReportMetric(float64(took)/float64(b.N*n), "ns/pod")
			b.ReportMetric(float64(bytes)/float64(b.N*n), "B/pod")
		})
	}
}

// dropFiles returns the time for n files, and the allocations in that time.
func dropFiles(b *testing.B, n int) (time.Duration, int64) {
	b.StopTimer()
	defer b.StartTimer()
	work := b.TempDir()
	dir := filepath.Join(work, "manifests")
	if err := os.Mkdir(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(work, fmt.Sprintf("%05d.yaml", i)), example(b, fmt.Sprintf("web-%05d", i)), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	config := podconfig.New(podconfig.Config{Sources: []source.Source{file.New(file.Config{
		Path: dir, CheckFrequency: time.Hour,
		Parse: func(data []byte, name string) (source.File, []pod.Problem) {
			return manifest.Parse(data, manifest.Options{Node: "n1", Source: "file", Location: dir, File: name, Static: true})
		},
	})}})
	answered := make(chan struct{})
	done := make(chan time.Time, 1)
	go func() {
		added := 0
		for batch := range config.Batches(b.Context()) {
			for _, u := range batch.Updates {
				if u.Op == podconfig.ADD && len(u.Pods) == 0 {
					close(answered)
				}
				added += len(u.Pods)
			}
			if added == n {
				done <- time.Now()
				return
			}
		}
	}()
	<-answered
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for i := range n {
		name := fmt.Sprintf("%05d.yaml", i)
		if err := os.Rename(filepath.Join(work, name), filepath.Join(dir, name)); err != nil {
			b.Fatal(err)
		}
	}
	end := <-done
	runtime.ReadMemStats(&after)
	return end.Sub(start), int64(after.TotalAlloc - before.TotalAlloc)
}
