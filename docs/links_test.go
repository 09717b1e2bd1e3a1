package docs_test

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	fence       = regexp.MustCompile("^ *(```|~~~)")
	inlineCode  = regexp.MustCompile("`[^`]+`")
	destination = regexp.MustCompile(`\]\(([^()\s]+)(?:\s+"[^"]*")?\)`)
	heading     = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
	htmlAnchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	linkText    = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// markdownPage is one Markdown file: the anchors it has and the links it makes.
type markdownPage struct {
	anchors map[string]bool
	links   []string
}

// TestMarkdown_RelativeLinks_Resolve: every relative link of every Markdown file of the
// repository leads to a file or directory of it, and its anchor to a heading or an HTML anchor.
func TestMarkdown_RelativeLinks_Resolve(t *testing.T) {
	t.Parallel()
	pages := markdownPages(t)
	links := 0
	for name, page := range pages {
		for _, link := range page.links {
			links++
			if why := followLink(pages, name, link); why != "" {
				t.Errorf("%s: link %s: %s", name, link, why)
			}
		}
	}
	if len(pages) < 50 || links < 250 {
		t.Errorf("%d Markdown files with %d links: they were not read", len(pages), links)
	}
}

// TestDocs_Index_NamesEveryPage: docs/README.md, which is also the navigation of the site,
// names every page of docs; howto/README.md and decisions/README.md name theirs.
func TestDocs_Index_NamesEveryPage(t *testing.T) {
	t.Parallel()
	pages := markdownPages(t)
	named := func(index string) (list []string) {
		for _, link := range pages[index].links {
			list = append(list, path.Join(path.Dir(index), link))
		}
		return list
	}
	all := named("docs/README.md")
	for name := range pages {
		dir := path.Dir(name)
		switch {
		case name == "docs/README.md" || name == "docs/howto/README.md" || !strings.HasPrefix(name, "docs/"):
			continue
		case dir == "docs/decisions" && path.Base(name) != "README.md":
			if !slices.Contains(named("docs/decisions/README.md"), name) {
				t.Errorf("docs/decisions/README.md does not name %s", name)
			}
			continue
		case dir == "docs/howto" && !slices.Contains(named("docs/howto/README.md"), name):
			t.Errorf("docs/howto/README.md does not name %s", name)
		}
		if !slices.Contains(all, name) {
			t.Errorf("docs/README.md does not name %s", name)
		}
	}
}

// TestAnchor_Heading_IsGitHubs shows the rule by which git hosts and the site name anchors.
func TestAnchor_Heading_IsGitHubs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Which pods may start: `serve` and `runonce`": "which-pods-may-start-serve-and-runonce",
		"What the kubelet does, and we do":            "what-the-kubelet-does-and-we-do",
		"[0031](0031-x.md) A *binary* – small":        "0031-a-binary--small",
		"size_and start-up":                           "size_and-start-up",
	} {
		if got := anchor(text); got != want {
			t.Errorf("anchor of %q: got %q, want %q", text, got, want)
		}
	}
}

// followLink returns why a link of the page name is broken, or nothing.
func followLink(pages map[string]markdownPage, name, link string) string {
	to, err := url.Parse(link)
	switch {
	case err != nil:
		return "is no URL"
	case to.Scheme != "":
		return ""
	case path.IsAbs(to.Path):
		return "must be relative to its page"
	}
	target := name
	if to.Path != "" {
		target = path.Join(path.Dir(name), to.Path)
	}
	if strings.HasPrefix(target, "..") {
		return "leads out of the repository"
	}
	if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(target))); err != nil {
		return "no such file: " + target
	}
	if to.Fragment != "" && !pages[target].anchors[to.Fragment] {
		return "no such anchor in " + target
	}
	return ""
}

// markdownPages reads the Markdown files of the repository, by their paths in it.
func markdownPages(t *testing.T) map[string]markdownPage {
	t.Helper()
	pages := make(map[string]markdownPage)
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist", "testdata"}, d.Name()):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(file) != ".md":
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel("..", file)
		if err != nil {
			return err
		}
		pages[filepath.ToSlash(name)] = parseMarkdown(string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// parseMarkdown returns the anchors and links of a page, without those in code.
func parseMarkdown(text string) markdownPage {
	page := markdownPage{anchors: make(map[string]bool)}
	var prose strings.Builder
	used := make(map[string]int)
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if fence.MatchString(line) {
			fenced = !fenced
			continue
		}
		if fenced {
			continue
		}
		prose.WriteString(line + "\n")
		for _, m := range htmlAnchor.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
			page.anchors[m[1]] = true
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			id := anchor(m[1])
			if n := used[id]; n > 0 {
				page.anchors[fmt.Sprintf("%s-%d", id, n)] = true
			}
			used[id]++
			page.anchors[id] = true
		}
	}
	for paragraph := range strings.SplitSeq(prose.String(), "\n\n") {
		for _, m := range destination.FindAllStringSubmatch(inlineCode.ReplaceAllString(paragraph, "code"), -1) {
			page.links = append(page.links, m[1])
		}
	}
	return page
}

// anchor returns the anchor of a heading: its text in lower case, of which letters, digits,
// hyphens and underscores stay, and spaces become hyphens.
func anchor(text string) string {
	text = linkText.ReplaceAllString(text, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}
