package cmd

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// commands are all of nodectl's.
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
			p.deleteCommand(),
		),
		grouped(beside,
			p.restartCommand(),
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

// keptSpecs returns the agent's recorded pods, with origins as this command line names its
// layers.
func (p *program) keptSpecs(kept []pod.Record) []*pod.Spec {
	var specs []*pod.Spec
	for _, r := range kept {
		if r.Want != nil {
			spec := *r.Want
			spec.Origin = p.here(spec.Origin)
			specs = append(specs, &spec)
		}
	}
	return specs
}

// requireSourceReady names the kinds of source whose pods do not start before their source
// is ready.
func (p *program) requireSourceReady() map[string]bool {
	return map[string]bool{pod.SourceAPI: p.cfg.OfflineStart != pod.SourceAPI}
}

// restored returns the agent's last good set of each layer, keyed as this command line
// names its layers.
func (p *program) restored(sets map[string]podconfig.Restored) map[string]podconfig.Restored {
	all := make(map[string]podconfig.Restored, len(sets))
	for name, set := range sets {
		source, location, _ := strings.Cut(name, ":")
		layer := p.here(pod.Origin{Source: source, Location: location})
		here := podconfig.Restored{At: set.At}
		for _, f := range set.Files {
			f.File = p.here(pod.Origin{Source: source, Location: location, File: f.File}).File
			f.Pods, f.Objects = slices.Clone(f.Pods), slices.Clone(f.Objects)
			for i, spec := range f.Pods {
				moved := *spec
				moved.Origin = p.here(spec.Origin)
				f.Pods[i] = &moved
			}
			for i, o := range f.Objects {
				moved := *o
				moved.Origin = p.here(o.Origin)
				f.Objects[i] = &moved
			}
			here.Files = append(here.Files, f)
		}
		slices.SortFunc(here.Files, func(a, b pod.Standing) int { return strings.Compare(a.File, b.File) })
		all[layer.Layer()] = here
	}
	return all
}
