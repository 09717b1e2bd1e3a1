//go:build !linux

// Package early does nothing: the DNS server's process needs Linux.
package early

// Command is the name of the hidden command.
const Command = "dns"
