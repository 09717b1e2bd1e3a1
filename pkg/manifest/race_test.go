//go:build race

package manifest

// slower is how much slower things may be under the race detector.
const slower = 8
