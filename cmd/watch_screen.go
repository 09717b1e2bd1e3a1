package cmd

import (
	"context"
	"errors"
	"iter"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
	"github.com/nodectl/nodectl/pkg/ui/tui"
)

// watchScreen runs watch --tui. If the stream of updates fails, it returns that error.
func (p *program) watchScreen(ctx context.Context, cmd *cobra.Command, f watchFlags, s ui.Selection) error {
	for _, name := range []string{"output", "full", "show-diff"} {
		if cmd.Flags().Changed(name) {
			return usage(cmd, errors.New("--tui and --"+name+" exclude each other"))
		}
	}
	if err := tui.Check(p.out.file); err != nil {
		return usage(cmd, err)
	}
	if !f.attach && slices.Contains(p.cfg.Filename, "-") && term.IsTerminal(int(p.in.Fd())) {
		return usage(cmd, errors.New("--tui reads keys from the terminal, so -f - needs its manifests from a pipe"))
	}
	defer p.bufferErrors()()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates, err := p.updates(ctx, cmd, f, s)
	if err != nil {
		return err
	}
	title := strings.Join(p.sourceTitles(), ", ")
	if f.attach {
		title = "agent of " + p.cfg.RootDir
	}
	var broken error // of the stream; tui.Run returns after the stream has ended
	err = tui.Run(ctx, tui.Config{
		In: p.in, Out: p.out.file, Title: title, Color: ui.Colored(p.cfg.Color, true, p.env),
		Updates: func(leaving context.Context) iter.Seq[ui.PodUpdate] {
			stop := context.AfterFunc(leaving, cancel)
			return func(yield func(ui.PodUpdate) bool) {
				defer stop()
				for d, err := range updates {
					if err != nil {
						broken = err
						cancel()
						return
					}
					if !yield(d) {
						return
					}
				}
			}
		},
	})
	if err == nil {
		err = broken
	}
	return err
}

// sourceTitles returns the names of the sources. URLs are without secrets.
func (p *program) sourceTitles() []string {
	all := slices.Clone(p.cfg.SourceNames())
	for i, name := range all {
		switch {
		case name == "-":
			all[i] = "standard input"
		case config.IsURL(name):
			all[i] = "a URL"
			if u, err := url.Parse(name); err == nil {
				all[i] = u.Scheme + "://" + u.Host + u.EscapedPath()
			}
		}
	}
	if len(p.cfg.EtcdEndpoints) > 0 {
		all = append(all, "etcd "+p.cfg.EtcdPrefix)
	}
	if p.cfg.Kubeconfig != "" {
		all = append(all, pod.SourceAPI)
	}
	return all
}

// bufferErrors buffers standard error until release is called, if that is a terminal: a screen
// is shown there.
func (p *program) bufferErrors() (release func()) {
	if !p.err.terminal() {
		return func() {}
	}
	p.err.buffer = &textBuffer{}
	return func() {
		text := p.err.buffer.text()
		p.err.buffer = nil
		p.say(text)
	}
}

// textBuffer keeps the last lines written to it. It is safe for concurrent use.
type textBuffer struct {
	mu  sync.Mutex
	all []byte
}

// bufferSize is the size of a textBuffer. It drops older lines.
const bufferSize = 16 << 10

// Write implements io.Writer.
func (h *textBuffer) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, b...)
	if old := len(h.all) - bufferSize; old > 0 {
		_, rest, _ := strings.Cut(string(h.all[old:]), "\n")
		h.all = []byte(rest)
	}
	return len(b), nil
}

func (h *textBuffer) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.all)
}
