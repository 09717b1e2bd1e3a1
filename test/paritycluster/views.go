package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/compare"
)

// views splits the answers of the node's server into values.
func (n *normaliser) views(r *Recording, views map[string][]byte) {
	for path, text := range views {
		switch {
		case bytes.HasPrefix(text, []byte("error: ")):
			r.Names[path] = []string{n.Text(string(text))}
		case path == "pods":
			n.podList(r, text)
		case path == "stats/summary":
			r.Names[path] = n.summary(text)
		case path == "configz" || path == "runningpods/":
			r.Names[path] = shape(n.flatten(json.RawMessage(text)))
		case strings.HasPrefix(path, "metrics"):
			r.Names[path] = metricNames(text)
		default:
			r.Names[path] = []string{string(text)}
		}
	}
}

// podList keeps of the node's own list the steady pods, whole.
func (n *normaliser) podList(r *Recording, text []byte) {
	var list v1.PodList
	if err := json.Unmarshal(text, &list); err != nil {
		r.Names["pods"] = []string{err.Error()}
		return
	}
	for _, p := range list.Items {
		r.Names["pods"] = append(r.Names["pods"], p.Namespace+"/"+p.Name+" "+string(p.Status.Phase))
		if slices.Contains(steadyPods, p.Name) {
			p.ManagedFields = nil
			r.Facts["/pods "+p.Name] = n.flatten(p)
		}
	}
}

// summary names the fields that are set, of the node and of the steady pods.
func (n *normaliser) summary(text []byte) []string {
	var s struct {
		Node map[string]any   `json:"node"`
		Pods []map[string]any `json:"pods"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return []string{err.Error()}
	}
	all := shape(n.flatten(map[string]any{"node": s.Node}))
	for _, p := range s.Pods {
		ref, _ := p["podRef"].(map[string]any)
		if name, _ := ref["name"].(string); slices.Contains(steadyPods, name) {
			all = append(all, shape(n.flatten(map[string]any{name: p}))...)
		}
	}
	return all
}

// shape returns the paths of facts alone.
func shape(f compare.Facts) []string {
	var all []string
	for k := range f {
		all = append(all, counted.ReplaceAllString(device.ReplaceAllString(k, "interfaces[]"), "[]"))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var label = regexp.MustCompile(`([a-zA-Z_]\w*)="`)

// metricNames returns the names of metrics with their types and the names of their
// labels.
func metricNames(text []byte) []string {
	kinds := map[string]string{}
	labels := map[string]map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if kind, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(kind, " ")
			kinds[name] = kind
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		end := strings.IndexAny(line, "{ ")
		name := line[:end]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); kinds[base] == "histogram" || kinds[base] == "summary" {
				name = base
				break
			}
		}
		if labels[name] == nil {
			labels[name] = map[string]bool{}
		}
		if line[end] == '{' {
			for _, m := range label.FindAllStringSubmatch(line[:strings.LastIndexByte(line, '}')], -1) {
				if m[1] != "le" && m[1] != "quantile" {
					labels[name][m[1]] = true
				}
			}
		}
	}
	var all []string
	for name, of := range labels {
		var names []string
		for l := range of {
			names = append(names, l)
		}
		slices.Sort(names)
		all = append(all, fmt.Sprintf("%s %s{%s}", name, kinds[name], strings.Join(names, ",")))
	}
	slices.Sort(all)
	return all
}
