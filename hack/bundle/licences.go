package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// writeLicences writes one file that names every part linked into programs (below root)
// with version and licence, followed by the texts of the licences, most of which require
// that. It returns the parts. A part with an unknown licence is an error, so that a
// developer checks it.
func writeLicences(out, root string, programs []string) ([]component, error) {
	parts := map[string]component{} // by module, hence each once
	for _, p := range programs {
		b, err := buildinfo.ReadFile(filepath.Join(root, p))
		if err != nil {
			return nil, err
		}
		for _, d := range append(b.Deps, &b.Main) {
			parts[d.Path] = component{Name: d.Path, Version: d.Version, Module: d.Path}
		}
	}
	dirs, err := moduleDirs(parts)
	if err != nil {
		return nil, err
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	parts["std"] = component{Name: "Go standard library", Version: runtime.Version(), Module: "std"}
	dirs["std"] = strings.TrimSpace(string(goroot))

	texts := map[string]*text{}
	for _, module := range slices.Sorted(maps.Keys(parts)) {
		c := parts[module]
		if c.Licence, err = collect(texts, dirs[module], module); err != nil {
			return nil, fmt.Errorf("%s: %w", module, err)
		}
		parts[module] = c
	}
	all := slices.Collect(maps.Values(parts))
	all = append(all, linkedC()...)
	order(all)
	return all, render(out, all, texts)
}

// linkedC names pause, and the libraries that the C compiler linked into runc and pause.
func linkedC() []component {
	cs := []component{
		{Name: "libseccomp", Version: os.Getenv("LIBSECCOMP"), Licence: "LGPL-2.1-only", Module: "https://github.com/seccomp/libseccomp"},
		{Name: "pause", Version: pauseRef[strings.LastIndexByte(pauseRef, ':')+1:], Licence: "Apache-2.0", Module: "github.com/nodectl/nodectl"},
	}
	if v, ok := strings.CutPrefix(os.Getenv("LIBC"), "glibc "); ok {
		cs = append(cs, component{Name: "glibc", Version: v, Licence: "LGPL-2.1-or-later", Module: "https://www.gnu.org/software/libc/"})
	}
	return cs
}

// headline are the parts that users know by name; they come first.
var headline = map[string]string{
	"github.com/containerd/containerd/v2":    "containerd",
	"github.com/opencontainers/runc":         "runc",
	"github.com/containernetworking/plugins": "CNI plugins",
	"github.com/nodectl/nodectl":             "pause",
	"https://github.com/seccomp/libseccomp":  "libseccomp",
	"https://www.gnu.org/software/libc/":     "glibc",
}

func order(cs []component) {
	for i := range cs {
		if n, ok := headline[cs[i].Module]; ok {
			cs[i].Name = n
		}
	}
	rank := func(c component) int {
		if _, ok := headline[c.Module]; ok {
			return 0
		}
		return 1
	}
	slices.SortFunc(cs, func(a, b component) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
}

// moduleDirs returns the directories of the modules' sources, from the go command.
func moduleDirs(parts map[string]component) (map[string]string, error) {
	args := []string{"mod", "download", "-json"}
	for _, c := range parts {
		args = append(args, c.Module+"@"+c.Version)
	}
	slices.Sort(args[3:])
	stdout, err := exec.Command("go", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download: %w", err)
	}
	dirs := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(stdout)); ; {
		var m struct{ Path, Dir string }
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return dirs, nil
		case err != nil:
			return nil, err
		}
		dirs[m.Path] = m.Dir
	}
}

// A text is the full text of one licence or notice, and the parts that it covers.
type text struct {
	body    []byte
	modules []string
}

var licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|notice|patents)`)

// collect adds a module's licence texts to texts and returns the licence.
func collect(texts map[string]*text, dir, module string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	spdx := map[string]bool{}
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		body, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		for _, id := range classify(body) {
			spdx[id] = true
		}
		key := fmt.Sprintf("%x", sha256.Sum256(body))
		if texts[key] == nil {
			texts[key] = &text{body: body}
		}
		texts[key].modules = append(texts[key].modules, module)
	}
	if len(spdx) == 0 {
		return "", errors.New("no licence that classify knows")
	}
	return strings.Join(slices.Sorted(maps.Keys(spdx)), " AND "), nil
}

var space = regexp.MustCompile(`\s+`)

// classify returns the licences in a text, by phrases that only they contain.
func classify(body []byte) (ids []string) {
	s := strings.ToLower(space.ReplaceAllString(string(body), " "))
	has := func(p string) bool { return strings.Contains(s, p) }
	if has("apache license") && has("version 2.0") {
		ids = append(ids, "Apache-2.0")
	}
	if has("mozilla public license") && has("2.0") {
		ids = append(ids, "MPL-2.0")
	}
	if has("permission is hereby granted, free of charge") {
		ids = append(ids, "MIT")
	}
	if has("permission to use, copy, modify, and") && has("distribute this software for any purpose") {
		ids = append(ids, "ISC")
	}
	if has("redistribution and use in source and binary forms") {
		if has("neither the name") || has("names of its contributors") || has("name of the copyright holder") {
			ids = append(ids, "BSD-3-Clause")
		} else {
			ids = append(ids, "BSD-2-Clause")
		}
	}
	return ids
}

func render(out string, parts []component, texts map[string]*text) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "What this bundle is made of: name, version, licence (SPDX), module.\n\n")
	for _, c := range parts {
		fmt.Fprintf(&b, "%s\t%s\t%s\t%s\n", c.Name, c.Version, c.Licence, c.Module)
	}
	fmt.Fprintf(&b, "\nlibseccomp and glibc are linked statically. hack/bundle in the sources of nodectl\n"+
		"relinks runc and pause against any other version of them.\n")
	sorted := slices.SortedFunc(maps.Values(texts), func(x, y *text) int {
		return cmp.Or(slices.Compare(x.modules, y.modules), bytes.Compare(x.body, y.body))
	})
	for _, t := range sorted {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 78), strings.Join(t.modules, "\n"), bytes.TrimSpace(t.body))
	}
	return os.WriteFile(out, b.Bytes(), 0o644)
}
