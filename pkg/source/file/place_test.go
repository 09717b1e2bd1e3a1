package file_test

import (
	"fmt"
	"os"
	"path/filepath"
)

// configMap writes a directory as the kubelet writes a ConfigMap volume.
type configMap struct {
	place
	files map[string]string
	turn  int
	late  bool // links of removed keys stay until tidy, as the kubelet does it
}

func (m *configMap) publish() {
	m.t.Helper()
	m.turn++
	data := fmt.Sprintf("..2026_%d", m.turn)
	must(m.t, os.Mkdir(m.path(data), 0o700))
	for name, text := range m.files {
		must(m.t, os.WriteFile(m.path(data+"/"+name), []byte(text), 0o600))
	}
	if !m.late {
		m.tidy()
	}
	must(m.t, os.Symlink(data, m.path("..data_tmp")))
	before, _ := os.Readlink(m.path("..data"))
	must(m.t, os.Rename(m.path("..data_tmp"), m.path("..data")))
	for name := range m.files {
		if _, err := os.Lstat(m.path(name)); err != nil {
			must(m.t, os.Symlink("..data/"+name, m.path(name)))
		}
	}
	if before != "" {
		must(m.t, os.RemoveAll(m.path(before)))
	}
}

// tidy removes the links of removed keys.
func (m *configMap) tidy() {
	m.t.Helper()
	links, err := filepath.Glob(m.path("[a-z]*"))
	must(m.t, err)
	for _, link := range links {
		if _, wanted := m.files[filepath.Base(link)]; !wanted {
			must(m.t, os.Remove(link))
		}
	}
}
