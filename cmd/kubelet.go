package cmd

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodectl/nodectl/pkg/config"
)

// kubeletName is the name of the program under which nodectl takes the kubelet's command line.
const kubeletName = "kubelet"

// asKubelet returns the arguments of serve if the program was started as kubelet. kubeadm calls
// --version, so its output is the kubelet's.
func (p *program) asKubelet(name string, args []string) []string {
	if filepath.Base(name) != kubeletName {
		return args
	}
	p.named = map[string]any{
		"cert-dir":      "/var/lib/kubelet/pki", // the kubelet's, so that the node can go back to it
		"kubelet-dir":   "/var/lib/kubelet",
		"healthz-port":  "10248",
		"oom-score-adj": "-999", // the kubelet's default
	}
	if slices.Contains(args, "--version") || slices.Contains(args, "--version=true") {
		return []string{"version", "--of-kubernetes"}
	}
	return append([]string{"serve"}, args...)
}

// kubernetesVersion returns the version of Kubernetes that this binary implements. It is that of
// Kubernetes' libraries, whose v0.x.y belongs to Kubernetes v1.x.y.
func kubernetesVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if rest, ok := strings.CutPrefix(m.Version, "v0."); ok && m.Path == "k8s.io/api" {
				return "v1." + rest
			}
		}
	}
	return "v1.36.0"
}

// kubeletFlags defines the kubelet's flags that nodectl itself does not have. They are
// hidden: they are for unit files.
func kubeletFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	add := func(name, usage string) {
		short := ""
		if name == "v" {
			short = "v"
		}
		f.StringP(name, short, "", usage)
		if slices.Contains(config.KubeletSwitches(), name) {
			f.Lookup(name).NoOptDefVal = "true"
		}
		f.Lookup(name).Hidden = true
	}
	for name, field := range config.KubeletFieldFlags() {
		add(name, "as "+field+" of a KubeletConfiguration")
	}
	for name, why := range config.KubeletIdleFlags() {
		add(name, "does nothing: "+why)
	}
	add("container-runtime", "remote")
	add("cloud-provider", "external: the node waits for its cloud, which sets its addresses")
	return f
}

// addKubeletFlags adds the kubelet's flags to a command.
func (p *program) addKubeletFlags(cmd *cobra.Command) { cmd.Flags().AddFlagSet(p.kubeletFlags) }

// kubeletFields returns the fields of a KubeletConfiguration that the kubelet's flags set.
func (p *program) kubeletFields() (all []config.Given) {
	fields := config.KubeletFieldFlags()
	p.kubeletFlags.VisitAll(func(f *pflag.Flag) {
		if path, ok := fields[f.Name]; ok && f.Changed {
			all = append(all, config.Given{Path: path, Text: f.Value.String(), By: "--" + f.Name})
		}
	})
	return all
}

// applyKubeletFlags applies the kubelet's flags that set no field of a KubeletConfiguration.
func (p *program) applyKubeletFlags(cfg *config.Config) error {
	idle := config.KubeletIdleFlags()
	p.kubeletFlags.VisitAll(func(f *pflag.Flag) {
		if why, ok := idle[f.Name]; ok && f.Changed {
			p.kubelet.Ignored = append(p.kubelet.Ignored, "--"+f.Name+" ("+why+")")
		}
	})
	if f := p.kubeletFlags.Lookup("container-runtime"); f.Changed && f.Value.String() != "remote" {
		return fmt.Errorf("--container-runtime: %q is not supported; name the runtime's socket with --runtime-endpoint", f.Value.String())
	}
	switch f := p.kubeletFlags.Lookup("cloud-provider"); f.Value.String() {
	case "":
	case "external":
		const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule"
		cfg.RegisterWithTaints = append(slices.Clone(cfg.RegisterWithTaints), uninitialized)
	default:
		return errors.New("--cloud-provider: must be external")
	}
	return nil
}

// externalCloud reports whether a cloud controller sets the node's addresses.
func (p *program) externalCloud() bool {
	return p.kubeletFlags.Lookup("cloud-provider").Value.String() == "external"
}

// kubeletNotices returns the notices about a KubeletConfiguration.
func (p *program) kubeletNotices() (all []string) {
	if n := p.kubelet.Unknown; len(n) > 0 {
		all = append(all, "ignoring unknown KubeletConfiguration fields: "+strings.Join(n, ", "))
	}
	if n := p.kubelet.Ignored; len(n) > 0 {
		all = append(all, "ignoring unsupported kubelet settings: "+strings.Join(n, ", "))
	}
	return all
}
