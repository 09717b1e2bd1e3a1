package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Facts are single values, each by its path.
type Facts map[string]string

// keyed are the fields that name a list's elements: the order of such lists does not matter.
var keyed = []string{"name", "key", "container_path", "type"}

// set matches the lists of words whose order does not matter.
var set = regexp.MustCompile(`(masked_paths|readonly_paths|_capabilities|supplemental_groups)$`)

// flatten splits a value into facts by its JSON paths.
func flatten(path string, v any) Facts {
	f := Facts{}
	text, err := json.Marshal(v)
	if err != nil {
		f[path] = err.Error()
		return f
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		f[path] = err.Error()
		return f
	}
	f.add(path, tree)
	return f
}

func (f Facts) add(path string, v any) {
	switch v := v.(type) {
	case nil:
	case map[string]any:
		for k, e := range v {
			if path == "" {
				f.add(k, e)
			} else {
				f.add(path+"."+k, e)
			}
		}
	case []any:
		for i, e := range v {
			if set.MatchString(path) {
				f[path+"["+fmt.Sprint(e)+"]"] = "there"
				continue
			}
			f.add(path+"["+element(i, e)+"]", e)
		}
	case float64:
		f[path] = strconv.FormatFloat(v, 'f', -1, 64)
	case string:
		f[path] = v
	default:
		f[path] = fmt.Sprint(v)
	}
}

func element(i int, v any) string {
	if m, ok := v.(map[string]any); ok {
		for _, k := range keyed {
			if s, ok := m[k].(string); ok {
				return s
			}
		}
	}
	return strconv.Itoa(i)
}

// sandboxFacts takes a sandbox's configuration apart, containerFacts a container's.
func sandboxFacts(c *cri.PodSandboxConfig) Facts { return flatten("", c) }

func containerFacts(c *cri.ContainerConfig) Facts { return flatten("", c) }

func (f Facts) keys() []string { return slices.Sorted(maps.Keys(f)) }
