//go:build !linux

package cmd

import "github.com/spf13/cobra"

func (p *program) doctorCommand() *cobra.Command {
	return onLinux("doctor", "Check this machine for problems")
}
