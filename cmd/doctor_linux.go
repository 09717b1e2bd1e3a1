package cmd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent"
	"github.com/nodectl/nodectl/pkg/doctor"
	"github.com/nodectl/nodectl/pkg/ui"
)

// doctorReport is the output of doctor -o json.
type doctorReport struct {
	ui.Document
	Healthy  bool             `json:"healthy"` // no finding blocks
	Checked  int              `json:"checked"`
	Findings []doctor.Finding `json:"findings"`
	// Benchmark and CIS are set with --cis.
	Benchmark string          `json:"benchmark,omitempty"`
	CIS       []doctor.Result `json:"cis,omitempty"`
}

func (p *program) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine for problems",
		Long: `Check this machine for problems that serve would have with the same flags. Each
problem has a code, a description and a remedy. A blocking problem keeps pods or
the agent from starting, and makes the exit code 1. A warning does neither.
doctor changes nothing.

docs/doctor.md lists the codes. --cis adds the checks of the CIS Kubernetes
Benchmark for worker nodes, each with its evidence.`,
		Args: noArgs,
		Example: `  nodectl doctor
  nodectl doctor --cis --kubelet-config /var/lib/kubelet/config.yaml
  nodectl doctor -o json`,
	}
	cis := cmd.Flags().Bool("cis", false, "also run the checks of the CIS benchmark")
	output := addOutput(cmd, "text", "json", "yaml")
	p.addSources(cmd)
	p.addClusterSources(cmd)
	p.addSettings(cmd.Flags(), agentSettings())
	p.addSettings(cmd.Flags(), serveSettings())
	p.addKubeletFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f := doctor.ReadFacts(cmd.Context(), p.readOnly(slog.LevelWarn).DoctorConfig(p.configFiles, p.origins["node-name"].Kind != "default"), time.Now())
		f.Runtime = p.readOnly(slog.LevelWarn).RuntimeFacts(cmd.Context())
		if f.UID == 0 { // only root can read the owner of a cgroup
			f.Cgroup.Foreign = agent.ForeignCgroup(p.cfg, f.Runtime.Systemd || !f.Runtime.Driver && !f.Runtime.Bundled && f.Systemd)
		}
		if cmd.Context().Err() != nil {
			return context.Cause(cmd.Context())
		}
		report := doctorReport{Document: ui.Document{APIVersion: ui.APIVersion, Kind: "DoctorReport"}, Checked: doctor.CheckCount(), Findings: doctor.Examine(f)}
		report.Healthy = doctor.Healthy(report.Findings)
		if *cis {
			report.Benchmark, report.CIS = doctor.Benchmark(), doctor.CIS(f)
		}
		if err := p.showReport(report, output.value); err != nil {
			return err
		}
		if !report.Healthy {
			return ended(exitFailure)
		}
		return nil
	}
	return cmd
}

func (p *program) showReport(r doctorReport, format string) error {
	if format != "text" {
		return p.document(format, r)
	}
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s  %-6s  %s\n", f.Code, f.Severity, ui.Clean(f.Message))
		for _, line := range wrap(f.Remedy, helpWidth-17) {
			fmt.Fprintf(&b, "%*s%s\n", 15, "", line)
		}
	}
	blocking := 0
	for _, f := range r.Findings {
		if f.Severity == doctor.Blocks {
			blocking++
		}
	}
	fmt.Fprintf(&b, "%d checks: %d blocking, %d warning\n", r.Checked, blocking, len(r.Findings)-blocking)
	if r.Benchmark != "" {
		b.WriteString("\n" + r.Benchmark + "\n")
		for _, c := range r.CIS {
			fmt.Fprintf(&b, "%-6s  %-4s  %s (%s)\n", c.ID, c.Status, c.Title, ui.Clean(c.Evidence))
		}
	}
	return p.out.print(b.String())
}
