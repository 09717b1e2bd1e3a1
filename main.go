// nodectl runs pods on one machine.
package main

import (
	"os"

	"github.com/nodectl/nodectl/cmd"
)

func main() { os.Exit(cmd.Main()) }
