// Command sitecheck reads the HTML of the documentation site and fails on a
// broken link or anchor:
//
//	go run ./hack/sitecheck bin/site
//
// A link to the repository's host has to name a file of this tree, in which it runs. Links
// to other hosts are not followed.
package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// source is the prefix of links to files of the repository (hack/site/hugo.toml).
const source = "https://github.com/nodectl/nodectl/blob/main/"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: sitecheck DIRECTORY")
		os.Exit(2)
	}
	broken, pages, links, err := check(os.DirFS(os.Args[1]), os.DirFS("."))
	if err != nil {
		fmt.Fprintln(os.Stderr, "sitecheck:", err)
		os.Exit(1)
	}
	for _, b := range broken {
		fmt.Fprintln(os.Stderr, "sitecheck:", b)
	}
	if len(broken) > 0 || pages == 0 {
		fmt.Fprintf(os.Stderr, "sitecheck: %d broken links on %d pages\n", len(broken), pages)
		os.Exit(1)
	}
	fmt.Printf("%s: %d pages, %d links, none broken\n", os.Args[1], pages, links)
}

// page is one HTML file: the anchors it has and the links it makes.
type page struct {
	ids   map[string]bool
	links []string
}

// check reads every page of site. It returns the broken links and the numbers of pages and links.
// Links to the repository are looked up in tree.
func check(site, tree fs.FS) (broken []string, pages, links int, err error) {
	all := make(map[string]page)
	err = fs.WalkDir(site, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".html" {
			return err
		}
		text, err := fs.ReadFile(site, name)
		if err != nil {
			return err
		}
		p, err := read(bytes.NewReader(text))
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		for _, id := range p.twice {
			broken = append(broken, fmt.Sprintf("%s: two elements have the id %q", name, id))
		}
		all[name] = p.page
		return nil
	})
	if err != nil {
		return nil, 0, 0, err
	}
	for name, p := range all {
		for _, link := range p.links {
			links++
			if why := resolve(site, tree, all, name, link); why != "" {
				broken = append(broken, fmt.Sprintf("%s: link %s: %s", name, link, why))
			}
		}
	}
	slices.Sort(broken)
	return broken, len(all), links, nil
}

// resolve returns why a link of the page name is broken, or nothing.
func resolve(site, tree fs.FS, all map[string]page, name, link string) string {
	if file, ok := strings.CutPrefix(link, source); ok {
		file, _, _ = strings.Cut(file, "#")
		if _, err := fs.Stat(tree, path.Clean(file)); err != nil {
			return "no such file in the repository"
		}
		return ""
	}
	to, err := url.Parse(link)
	switch {
	case err != nil:
		return "is no URL"
	case to.Scheme != "" || to.Host != "":
		return ""
	case path.IsAbs(to.Path):
		return "is not relative: the site could not be moved"
	}
	target := name
	if to.Path != "" {
		target = path.Join(path.Dir(name), to.Path)
		if strings.HasSuffix(to.Path, "/") || to.Path == "." {
			target = path.Join(target, "index.html")
		}
	}
	p, isPage := all[target]
	if !isPage {
		if info, err := fs.Stat(site, target); err != nil || info.IsDir() {
			return "no such file: " + filepath.ToSlash(target)
		}
		return ""
	}
	if to.Fragment != "" && !p.ids[to.Fragment] {
		return "no such anchor in " + target
	}
	return ""
}

// parsed is a page, and the ids that it has twice.
type parsed struct {
	page
	twice []string
}

// read returns the anchors and links of a page.
func read(from io.Reader) (parsed, error) {
	p := parsed{page: page{ids: make(map[string]bool)}}
	d := xml.NewDecoder(from)
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err != nil {
			return p, err
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		for _, a := range start.Attr {
			switch a.Name.Local {
			case "id":
				if p.ids[a.Value] {
					p.twice = append(p.twice, a.Value)
				}
				p.ids[a.Value] = true
			case "href", "src":
				p.links = append(p.links, a.Value)
			}
		}
	}
}
