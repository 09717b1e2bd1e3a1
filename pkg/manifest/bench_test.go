package manifest

import (
	"os"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"
)

// BenchmarkParse reads the pods that docs/benchmarks.md measures, as YAML and as JSON.
func BenchmarkParse(b *testing.B) {
	example, err := os.ReadFile("../../examples/web.yaml")
	if err != nil {
		b.Fatal(err)
	}
	asJSON, err := sigsyaml.YAMLToJSON([]byte(ordinary))
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct{ name, text string }{
		{"example", string(example)},
		{"rich", ordinary},
		{"json", string(asJSON)},
	} {
		b.Run(c.name, func(b *testing.B) {
			data := []byte(c.text)
			parseOne(b, c.text)
			b.ReportAllocs()
			for b.Loop() {
				Parse(data, options("web.yaml"))
			}
		})
	}
}

// BenchmarkFromAPI takes a pod of an API server.
func BenchmarkFromAPI(b *testing.B) {
	p, o := servedPod(b), apiOptions()
	b.ReportAllocs()
	for b.Loop() {
		FromAPI(p, o)
	}
}

// BenchmarkScan scans a file that is too much, and one that is not.
func BenchmarkScan(b *testing.B) {
	example, err := os.ReadFile("../../examples/web.yaml")
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string][]byte{"example": example, "10 MiB of words": []byte(bombs()["words"])} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				scan(chunk{text: text, line: 1})
			}
		})
	}
}
