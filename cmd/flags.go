package cmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodectl/nodectl/pkg/config"
)

// globalSettings names the settings every command takes.
func globalSettings() []string {
	return []string{"cgroup-root", "color", "config", "log-level", "node-name", "pod-logs-dir", "root-dir", "runtime-endpoint"}
}

// sourceSettings names the settings of whoever reads sources.
func sourceSettings() []string {
	return []string{"filename", "recursive", "file-check-frequency", "http-check-frequency", "manifest-url-header", "manifest-url-header-file", "validate"}
}

// agentSettings names the settings of whoever runs pods.
func agentSettings() []string { return []string{"sync-frequency", "image-dir", "pod-cidr"} }

// settingFlags defines a flag for every setting of config.Config, and --config.
func settingFlags() *pflag.FlagSet {
	d := config.Default()
	f := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	f.String("config", config.DefaultFile, "settings `FILE`")
	f.String("log-level", d.LogLevel, "`LEVEL` error, warn, info (serve) or debug")
	f.String("color", d.Color, "`WHEN` auto, always, never")
	f.String("root-dir", d.RootDir, "`DIR` of all that is kept")
	f.String("runtime-endpoint", d.RuntimeEndpoint, "container runtime `SOCKET` (found where not given)")
	f.String("pod-logs-dir", d.PodLogsDir, "`DIR` of container logs")
	f.String("cgroup-root", d.CgroupRoot, "cgroup `PATH` above all pods")
	f.String("node-name", d.NodeName, "`NAME` of this node (the host name)")

	f.StringSliceP("filename", "f", d.Filename, "`PATH` or URL of manifests, - for standard input; may be\nrepeated, the first one wins (default "+config.DefaultManifests+")")
	f.BoolP("recursive", "R", d.Recursive, "read directories below a directory too")
	f.StringArray("manifest-url-header", d.ManifestURLHeader, "`HEADER` sent with URLs, as 'Name: value'; may be repeated")
	f.String("manifest-url-header-file", d.ManifestURLHeaderFile, "`FILE` of such headers, one a line")
	f.Duration("file-check-frequency", d.FileCheckFrequency, "how often files are read again unasked")
	f.Duration("http-check-frequency", d.HTTPCheckFrequency, "how often URLs are read")
	f.String("validate", d.Validate, "`HOW` unknown fields are taken: strict, warn, ignore")

	f.Duration("sync-frequency", d.SyncFrequency, "how often every pod is looked at unasked")
	f.String("image-dir", d.ImageDir, "`DIR` of image archives imported before anything is pulled\n(default <root-dir>/images)")
	f.String("pod-cidr", d.PodCIDR, "`NETWORK` of pods on the bundled runtime")
	return f
}

// addSettings makes settings flags of a command.
func (p *program) addSettings(to *pflag.FlagSet, names []string) {
	for _, name := range names {
		to.AddFlag(p.settings.Lookup(name))
	}
}

// addSources makes the flags of all sources flags of a command.
func (p *program) addSources(cmd *cobra.Command) {
	p.addSettings(cmd.Flags(), sourceSettings())
	complete(cmd, "validate", "strict", "warn", "ignore")
}

// complete registers the values a flag has.
func complete(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// choice is a flag that takes one of a few words.
type choice struct {
	value   string
	allowed []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return "string" }

// Set implements pflag.Value.
func (c *choice) Set(s string) error {
	if !slices.Contains(c.allowed, s) {
		return fmt.Errorf("not one of %s", strings.Join(c.allowed, ", "))
	}
	c.value = s
	return nil
}

// addChoice adds a flag with a fixed set of values, the first one its default.
func addChoice(cmd *cobra.Command, name, short, usage string, allowed ...string) *choice {
	c := &choice{value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(c, name, short, usage)
	complete(cmd, name, allowed...)
	return c
}

// describe replaces the flag's help, default included.
func (c *choice) describe(cmd *cobra.Command, usage string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Value == c {
			f.Usage, f.DefValue = "`FORMAT` "+usage, ""
		}
	})
}

// addOutput adds -o.
func addOutput(cmd *cobra.Command, allowed ...string) *choice {
	return addChoice(cmd, "output", "o", "`FORMAT` "+strings.Join(allowed, "|"), allowed...)
}
