// Package early runs the DNS server's process before other packages of the program are initialized.
// The process does not need their tables of Kubernetes' types, which would take most of its memory.
//
// Go initializes packages by dependencies first, then by import path: this package comes before
// those of Kubernetes. The process never runs their code.
//
// In every other process this package does nothing.
package early

import (
	"os"

	"github.com/nodectl/nodectl/pkg/dns/process"
)

// Command is the name of the hidden command.
const Command = "dns"

var _ = run()

// run runs the DNS server if this process was started for it, and then exits.
func run() struct{} {
	if len(os.Args) > 2 && os.Args[0] == "nodectl" && os.Args[1] == Command {
		os.Exit(process.Child(os.Args[2:]))
	}
	return struct{}{}
}
