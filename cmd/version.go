package cmd

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/ui"
)

// version is the version of a build.
type version struct {
	ui.Document
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"` // of the commit, RFC 3339
	Dirty   bool   `json:"dirty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// readVersion reads the build information of the binary.
func readVersion() version {
	v := version{Document: ui.Document{APIVersion: ui.APIVersion, Kind: "Version"}, Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if main := info.Main.Version; main != "" && main != "(devel)" {
		v.Version = main
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.Date = s.Value
		case "vcs.modified":
			v.Dirty = s.Value == "true"
		}
	}
	return v
}

func (v version) String() string {
	parts := []string{"nodectl " + v.Version}
	if v.Commit != "" {
		parts = append(parts, v.Commit[:min(len(v.Commit), 12)])
	}
	if v.Date != "" {
		parts = append(parts, v.Date)
	}
	return strings.Join(append(parts, fmt.Sprintf("%s %s/%s", v.Go, v.OS, v.Arch)), "  ") + "\n"
}

func (p *program) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Args:    noArgs,
		Example: "  nodectl version -o json",
	}
	output := addOutput(cmd, "text", "json", "yaml")
	kubernetes := cmd.Flags().Bool("of-kubernetes", false, "as 'kubelet --version' prints it")
	cmd.Flags().Lookup("of-kubernetes").Hidden = true
	cmd.RunE = func(*cobra.Command, []string) error {
		if *kubernetes {
			return p.out.print("Kubernetes " + kubernetesVersion() + "\n")
		}
		v := readVersion()
		if output.value == "text" {
			return p.out.print(v.String())
		}
		return p.document(output.value, v)
	}
	return cmd
}

// document prints v as JSON or YAML.
func (p *program) document(format string, v any) error {
	encode := ui.JSON
	if format == "yaml" {
		encode = ui.YAML
	}
	text, err := encode(v)
	if err != nil {
		return err
	}
	return p.out.print(text)
}
