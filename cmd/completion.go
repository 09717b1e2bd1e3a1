package cmd

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/suggest"
)

func (p *program) completionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:       "completion bash|zsh|fish|powershell",
		Short:     "Print a completion script for a shell",
		ValidArgs: shells(),
		Example: `  source <(nodectl completion bash)
  nodectl completion zsh > "${fpath[1]}/_nodectl"
  nodectl completion fish > ~/.config/fish/completions/nodectl.fish`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(cmd, errors.New("completion takes one shell: bash, zsh, fish or powershell"))
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return completionScript(cmd.Root(), args[0], p.out)
	}
	return cmd
}

func shells() []string { return []string{"bash", "zsh", "fish", "powershell"} }

// completionScript writes a shell's completion script, which calls nodectl.
func completionScript(root *cobra.Command, shell string, w io.Writer) error {
	switch shell {
	case "bash":
		return root.GenBashCompletionV2(w, true)
	case "zsh":
		return root.GenZshCompletion(w)
	case "fish":
		return root.GenFishCompletion(w, true)
	case "powershell":
		return root.GenPowerShellCompletionWithDesc(w)
	}
	text := "unknown shell " + shell
	if like := suggest.Similar(shell, shells()); like != "" {
		text += ` (did you mean "` + like + `"?)`
	}
	return failed(exitUsage, errors.New(text))
}
