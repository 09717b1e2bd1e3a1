package tui

import (
	"strings"
	"time"
	"unicode/utf8"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/nodectl/nodectl/pkg/ui"
)

// The messages to the model besides keys and the size of the window.
type (
	batch []ui.PodUpdate // updates, in the order of the stream
	ended struct{}       // the stream has ended
	leave struct{}       // the context has ended
)

// area is one of the three parts of the screen.
type area int

const (
	sourcesArea area = iota
	podsArea
	updatesArea
	areas // number of areas
)

// model is bubbletea's model of the screen. Only the goroutine of bubbletea's event loop
// uses it.
type model struct {
	title string
	zone  *time.Location
	paint painter

	state *state
	ended bool

	width, height int
	active        area
	offset        [areas]int // lines scrolled down
	tail          bool       // the newest update stays visible
	help          bool

	typing bool   // the user types a filter
	filter string // only pods whose name contains this text
	shown  []*podLine
	stale  bool // shown is older than the pods or the filter
}

func newModel(c Config) *model {
	zone := c.Zone
	if zone == nil {
		zone = time.Local
	}
	return &model{
		title: ui.Clean(c.Title), zone: zone, paint: newPainter(c.Color), state: newState(),
		width: 80, height: 24, active: podsArea, tail: true,
	}
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case batch:
		before := m.state.dropped
		m.state.apply(msg)
		m.stale = true
		at := m.offset[updatesArea] - (m.state.dropped - before)
		m.offset[updatesArea] = max(at, 0) // the same lines stay visible
	case ended:
		m.ended = true
	case leave:
		return m, tea.Quit
	case tea.KeyMsg:
		return m, m.keys(msg)
	}
	return m, nil
}

// keys handles a message with keys. Keys typed fast arrive as one message.
func (m *model) keys(k tea.KeyMsg) tea.Cmd {
	if k.Type != tea.KeyRunes || k.Paste || k.Alt {
		return m.key(k)
	}
	for _, r := range k.Runes {
		if cmd := m.key(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune{r}}); cmd != nil {
			return cmd
		}
	}
	return nil
}

// key handles a key. While the user types a filter, letters are its text.
func (m *model) key(k tea.KeyMsg) tea.Cmd {
	if k.Type == tea.KeyCtrlC {
		return tea.Quit
	}
	if m.typing {
		m.typeFilter(k)
		return nil
	}
	page := max(m.lines(m.active)-1, 1)
	switch k.String() {
	case "q", "esc":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "?":
		m.help = !m.help
	case "/":
		m.typing, m.active = true, podsArea
	case "tab":
		m.active = (m.active + 1) % areas
	case "shift+tab":
		m.active = (m.active + areas - 1) % areas
	case "up", "k":
		m.scroll(-1)
	case "down", "j":
		m.scroll(1)
	case "pgup", "ctrl+b":
		m.scroll(-page)
	case "pgdown", "ctrl+f", " ":
		m.scroll(page)
	case "home", "g":
		m.scroll(-m.count(m.active))
	case "end", "G":
		m.scroll(m.count(m.active))
	}
	return nil
}

// typeFilter handles a key of a filter's text. Enter keeps the filter, Esc removes it.
func (m *model) typeFilter(k tea.KeyMsg) {
	const longest = 253 // the maximum length of a name
	switch k.Type {
	case tea.KeyEnter:
		m.typing = false
	case tea.KeyEsc:
		m.typing, m.filter = false, ""
	case tea.KeyBackspace:
		_, n := utf8.DecodeLastRuneInString(m.filter)
		m.filter = m.filter[:len(m.filter)-n]
	case tea.KeyCtrlU:
		m.filter = ""
	case tea.KeyRunes, tea.KeySpace:
		if text := m.filter + ui.Clean(string(k.Runes)); len(text) <= longest {
			m.filter = text
		}
	default:
		return
	}
	m.stale, m.offset[podsArea] = true, 0
}

// scroll scrolls the active area by n lines, at most to its first or last line.
func (m *model) scroll(n int) {
	last := max(m.count(m.active)-m.lines(m.active), 0)
	at := m.top(m.active) + n
	m.offset[m.active] = min(max(at, 0), last)
	if m.active == updatesArea {
		m.tail = at >= last
	}
}

// top returns the first visible line of an area, for its current lines and the size of the
// window.
func (m *model) top(a area) int {
	last := max(m.count(a)-m.lines(a), 0)
	if a == updatesArea && m.tail {
		return last
	}
	return min(m.offset[a], last)
}

// count returns the number of lines of an area.
func (m *model) count(a area) int {
	switch a {
	case sourcesArea:
		return len(m.state.sourceLines)
	case podsArea:
		return len(m.matching())
	}
	return len(m.state.updates)
}

// matching returns the pods that match the filter, by name.
func (m *model) matching() []*podLine {
	if m.filter == "" {
		return m.state.order
	}
	if m.stale {
		m.shown, m.stale = m.shown[:0], false
		text := strings.ToLower(m.filter)
		for _, p := range m.state.order {
			if strings.Contains(strings.ToLower(p.name), text) {
				m.shown = append(m.shown, p)
			}
		}
	}
	return m.shown
}
