// Package early runs the DNS server's process before other packages of the program are
// initialized: their tables of Kubernetes' types, which it does not need, would be most of its
// memory.
//
// Go initializes packages by dependencies first, then by import path: this package comes before
// those of Kubernetes. Their code is never reached in that process.
//
// The one rule: in every other process it does nothing.
package early

import (
	"os"

	"github.com/nodectl/nodectl/pkg/dns/process"
)

// Command is the name of the hidden command.
const Command = "dns"

var _ = run()

// run is the process, if this is it.
func run() struct{} {
	if len(os.Args) > 2 && os.Args[0] == "nodectl" && os.Args[1] == Command {
		os.Exit(process.Child(os.Args[2:]))
	}
	return struct{}{}
}
