package cmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/config"
)

// readFiles returns the values of nodectl's own file, and with lower priority those of a
// KubeletConfiguration with its drop-ins. The values of the kubelet's flags are included.
func (p *program) readFiles() (values map[string]any, places map[string]origin, err error) {
	path, data, kubelet, err := p.ownFile()
	if err != nil {
		return nil, nil, err
	}
	own, lines, err := p.readFile(path, data)
	if err != nil {
		return nil, nil, err
	}
	values, places = own, map[string]origin{}
	for key, where := range lines {
		places[key] = origin{"file", where}
	}
	if kubelet.Where != "" {
		other := p.earlyValue("kubelet-config", values)
		if other != "" {
			return nil, nil, fmt.Errorf("%s and %s both name a KubeletConfiguration: give one", kubelet.Where, p.place("kubelet-config", places))
		}
		values["kubelet-config"], places["kubelet-config"] = p.kubeletFile, kubelet
	}
	if p.kubelet, err = p.readKubelet(values); err != nil {
		return nil, nil, err
	}
	for key, value := range p.kubelet.Values {
		where := p.kubelet.Places[key]
		_, set := values[key]
		switch {
		case strings.HasPrefix(where, "--"):
			if f := p.settings.Lookup(key); !f.Changed {
				values[key], places[key] = value, origin{"flag", where}
			}
		case !set:
			values[key], places[key] = value, origin{"kubelet", where}
		}
	}
	for key, value := range p.named {
		if _, set := values[key]; !set {
			values[key], places[key] = value, origin{"default", "when called as kubelet"}
		}
	}
	return values, places, nil
}

// ownFile returns nodectl's own configuration file. If the user named a KubeletConfiguration,
// it sets kubeletFile, returns in kubelet where the user named it, and returns the default
// file. A file that the user named must exist; the default file need not.
func (p *program) ownFile() (path string, data []byte, kubelet origin, err error) {
	type place struct {
		path string
		by   origin
	}
	var all []place
	if f := p.settings.Lookup("config"); f.Changed {
		all = append(all, place{f.Value.String(), origin{"flag", "--config"}})
	}
	if name, value := p.variable("config"); value != "" {
		all = append(all, place{value, origin{"env", name}})
	}
	all = append(all, place{config.DefaultFile, origin{}})
	for _, c := range all {
		data, err = os.ReadFile(c.path)
		if err == nil {
			p.configFiles = append(p.configFiles, c.path)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) && c.by.Kind == "":
			return c.path, nil, kubelet, nil
		case err != nil:
			return "", nil, kubelet, fmt.Errorf("read configuration: %w", err)
		case !config.IsKubelet(data):
			return c.path, data, kubelet, nil
		case kubelet.Where != "" || c.by.Kind == "":
			return "", nil, kubelet, fmt.Errorf("%s: is a KubeletConfiguration, not nodectl's own configuration: name it with --kubelet-config", c.path)
		}
		kubelet, p.kubeletFile = c.by, c.path
	}
	return "", nil, kubelet, nil
}

// earlyValue returns the value of a setting before all files are read: from a flag, a
// variable or nodectl's own file.
func (p *program) earlyValue(key string, values map[string]any) string {
	if f := p.settings.Lookup(key); f.Changed {
		return f.Value.String()
	}
	if _, value := p.variable(key); value != "" {
		return value
	}
	value, _ := values[key].(string)
	return value
}

// place returns where a setting was given.
func (p *program) place(key string, places map[string]origin) string {
	if p.settings.Lookup(key).Changed {
		return "--" + key
	}
	if name, value := p.variable(key); value != "" {
		return name
	}
	return places[key].Where
}

// readKubelet reads the KubeletConfiguration, its drop-ins and the kubelet's flags.
func (p *program) readKubelet(values map[string]any) (config.Layer, error) {
	var docs []config.Document
	names, err := dropIns(p.earlyValue("config-dir", values))
	if err != nil {
		return config.Layer{}, fmt.Errorf("read drop-ins: %w", err)
	}
	if file := p.earlyValue("kubelet-config", values); file != "" {
		names = append([]string{file}, names...)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return config.Layer{}, fmt.Errorf("read KubeletConfiguration: %w", err)
		}
		if docs = append(docs, config.Document{File: name, Data: data}); !slices.Contains(p.configFiles, name) {
			p.configFiles = append(p.configFiles, name)
		}
	}
	return config.ReadKubelet(docs, p.kubeletFields())
}

// dropIns returns the files of a directory of drop-ins in the order in which they are merged:
// by the bytes of their names (C-1.44.1).
func dropIns(dir string) (names []string, err error) {
	if dir == "" {
		return nil, nil
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".conf" {
			names = append(names, path)
		}
		return err
	})
	return names, err
}
