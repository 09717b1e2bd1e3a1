package config

import (
	"reflect"
	"strings"
	"time"
)

// Kubelet returns the settings for /configz: a KubeletConfiguration with each honoured field that
// corresponds to one setting. It leaves out URLs of manifests and their headers, which may contain
// secrets.
func (c Config) Kubelet() map[string]any {
	settings := make(map[string]any)
	for v, i := reflect.ValueOf(c), 0; i < v.NumField(); i++ {
		settings[v.Type().Field(i).Tag.Get("mapstructure")] = v.Field(i).Interface()
	}
	doc := map[string]any{"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}
	for _, row := range kubeletTable() {
		value, ok := settings[row.setting]
		if row.outcome != honoured || !ok || row.kind == ofListMap {
			continue
		}
		if shown := row.shown(value); shown != nil {
			put(doc, strings.Split(row.path, "."), shown)
		}
	}
	for _, name := range c.Filename { // a URL may contain a password
		if name != "-" && !IsURL(name) {
			doc["staticPodPath"] = name
			break
		}
	}
	doc["cgroupsPerQOS"] = true
	doc["serializeImagePulls"] = c.MaxParallelImagePulls == 1
	if c.MaxParallelImagePulls > 1 {
		doc["maxParallelImagePulls"] = c.MaxParallelImagePulls
	}
	gates := make(map[string]bool)
	for gate, setting := range gateSettings {
		if on, _ := settings[setting].(bool); on {
			gates[gate] = true
		}
	}
	for _, name := range c.Disabled() {
		gates[name] = false
	}
	if len(gates) > 0 {
		put(doc, []string{"featureGates"}, gates)
	}
	put(doc, []string{"authentication", "anonymous", "enabled"}, false)
	put(doc, []string{"authorization", "mode"}, "Webhook")
	return doc
}

// shown returns a setting's value in the form of the field, nil if there is none.
func (row kubeletRow) shown(value any) any {
	switch v := value.(type) {
	case time.Duration:
		if strings.HasSuffix(row.path, "Seconds") {
			return int64(v / time.Second)
		}
		return v.String()
	case []string:
		separator := "="
		if row.setting == "eviction-hard" || row.setting == "eviction-soft" {
			separator = "<"
		}
		switch {
		case row.kind == ofStrings:
			return v
		case row.kind == ofPriorities && len(v) > 0:
			return prioritiesShown(v)
		case row.kind != ofStringMap:
			return nil
		}
		all := make(map[string]string)
		for _, item := range v {
			name, amount, _ := strings.Cut(item, separator)
			all[name] = amount
		}
		return all
	}
	if row.as != nil {
		return nil
	}
	return value
}

// prioritiesShown returns grace periods by priority in the form of the field.
func prioritiesShown(list []string) (all []map[string]int64) {
	classes, _ := shutdownClasses(list)
	for _, c := range classes {
		all = append(all, map[string]int64{"priority": int64(c.Priority), "shutdownGracePeriodSeconds": int64(c.Period / time.Second)})
	}
	return all
}

// put sets a field of a document by its path.
func put(doc map[string]any, path []string, value any) {
	for _, name := range path[:len(path)-1] {
		next, ok := doc[name].(map[string]any)
		if !ok {
			next = make(map[string]any)
			doc[name] = next
		}
		doc = next
	}
	doc[path[len(path)-1]] = value
}
