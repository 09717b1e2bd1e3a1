package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// fieldKind is the type of a field of a KubeletConfiguration.
type fieldKind int

const (
	ofString       fieldKind = iota
	ofPath                   // a text; relative to its file
	ofBool                   // true or false
	ofNumber                 // a whole number
	ofFraction               // any number
	ofDuration               // a duration, as 5m
	ofStrings                // a list of texts
	ofNumbers                // a list of whole numbers
	ofStringMap              // texts by name
	ofBoolMap                // booleans by name
	ofListMap                // lists of texts by name
	ofTaints                 // taints as objects
	ofPriorities             // seconds by priority, as objects
	ofReservations           // memory by NUMA node, as objects
	ofModules                // verbosities by pattern of source files, as objects
	ofAny                    // any value; only its presence counts
)

// zeros returns the values that mean "not set" for a type that cannot distinguish them. They do not
// include false: an explicit false counts as set.
func (k fieldKind) zeros() []string {
	switch k {
	case ofNumber, ofFraction:
		return []string{"0"}
	case ofDuration:
		return []string{"0s"}
	case ofStrings, ofNumbers, ofTaints, ofPriorities, ofReservations, ofModules:
		return nil
	}
	return []string{""}
}

// read returns the value of n: texts, or pairs of a map.
func (k fieldKind) read(n *yaml.Node) ([]string, map[string][]string, error) {
	switch k {
	case ofStrings, ofNumbers, ofTaints, ofPriorities, ofReservations, ofModules:
		if n.Kind != yaml.SequenceNode {
			return nil, nil, errors.New("takes a list")
		}
		all := []string{}
		for i, item := range n.Content {
			v, err := k.item(resolved(item))
			if err != nil {
				return nil, nil, fmt.Errorf("item %d %w", i+1, err)
			}
			all = append(all, v)
		}
		return all, nil, nil
	case ofStringMap, ofBoolMap, ofListMap:
		all, err := k.pairs(n)
		return nil, all, err
	case ofAny:
		return anyText(n), nil, nil
	}
	v, err := k.scalar(n)
	return []string{v}, nil, err
}

// anyText returns nothing for a value that consists of zeros.
func anyText(n *yaml.Node) []string {
	switch n.Kind {
	case yaml.ScalarNode:
		if slices.Contains([]string{"", "0", "0s", "false", "null", "~"}, n.Value) {
			return nil
		}
		return []string{n.Value}
	case yaml.MappingNode:
		var all []string
		for i := 1; i < len(n.Content); i += 2 {
			all = append(all, anyText(resolved(n.Content[i]))...)
		}
		return all
	case yaml.SequenceNode:
		if len(n.Content) > 0 {
			return []string{"a list"}
		}
	}
	return nil
}

func (k fieldKind) item(n *yaml.Node) (string, error) {
	switch k {
	case ofNumbers:
		return ofNumber.scalar(n)
	case ofTaints:
		var t struct{ Key, Value, Effect string }
		if err := n.Decode(&t); err != nil || n.Kind != yaml.MappingNode {
			return "", errors.New("is not a taint with key, value and effect")
		}
		return t.Key + "=" + t.Value + ":" + t.Effect, nil
	case ofPriorities:
		var p struct {
			Priority int32
			Seconds  int64 `yaml:"shutdownGracePeriodSeconds"`
		}
		if err := n.Decode(&p); err != nil || n.Kind != yaml.MappingNode {
			return "", errors.New("is not a priority with shutdownGracePeriodSeconds")
		}
		return fmt.Sprintf("%d=%ds", p.Priority, p.Seconds), nil
	case ofReservations:
		var r struct {
			Node   int32 `yaml:"numaNode"`
			Limits map[string]string
		}
		if err := n.Decode(&r); err != nil || n.Kind != yaml.MappingNode {
			return "", errors.New("is not a reservation with numaNode and limits")
		}
		return memoryText(r.Node, r.Limits)
	case ofModules:
		var m struct {
			FilePattern string `yaml:"filePattern"`
			Verbosity   uint32
		}
		if err := n.Decode(&m); err != nil || n.Kind != yaml.MappingNode || m.FilePattern == "" || strings.ContainsAny(m.FilePattern, ",=") {
			return "", errors.New("is not a filePattern with verbosity")
		}
		return fmt.Sprintf("%s=%d", m.FilePattern, m.Verbosity), nil
	}
	return ofString.scalar(n)
}

func (k fieldKind) pairs(n *yaml.Node) (map[string][]string, error) {
	if n.Kind != yaml.MappingNode {
		return nil, errors.New("takes names with values")
	}
	all := map[string][]string{}
	of := map[fieldKind]fieldKind{ofStringMap: ofString, ofBoolMap: ofBool, ofListMap: ofStrings}[k]
	for i := 0; i < len(n.Content); i += 2 {
		name, value := n.Content[i].Value, resolved(n.Content[i+1])
		if value.Kind == yaml.ScalarNode && value.Tag == "!!null" {
			all[name] = nil
			continue
		}
		v, _, err := of.read(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = v
	}
	return all, nil
}

// scalar returns the text of a scalar. Its error never has the value, which may be a secret.
func (k fieldKind) scalar(n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode {
		return "", errors.New("takes one value")
	}
	switch k {
	case ofBool:
		var b bool
		if err := n.Decode(&b); err != nil || n.Tag == "!!str" && n.Style != 0 {
			return "", errors.New("is neither true nor false")
		}
		return strconv.FormatBool(b), nil
	case ofNumber:
		var i int64
		if err := n.Decode(&i); err != nil || n.Tag != "!!int" {
			return "", errors.New("is not a whole number")
		}
		return strconv.FormatInt(i, 10), nil
	case ofFraction:
		var f float64
		if err := n.Decode(&f); err != nil || n.Tag == "!!str" {
			return "", errors.New("is not a number")
		}
		return strconv.FormatFloat(f, 'g', -1, 64), nil
	case ofDuration:
		d, err := time.ParseDuration(n.Value)
		if err != nil || n.Tag != "!!str" && n.Value != "0" {
			return "", errors.New("is not a duration, such as 20s or 5m")
		}
		return d.String(), nil
	}
	if n.Tag != "!!str" && n.Tag != "!!timestamp" {
		return "", errors.New("is not a string: put it in quotes")
	}
	return n.Value, nil
}

// value returns the value of a field's setting; nil leaves the setting unchanged.
func (row kubeletRow) value(l leaf, all map[string]leaf) any {
	if row.as != nil {
		return row.as(l, all)
	}
	switch row.kind {
	case ofPath:
		if p := l.text(); p != "" && !filepath.IsAbs(p) {
			return filepath.Join(filepath.Dir(l.file), p)
		}
		return l.text()
	case ofStrings, ofNumbers, ofTaints, ofPriorities, ofReservations, ofModules:
		return slices.Clone(l.texts)
	case ofStringMap:
		return joined(l.pairs, "=")
	case ofListMap:
		return joined(l.pairs, ": ")
	}
	return l.text()
}

// joined returns the pairs of a map as texts, sorted.
func joined(pairs map[string][]string, between string) []string {
	all := []string{}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		for _, v := range pairs[name] {
			all = append(all, name+between+v)
		}
	}
	return all
}

// manifests joins staticPodPath and staticPodURL, which may be used together
// (C-1.44.4); the directory wins.
func manifests(_ leaf, all map[string]leaf) any {
	var list []string
	if dir, ok := all["staticPodPath"]; ok {
		list = append(list, kubeletRow{kind: ofPath}.value(dir, nil).(string))
	}
	if url, ok := all["staticPodURL"]; ok {
		list = append(list, url.text())
	}
	return list
}

// serverPort returns no port if the server is disabled.
func serverPort(_ leaf, all map[string]leaf) any {
	if on, ok := all["enableServer"]; ok && on.text() == "false" {
		return "0"
	}
	if port, ok := all["port"]; ok {
		return port.text()
	}
	return nil
}

// parallelPulls returns 1 if pulls are serialized.
func parallelPulls(_ leaf, all map[string]leaf) any {
	limit, limited := all["maxParallelImagePulls"]
	serial, set := all["serializeImagePulls"]
	switch {
	case set && serial.text() == "true":
		return "1"
	case limited:
		return limit.text()
	}
	return strconv.Itoa(maxPulls)
}

// hardThresholds returns the thresholds of evictionHard. A signal that is missing there has no
// threshold, unless the defaults are merged in.
func hardThresholds(l leaf, all map[string]leaf) any {
	list := joined(l.pairs, "<")
	merge := all["mergeDefaultEvictionSettings"]
	if merge.text() == "true" {
		for _, d := range Default().EvictionHard {
			signal, _, _ := strings.Cut(d, "<")
			if _, ok := l.pairs[signal]; !ok {
				list = append(list, d)
			}
		}
	}
	return list
}

// softThresholds returns the thresholds of evictionSoft.
func softThresholds(l leaf, _ map[string]leaf) any { return joined(l.pairs, "<") }

// level returns the log level debug for a high verbosity of the kubelet.
func level(l leaf, _ map[string]leaf) any {
	if n, err := strconv.Atoi(l.text()); err == nil && n >= debugVerbosity {
		return "debug"
	}
	return nil
}

// splitIn returns the conversion of logging.options.<format>.splitStream: only the options of the
// format in use have an effect, which is text unless the fields name another one.
func splitIn(format string) func(leaf, map[string]leaf) any {
	return func(l leaf, all map[string]leaf) any {
		used := "text"
		if f, set := all["logging.format"]; set && f.text() != "" {
			used = f.text()
		}
		if used != format {
			return nil
		}
		return l.text()
	}
}

// asText returns the text of a number, for a setting that may be empty.
func asText(l leaf, _ map[string]leaf) any { return l.text() }

func seconds(l leaf, _ map[string]leaf) any { return l.text() + "s" }

// node returns the text of a flag as a YAML node.
func (k fieldKind) node(text string) *yaml.Node {
	scalar := func(kind fieldKind, v string) *yaml.Node {
		tag := map[fieldKind]string{ofBool: "!!bool", ofNumber: "!!int", ofFraction: "!!float"}[kind]
		return &yaml.Node{Kind: yaml.ScalarNode, Value: v, Tag: cmp.Or(tag, "!!str")}
	}
	item := map[fieldKind]fieldKind{ofNumbers: ofNumber, ofBoolMap: ofBool}[k]
	switch k {
	case ofStrings, ofNumbers:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, v := range items([]string{text}) {
			n.Content = append(n.Content, scalar(item, v))
		}
		return n
	case ofStringMap, ofBoolMap:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, pair := range items([]string{text}) {
			name, v, _ := strings.Cut(pair, "=")
			n.Content = append(n.Content, scalar(ofString, name), scalar(item, v))
		}
		return n
	}
	return scalar(k, text)
}
