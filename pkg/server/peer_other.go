//go:build !linux

package server

import (
	"errors"
	"net"
)

// processOf returns an error: agents run on Linux only.
func processOf(net.Conn) (uid uint32, pid int32, err error) {
	return 0, 0, errors.New("the peer of a socket is known on Linux only")
}

// hasHungUp returns false: agents run on Linux only.
func hasHungUp(net.Conn) bool { return false }

func checkPrivate(string) error { return nil }

func descriptors() int { return 1024 }

func shortPath(path string) (name string, done func(), err error) { return path, func() {}, nil }

func freeBytes(string) (uint64, error) { return 0, errors.ErrUnsupported }
