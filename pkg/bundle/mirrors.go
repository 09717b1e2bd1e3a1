package bundle

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Limits of a registry's configuration.
const (
	maxMirrors     = 8
	maxMirrorsFile = 64 << 10
)

// MirrorDirs are the directories in which a containerd of the machine finds the configuration of
// registries, and the one of the bundled containerd of a root directory.
func MirrorDirs(root string, bundled bool) []string {
	if bundled {
		return []string{filepath.Join(root, "runtime", "certs.d")}
	}
	return []string{"/etc/containerd/certs.d", "/etc/docker/certs.d"}
}

// Mirrors returns the URLs that containerd asks for images of a registry before, or instead of, the
// registry itself: those of hosts.toml in the first of the directories that has one for it. A file
// that cannot be read has none.
func Mirrors(dirs []string, registry string) []string {
	if registry == "" || strings.HasPrefix(registry, ".") || strings.ContainsAny(registry, `/\`) {
		return nil
	}
	for _, name := range []string{registry, strings.Replace(registry, ":", "_", 1) + "_", "_default"} {
		for _, dir := range dirs {
			if urls, ok := readMirrors(filepath.Join(dir, name, "hosts.toml")); ok {
				return urls
			}
		}
	}
	return nil
}

// readMirrors reads one hosts.toml; ok is false if there is none.
func readMirrors(file string) (urls []string, ok bool) {
	f, err := os.Open(file)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMirrorsFile))
	if err != nil {
		return nil, true
	}
	var hosts struct {
		Server string `toml:"server"`
		Host   map[string]struct {
			Capabilities []string `toml:"capabilities"`
		} `toml:"host"`
	}
	if err := toml.Unmarshal(text, &hosts); err != nil {
		return nil, true
	}
	for _, url := range slices.Sorted(maps.Keys(hosts.Host)) {
		if can := hosts.Host[url].Capabilities; len(can) == 0 || slices.Contains(can, "pull") {
			urls = append(urls, url)
		}
	}
	if hosts.Server != "" {
		urls = append(urls, hosts.Server)
	}
	return urls[:min(len(urls), maxMirrors)], true
}
