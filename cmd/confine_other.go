//go:build !linux

package cmd

// confineReading does nothing: only Linux has Landlock.
func confineReading(bool) error { return nil }
