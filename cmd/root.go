// Package cmd is nodectl's command line. Each file has one command: it turns flags into one
// call of another package, and prints the answer.
//
// commands.go makes the configuration of package agent, config.go reads the settings, exit.go
// has the exit codes, log.go the logger.
//
// A command writes its answer to standard output, and everything else to standard error.
package cmd

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodectl/nodectl/pkg/agent"
	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/config"
	_ "github.com/nodectl/nodectl/pkg/dns/early" // is the DNS server, in its process
)

// Main runs nodectl with the arguments and streams of this process and returns
// its exit code.
func Main() int {
	ctx, stop := withSignals(context.Background())
	defer stop()
	p := newProgram(os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	return p.run(ctx, p.asKubelet(os.Args[0], os.Args[1:]))
}

// program is one run of nodectl. Only the goroutine that calls run changes its fields, except debug.
type program struct {
	in       *os.File
	out, err *output
	env      func(string) string
	settings *pflag.FlagSet // every setting of config.Config
	cfg      config.Config  // as loaded before a command runs
	origins  map[string]origin

	configFiles  []string       // files that were read
	kubelet      config.Layer   // settings of a KubeletConfiguration
	kubeletFile  string         // a KubeletConfiguration named by --config
	kubeletFlags *pflag.FlagSet // the kubelet's flags that are not settings
	named        map[string]any // defaults if the program was started as kubelet

	serving bool // the command is serve: its log may use standard output

	given readonly.WrittenPaths // the user's spelling of the paths of sources
	debug atomic.Bool           // all loggers log debug messages
}

func newProgram(in, out, err *os.File, env func(string) string) *program {
	return &program{in: in, out: newOutput(out), err: newOutput(err), env: env, settings: settingFlags(), kubeletFlags: kubeletFlags()}
}

// run executes one command line.
func (p *program) run(ctx context.Context, args []string) int {
	root := p.root()
	root.SetArgs(args)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.SetIn(p.in)
	ran, err := root.ExecuteContextC(ctx)
	return p.end(ctx, ran, err)
}

// root returns the command tree.
func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "nodectl COMMAND [flags]",
		Short: "Run Kubernetes pods on this machine, with or without a cluster",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if showsVersion(cmd) {
				return p.out.print("nodectl " + readVersion().Version + "\n")
			}
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return p.prepare(cmd) },
		SilenceErrors:     true,
		SilenceUsage:      true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	// cobra's own --version prints through text/template. Templates call methods by name, so the
	// linker would keep every exported method of every type.
	root.Flags().BoolP("version", "v", false, "print the version")
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { _ = p.out.print(helpText(cmd)) })
	root.SetFlagErrorFunc(flagError)
	root.SetGlobalNormalizationFunc(normalizeFlag)
	p.addSettings(root.PersistentFlags(), globalSettings())
	complete(root, "color", "auto", "always", "never")
	complete(root, "log-level", "error", "warn", "info", "debug")
	root.AddGroup(&cobra.Group{ID: likeKubectl, Title: likeKubectl}, &cobra.Group{ID: other, Title: other})
	root.AddCommand(p.commands()...)
	root.SetHelpCommand(&cobra.Command{Use: "help", Hidden: true, Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, args []string) error {
		about, rest, err := root.Find(args)
		if err != nil || about == root && len(rest) > 0 {
			return unknownCommand(root, strings.Join(args, " "))
		}
		return about.Help()
	}})
	return root
}

// prepare loads the configuration before any command runs.
func (p *program) prepare(cmd *cobra.Command) error {
	p.colour("auto")
	if isCompletion(cmd) || showsVersion(cmd) {
		return nil
	}
	cfg, origins, err := p.load()
	if err != nil {
		return err
	}
	p.cfg, p.origins = cfg, origins
	p.colour(cfg.Color)
	return p.begin(cmd)
}

// colour detects the colours and width of the two streams. mode is --color.
func (p *program) colour(mode string) {
	p.out.detect(mode, p.env)
	p.err.detect(mode, p.env)
}

// isCompletion reports whether cmd must work with an invalid configuration: the completion of a
// shell, and commands that use no setting.
func isCompletion(cmd *cobra.Command) bool {
	switch cmd.Name() {
	case cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd, "completion", "help", "gen", "version":
		return true
	}
	return cmd.HasParent() && cmd.Parent().Name() == "completion"
}

// showsVersion reports whether cmd is nodectl --version.
func showsVersion(cmd *cobra.Command) bool {
	yes, err := cmd.Flags().GetBool("version")
	return err == nil && yes && !cmd.HasParent()
}

// normalizeFlag makes the kubelet's flags aliases of settings.
func normalizeFlag(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if own, ok := config.KubeletAliases()[name]; ok {
		name = own
	}
	return pflag.NormalizedName(name)
}

// begin prints the notices about the configuration before a command acts on it, and
// returns an error if serve must not start with it on this machine.
func (p *program) begin(cmd *cobra.Command) error {
	switch cmd.CommandPath() {
	case "nodectl config view":
		for _, n := range p.kubeletNotices() {
			p.say(p.err.Notice(n))
		}
	case "nodectl serve":
		p.serving = true
		log := p.logger(slog.LevelInfo)
		if n := p.kubelet.Unknown; len(n) > 0 {
			log.Warn("Ignoring unknown KubeletConfiguration fields", "fields", strings.Join(n, ", "))
		}
		if n := p.kubelet.Ignored; len(n) > 0 {
			log.Warn("Ignoring unsupported kubelet settings", "settings", strings.Join(n, ", "))
		}
		return agent.CheckStartable(p.cfg)
	}
	return nil
}
