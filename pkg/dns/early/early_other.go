//go:build !linux

// Package early does nothing: only Linux has the DNS server's process.
package early

// Command is the name of the hidden command.
const Command = "dns"
