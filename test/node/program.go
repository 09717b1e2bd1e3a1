package node

import (
	"fmt"
	"path/filepath"
)

// Slim returns the repository's bin/nodectl-slim, nodectl without a container runtime.
// Tests run the program that make has built and build none themselves.
func Slim() (string, error) { return built("nodectl-slim", "make slim") }

// Full returns the repository's bin/nodectl, nodectl with its container runtime.
func Full() (string, error) { return built("nodectl", "make") }

func built(name, command string) (string, error) {
	path := filepath.Join(Repo(), "bin", name)
	if !exists(path) {
		return "", fmt.Errorf("a test of nodectl needs %s: run %s", path, command)
	}
	return path, nil
}
