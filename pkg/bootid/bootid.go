// Package bootid reads the kernel's ID of the current boot. Files of an agent use it to tell state
// that a reboot removes, such as mounts, processes and cgroups, from state that stays.
//
// An unknown ID is an error, never an empty text. A caller that goes on without an ID treats
// such state as that of another boot.
package bootid

import (
	"errors"
	"os"
	"strings"
)

const file = "/proc/sys/kernel/random/boot_id"

// Read returns the ID, which differs after each boot. It is never "" without an error.
func Read() (string, error) { return read(file) }

func read(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", errors.New(file + " is empty")
	}
	return id, nil
}
