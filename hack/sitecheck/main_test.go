package main

import (
	"slices"
	"testing"
	"testing/fstest"
)

// A link is broken when its file, its anchor or its source in the repository is missing.
func TestCheck_BrokenLink_IsReported(t *testing.T) {
	html := func(body string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("<!doctype html>\n<html><head><meta charset=utf-8></head><body>" + body + "</body></html>")}
	}
	site := fstest.MapFS{
		"index.html":  html(`<h1 id="top">a</h1><a href="cli.html#get">b</a> <a href="#top">c</a> <a href="./">d</a> <img src="a.svg">`),
		"cli.html":    html(`<h2 id="get">a &amp; b&nbsp;</h2><a href="https://elsewhere.example/x">b</a> <a href="` + source + `go.mod">c</a>`),
		"sub/x.html":  html(`<a href="../cli.html#put">a</a> <a href="y.html">b</a> <a href="/cli.html">c</a><br> <a href="` + source + `gone">d</a>`),
		"sub/id.html": html(`<p id="a"></p><p id="a"></p>`),
		"a.svg":       &fstest.MapFile{},
	}
	broken, pages, links, err := check(site, fstest.MapFS{"go.mod": &fstest.MapFile{}})
	want := []string{
		`sub/id.html: two elements have the id "a"`,
		"sub/x.html: link ../cli.html#put: no such anchor in cli.html",
		"sub/x.html: link /cli.html: is not relative: the site could not be moved",
		"sub/x.html: link " + source + "gone: no such file in the repository",
		"sub/x.html: link y.html: no such file: sub/y.html",
	}
	if err != nil || !slices.Equal(broken, want) || pages != 4 || links != 10 {
		t.Errorf("got %q, %d pages, %d links, %v; want %q, 4 and 10", broken, pages, links, err, want)
	}
}
