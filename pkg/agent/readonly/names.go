package readonly

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// WrittenPaths has the absolute path of each source, and the path that the user wrote.
type WrittenPaths [][2]string

// Absolute returns the configuration with absolute paths of sources: records name the source
// of each pod, which must not depend on the working directory.
func Absolute(c config.Config) (config.Config, WrittenPaths) {
	var given WrittenPaths
	c.Filename = slices.Clone(c.Filename)
	for i, name := range c.Filename {
		if name != "-" && !config.IsURL(name) {
			c.Filename[i] = given.absolute(name)
		}
	}
	if c.Kubeconfig != "" {
		c.Kubeconfig = given.absolute(c.Kubeconfig)
	}
	return c, given
}

func (g *WrittenPaths) absolute(name string) string {
	abs, err := filepath.Abs(name)
	if err != nil {
		return name
	}
	*g = append(*g, [2]string{abs, name})
	return abs
}

// AsWritten returns the path that the user wrote, for messages: it reverts Absolute.
func (g WrittenPaths) AsWritten(path string) string {
	for _, g := range g {
		if rest, ok := strings.CutPrefix(path, g[0]+"#"); ok { // a pod of an API server
			return g[1] + "#" + rest
		}
		if rel, err := filepath.Rel(g[0], path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(g[1], rel)
		}
	}
	return path
}

// here replaces the absolute paths in an origin, which serve and runonce have recorded, by the paths
// on this command line.
func (c Config) here(o pod.Origin) pod.Origin {
	names := c.SourceNames()
	switch o.Source {
	case "file":
	case pod.SourceAPI:
		names = []string{c.Kubeconfig}
	default:
		return o
	}
	for _, name := range names {
		abs, err := filepath.Abs(name)
		if err != nil || o.Location != abs {
			continue
		}
		o.Location = name
		if rest, ok := strings.CutPrefix(o.File, abs+"#"); ok {
			o.File = name + "#" + rest
		} else if rel, err := filepath.Rel(abs, o.File); err == nil && o.File != "" {
			o.File = filepath.Join(name, rel)
		}
		return o
	}
	return o
}

// Specs returns the recorded specs of an agent, with the names of layers on this command line.
func (c Config) Specs(kept []pod.Record) []*pod.Spec {
	var specs []*pod.Spec
	for _, r := range kept {
		if r.Want != nil {
			spec := *r.Want
			spec.Origin = c.here(spec.Origin)
			specs = append(specs, &spec)
		}
	}
	return specs
}

// restored returns the agent's last good set of each layer, by the layer's name on this command
// line.
func (c Config) restored(sets map[string]podconfig.Restored) map[string]podconfig.Restored {
	all := make(map[string]podconfig.Restored, len(sets))
	for name, set := range sets {
		source, location, _ := strings.Cut(name, ":")
		layer := c.here(pod.Origin{Source: source, Location: location})
		here := podconfig.Restored{At: set.At}
		for _, f := range set.Files {
			f.File = c.here(pod.Origin{Source: source, Location: location, File: f.File}).File
			f.Pods, f.Objects = slices.Clone(f.Pods), slices.Clone(f.Objects)
			for i, spec := range f.Pods {
				moved := *spec
				moved.Origin = c.here(spec.Origin)
				f.Pods[i] = &moved
			}
			for i, o := range f.Objects {
				moved := *o
				moved.Origin = c.here(o.Origin)
				f.Objects[i] = &moved
			}
			here.Files = append(here.Files, f)
		}
		slices.SortFunc(here.Files, func(a, b pod.LastGoodSet) int { return strings.Compare(a.File, b.File) })
		all[layer.Layer()] = here
	}
	return all
}
