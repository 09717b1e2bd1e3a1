package cmd

import (
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
)

// commands returns every command of nodectl.
func (p *program) commands() []*cobra.Command {
	return slices.Concat(
		[]*cobra.Command{
			p.mergeCommand(),
			p.watchCommand(),
			p.serveCommand(),
			p.runonceCommand(),
			p.getCommand(),
			p.doctorCommand(),
			p.genCommand(),
		},
		grouped(likeKubectl,
			p.describeCommand(),
			p.logsCommand(),
			p.execCommand(),
			p.attachCommand(),
			p.portForwardCommand(),
			p.copyCommand(),
			p.topCommand(),
			p.eventsCommand(),
			p.waitCommand(),
			p.rolloutCommand(),
			p.scaleCommand(),
			p.createCommand(),
			p.deleteCommand(),
			p.drainCommand(),
			p.restartCommand(),
		),
		grouped(other,
			p.whyCommand(),
			p.imageCommand(),
			p.pullCommand(),
			p.rmiCommand(),
			p.reclaimCommand(),
			p.runtimeCommand(),
			p.configCommand(),
			p.completionCommand(),
			p.versionCommand(),
		),
	)
}

// grouped puts commands into a group of the root's help.
func grouped(id string, all ...*cobra.Command) []*cobra.Command {
	for _, c := range all {
		c.GroupID = id
	}
	return all
}

// optionalRuntimeTimeout is how long a command waits for an optional answer of the runtime.
var optionalRuntimeTimeout = 2 * time.Second

// readOnly returns the configuration for reading sources and the runtime. It changes nothing on
// this node. own is the command's log level without --log-level.
func (p *program) readOnly(own slog.Level) readonly.Config {
	return readonly.Config{
		Config: p.cfg, PolicyGiven: p.origins["source-policy"].Kind == "flag", Stdin: p.in, Owners: trustedOwners(p.env),
		UserAgent: "nodectl/" + readVersion().Version, Notice: func(text string) { p.say(p.err.Notice(text)) },
		RuntimeTimeout: optionalRuntimeTimeout, Log: p.logger(own), RuntimeLog: p.logger(slog.LevelWarn),
	}
}

// trustedOwners returns the users that may own manifests beside root: the caller, and the
// user that called sudo.
func trustedOwners(env func(string) string) []int {
	owners := []int{os.Getuid()}
	if uid, err := strconv.Atoi(env("SUDO_UID")); err == nil && os.Getuid() == 0 {
		owners = append(owners, uid)
	}
	return owners
}
