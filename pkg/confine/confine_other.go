//go:build !linux

package confine

// Reading does nothing: only Linux has Landlock.
func Reading(bool) error { return nil }

// Serving does nothing: only Linux has Landlock.
func Serving(int, ...uint16) error { return nil }
