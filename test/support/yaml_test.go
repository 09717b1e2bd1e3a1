//go:build linux

package support

import (
	"fmt"
	"maps"
	"strings"

	"sigs.k8s.io/yaml"
)

// others are other values that the API takes where it takes these.
var others = map[string]string{
	"In": "NotIn", "NotIn": "In", "Exists": "Equal", "NoExecute": "NoSchedule", "windows": "linux",
	"Restart": "RestartAllContainers", "RestartContainer": "NotRequired", "memory": "cpu",
	"metadata.namespace": "metadata.name", "limits.memory": "limits.ephemeral-storage",
	"192.0.2.1": "192.0.2.3", "192.0.2.5": "192.0.2.6", "192.0.2.9": "192.0.2.8",
	"Unconfined": "RuntimeDefault", "SIGUSR1": "SIGUSR2",
}

// other returns another value of the same type; nil for a map or a list.
func other(v any) any {
	switch v := v.(type) {
	case string:
		if strings.HasPrefix(v, "$") && v != "$DIR" && !strings.Contains(v, "/") {
			return 1.0 // a port where no server listens
		}
		if o, ok := others[v]; ok {
			return o
		}
		return v + "x"
	case float64:
		return v + 1
	case bool:
		return !v
	case []any:
		out := make([]any, len(v))
		for i := range v {
			if out[i] = other(v[i]); out[i] == nil {
				return nil
			}
		}
		return out
	}
	return nil
}

// edited returns the manifest with every value at path changed by f; without it, for a
// nil f. found says whether anything was.
func edited(doc map[string]any, path string, f func(any) any) (out map[string]any, found bool) {
	out = merged(doc, nil)
	var walk func(v any, steps []string)
	walk = func(v any, steps []string) {
		m, ok := v.(map[string]any)
		if !ok {
			return
		}
		name, list := strings.CutSuffix(steps[0], "[]")
		at, there := m[name]
		switch {
		case !there:
		case len(steps) == 1 && f == nil:
			delete(m, name)
			found = true
		case len(steps) == 1:
			if now := f(at); now != nil {
				m[name] = now
				found = true
			}
		case list:
			items, _ := at.([]any)
			for _, item := range items {
				walk(item, steps[1:])
			}
		default:
			walk(at, steps[1:])
		}
	}
	walk(out, strings.Split(path, "."))
	return out, found
}

// merged is a deep copy of a with b over it; lists are merged item by item.
func merged(a, b map[string]any) map[string]any {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range out {
		out[k] = over(v, nil)
	}
	for k, v := range b {
		out[k] = over(out[k], v)
	}
	return out
}

func over(a, b any) any {
	switch b := b.(type) {
	case nil:
		switch a := a.(type) {
		case map[string]any:
			return merged(a, nil)
		case []any:
			return items(a, nil)
		}
		return a
	case map[string]any:
		of, _ := a.(map[string]any)
		return merged(of, b)
	case []any:
		of, _ := a.([]any)
		return items(of, b)
	default:
		return b
	}
}

func items(a, b []any) []any {
	out := make([]any, max(len(a), len(b)))
	for i := range out {
		switch {
		case i >= len(a):
			out[i] = over(nil, b[i])
		case i >= len(b):
			out[i] = over(a[i], nil)
		default:
			out[i] = over(a[i], b[i])
		}
	}
	return out
}

// yamlOf reads a mapping in YAML, with or without its braces.
func yamlOf(text string) map[string]any {
	out := map[string]any{}
	if text = strings.TrimSpace(text); text == "" {
		return out
	}
	if !strings.HasPrefix(text, "{") {
		text = "{" + text + "}"
	}
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return out
}
