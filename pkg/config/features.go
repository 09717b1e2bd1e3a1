package config

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// debugVerbosity is the verbosity of the kubelet from which on nodectl logs debug messages.
const debugVerbosity = 4

// Disabled returns the features that are off on this node. Check has accepted them.
func (c Config) Disabled() pod.Disabled { return items(c.DisabledFeatures) }

// disabledFeatures checks disabled-features.
func disabledFeatures(list []string) string {
	for _, name := range items(list) {
		if msg := oneOf(name, pod.Features()...); msg != "" {
			return msg
		}
	}
	return ""
}

// DebugFiles returns patterns of the names of source files, without ".go". Debug messages of these
// files are logged whatever the log level is. Check has accepted VModule.
func (c Config) DebugFiles() []string {
	files, _ := modules(c.VModule)
	return files
}

// modules returns the patterns with a verbosity of debug messages. No other verbosity has an effect.
func modules(list []string) ([]string, error) {
	var files []string
	for _, item := range items(list) {
		pattern, level, _ := strings.Cut(item, "=")
		_, bad := path.Match(pattern, "")
		n, err := strconv.ParseUint(level, 10, 31)
		if pattern == "" || bad != nil || err != nil {
			return nil, fmt.Errorf("%q is not of the form PATTERN=LEVEL, such as evict*=4", item)
		}
		if n >= debugVerbosity {
			files = append(files, pattern)
		}
	}
	return files, nil
}
