package cmd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/suggest"
)

// origin is where a setting's value came from.
type origin struct {
	Kind string `json:"origin"` // flag, env, file, kubelet, default
	// Where is the flag, the variable, or file and line; "" for a default.
	Where string `json:"where"`
}

// load reads the configuration: flags, then NODECTL_* variables, then nodectl's
// own file, then a KubeletConfiguration, then defaults. Every error names the place
// of the wrong value.
func (p *program) load() (config.Config, map[string]origin, error) {
	var cfg config.Config
	values, places, err := p.readFiles()
	if err != nil {
		return cfg, nil, failed(exitUsage, err)
	}
	v := viper.NewWithOptions(viper.KeyDelimiter("::"))
	origins := map[string]origin{}
	p.settings.VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" {
			return
		}
		origins[f.Name] = origin{Kind: "default"}
		o, fromFile := places[f.Name]
		if fromFile {
			origins[f.Name] = o
		}
		if name, value := p.variable(f.Name); value != "" && o.Kind != "flag" {
			if err == nil {
				err = checkValue(f, value, name)
			}
			origins[f.Name] = origin{"env", name}
			values[f.Name] = fromVariable(f, value) // overrides the file; a flag overrides it
		}
		if f.Changed {
			origins[f.Name] = origin{"flag", "--" + f.Name}
		}
		err = errors.Join(err, v.BindPFlag(f.Name, f))
	})
	if err != nil {
		return cfg, nil, failed(exitUsage, err)
	}
	if err := v.MergeConfigMap(values); err != nil {
		return cfg, nil, err
	}
	if err := v.UnmarshalExact(&cfg); err != nil {
		return cfg, nil, failed(exitUsage, err)
	}
	if cfg.NodeName == "" {
		if name, err := os.Hostname(); err == nil {
			cfg.NodeName = strings.ToLower(name)
			origins["node-name"] = origin{"default", "host name"}
		}
	}
	cfg.NodeName = strings.ToLower(strings.TrimSpace(cfg.NodeName))
	for _, endpoint := range []*string{&cfg.RuntimeEndpoint, &cfg.ImageServiceEndpoint} {
		if strings.HasPrefix(*endpoint, "/") {
			*endpoint = "unix://" + *endpoint
		}
	}
	if err := p.applyKubeletFlags(&cfg); err != nil {
		return cfg, nil, failed(exitUsage, err)
	}
	if err := cfg.Check(); err != nil {
		return cfg, nil, failed(exitUsage, placed(err, origins))
	}
	return cfg, origins, nil
}

// placed returns err with the place of the wrong setting before it.
func placed(err error, origins map[string]origin) error {
	var e *config.Error
	if !errors.As(err, &e) {
		return err
	}
	switch o := origins[e.Key]; o.Kind {
	case "file", "kubelet":
		return fmt.Errorf("%s: %w", o.Where, err)
	case "env":
		return fmt.Errorf("%s: %s", o.Where, e.Msg)
	}
	return fmt.Errorf("--%w", err)
}

// variable returns the environment variable that sets a flag, and its value.
func (p *program) variable(flag string) (name, value string) {
	name = "NODECTL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	if value = p.env(name); value == "" && flag == "runtime-endpoint" {
		const known = "CONTAINER_RUNTIME_ENDPOINT" // crictl's and the kubelet's name
		if value = p.env(known); value != "" {
			return known, value
		}
	}
	return name, value
}

// fromVariable returns the value of a variable in the form of a value of the file. Headers
// may contain commas, so a variable has exactly one header.
func fromVariable(f *pflag.Flag, value string) any {
	if f.Value.Type() == "stringArray" {
		return []string{value}
	}
	return value
}

// checkValue returns an error if the flag does not accept the value. It does not change the flag.
func checkValue(f *pflag.Flag, value, where string) error {
	scratch := settingFlags()
	if err := scratch.Set(f.Name, value); err != nil {
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			return fmt.Errorf("%s: %s", where, invalidValue(invalid))
		}
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

// readFile reads nodectl's own configuration file. It returns an error for an unknown key, a
// key that occurs twice, and a value that its flag does not accept. places holds file:line by key.
func (p *program) readFile(path string, data []byte) (values map[string]any, places map[string]string, err error) {
	values, places = map[string]any{}, map[string]string{}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return values, places, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, nil, fmt.Errorf("%s:%d: the configuration must be a map of keys and values", path, top.Line)
	}
	for i := 0; i < len(top.Content); i += 2 {
		key, node := top.Content[i], top.Content[i+1]
		where := fmt.Sprintf("%s:%d", path, key.Line)
		f := p.settings.Lookup(key.Value)
		switch {
		case f == nil || f.Name == "config":
			text := fmt.Sprintf("%s: unknown key %q", where, key.Value)
			if like := suggest.Similar(key.Value, p.settingNames()); like != "" {
				text += fmt.Sprintf(" (did you mean %q?)", like)
			}
			return nil, nil, errors.New(text)
		case places[f.Name] != "":
			return nil, nil, fmt.Errorf("%s: duplicate key %q, first in %s", where, key.Value, places[f.Name])
		}
		if values[f.Name], err = fileValue(f, node, path); err != nil {
			return nil, nil, err
		}
		places[f.Name] = where
	}
	return values, places, nil
}

// fileValue returns the value of a key in the file, with the checks of its flag.
func fileValue(f *pflag.Flag, node *yaml.Node, path string) (any, error) {
	where := fmt.Sprintf("%s:%d", path, node.Line)
	list := strings.HasPrefix(f.Value.Type(), "string") && f.Value.Type() != "string"
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag != "!!null":
		if err := checkValue(f, node.Value, where); err != nil {
			return nil, err
		}
		if list {
			return []string{node.Value}, nil
		}
		return node.Value, nil
	case node.Kind == yaml.SequenceNode && list:
		all := []string{}
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return nil, fmt.Errorf("%s:%d: an item of %s is not a string", path, item.Line, f.Name)
			}
			all = append(all, item.Value)
		}
		return all, nil
	case list:
		return nil, fmt.Errorf("%s: %s must be a list of strings", where, f.Name)
	}
	return nil, fmt.Errorf("%s: %s must be one value", where, f.Name)
}

// settingNames returns every key that a configuration file may contain, sorted.
func (p *program) settingNames() []string {
	names := map[string]bool{}
	p.settings.VisitAll(func(f *pflag.Flag) { names[f.Name] = true })
	delete(names, "config")
	return slices.Sorted(maps.Keys(names))
}
