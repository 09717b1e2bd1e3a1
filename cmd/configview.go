package cmd

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/podspec"
	sourcehttp "github.com/nodectl/nodectl/pkg/source/http"
	"github.com/nodectl/nodectl/pkg/ui"
)

// configView is the output of config view -o json.
type configView struct {
	ui.Document
	Settings []setting `json:"settings"`
}

// setting is a setting with its value and its origin.
type setting struct {
	Key   string `json:"key"`
	Value any    `json:"value"`
	origin
}

func (p *program) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the configuration",
		Args:  cobra.ArbitraryArgs,
		RunE:  needsSubcommand,
	}
	view := &cobra.Command{
		Use:   "view",
		Short: "Print every setting, as a configuration file",
		Long: `Print every setting in the format of a configuration file. A flag overrides a
NODECTL_* variable, which overrides nodectl's own file, which overrides a
KubeletConfiguration, which overrides the default.`,
		Args: noArgs,
		Example: `  nodectl config view
  nodectl config view --show-origin
  NODECTL_NODE_NAME=n1 nodectl config view -o json`,
	}
	p.addSources(view)
	p.addClusterSources(view)
	p.addSettings(view.Flags(), agentSettings())
	p.addSettings(view.Flags(), serveSettings())
	p.addKubeletFlags(view)
	show := view.Flags().Bool("show-origin", false, "show where each value comes from")
	output := addOutput(view, "yaml", "json", "text")
	view.RunE = func(*cobra.Command, []string) error {
		settings := p.view()
		if output.value == "json" {
			return p.document("json", configView{ui.Document{APIVersion: ui.APIVersion, Kind: "Config"}, settings})
		}
		text, err := settingsYAML(settings, *show)
		if err != nil {
			return err
		}
		return p.out.print(text)
	}
	cmd.AddCommand(view)
	return cmd
}

// needsSubcommand is the error of a command that only groups others.
func needsSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return unknownCommand(cmd, args[0])
}

// view returns every setting in the order of the fields of config.Config.
func (p *program) view() []setting {
	cfg := p.cfg
	if len(cfg.Filename) == 0 {
		cfg.Filename = []string{config.DefaultManifests}
	}
	cfg.ImageDir = cfg.Images()
	cfg.ManifestURLHeader = redactHeaders(cfg.ManifestURLHeader)
	cfg.Filename = slices.Clone(cfg.Filename)
	for i, name := range cfg.Filename {
		if config.IsURL(name) {
			cfg.Filename[i] = withoutSecrets(name)
		}
	}
	v := reflect.ValueOf(cfg)
	var all []setting
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("mapstructure")
		value := v.Field(i).Interface()
		switch x := value.(type) {
		case time.Duration:
			value = x.String()
		case []string:
			value = append([]string{}, x...)
		}
		all = append(all, setting{key, value, p.origins[key]})
	}
	return all
}

// withoutSecrets returns a URL in the form that all messages use: without secrets.
func withoutSecrets(url string) string {
	s, err := sourcehttp.New(sourcehttp.Config{URL: url})
	if err != nil {
		return "(invalid URL: " + err.Error() + ")"
	}
	return strings.TrimPrefix(s.Name(), "http:")
}

// redactHeaders keeps the names of headers and hides their values, which are often credentials.
func redactHeaders(headers []string) []string {
	var all []string
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		all = append(all, name+": "+podspec.Redacted(len(strings.TrimSpace(value))))
	}
	return all
}

// settingsYAML returns settings as a configuration file, with their origins as comments.
func settingsYAML(settings []setting, origins bool) (string, error) {
	var b strings.Builder
	var rows [][2]string
	width := 0
	for _, s := range settings {
		text, err := yaml.Marshal(map[string]any{s.Key: s.Value})
		if err != nil {
			return "", err
		}
		row := [2]string{strings.TrimSuffix(string(text), "\n"), s.String()}
		width = max(width, len(firstLine(row[0])))
		rows = append(rows, row)
	}
	for _, row := range rows {
		first := firstLine(row[0])
		b.WriteString(first)
		if origins {
			fmt.Fprintf(&b, "%*s  # %s", width-len(first), "", ui.Clean(row[1]))
		}
		b.WriteString(row[0][len(first):] + "\n")
	}
	return b.String(), nil
}

func firstLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

// String returns the place of a value: "file /etc/nodectl/config.yaml:3".
func (o origin) String() string { return strings.TrimSpace(o.Kind + " " + o.Where) }
