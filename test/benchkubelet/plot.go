package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// plot is one SVG file: panels side by side.
type plot struct {
	file, title string
	panels      []panel
}

// panel is one pair of axes. Both begin at 0, except a logarithmic x.
type panel struct {
	title, x, y string
	log         bool    // of x
	top         float64 // of y; 0 fits the points
	series      []series
}

// series is the points of one arm, joined by a line.
type series struct {
	name   string
	points []point
	dots   bool // mark every point
}

type point struct{ x, y float64 }

// distribution is the share of samples up to each value, as steps.
func distribution(name string, samples []float64) series {
	s := series{name: name}
	sorted := slices.Sorted(slices.Values(samples))
	n := float64(len(sorted))
	for i, v := range sorted {
		s.points = append(s.points, point{v, float64(i) / n}, point{v, float64(i+1) / n})
	}
	return s
}

// The arms' colours, which colour-blind readers can tell apart too.
var colours = map[string]string{"raw": "#888888", "kubelet": "#0072b2", "nodectl": "#d55e00"}

// One panel's measures, in pixels.
const (
	panelWidth, panelHeight  = 360.0, 250.0
	left, right, above, foot = 58.0, 16.0, 52.0, 42.0
)

func (p plot) svg() string {
	var b strings.Builder
	width := panelWidth * float64(len(p.panels))
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" font-family="sans-serif" font-size="11">`+"\n",
		width, panelHeight+20, width, panelHeight+20)
	fmt.Fprintf(&b, `<title>%s</title><rect width="100%%" height="100%%" fill="white"/>`+"\n", html.EscapeString(p.title))
	fmt.Fprintf(&b, `<text x="8" y="16" font-size="13">%s</text>`+"\n", html.EscapeString(p.title))
	for i, panel := range p.panels {
		fmt.Fprintf(&b, `<g transform="translate(%.0f 20)">`+"\n", panelWidth*float64(i))
		panel.draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p panel) draw(b *strings.Builder) {
	x, y := p.axes()
	text := func(px, py float64, anchor, s string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#333">%s</text>`+"\n", px, py, anchor, html.EscapeString(s))
	}
	text(left, 18, "start", p.title)
	for _, v := range x.ticks() {
		fmt.Fprintf(b, `<path d="M%.1f %.1fV%.1f" stroke="#ddd"/>`+"\n", x.at(v), above, panelHeight-foot)
		text(x.at(v), panelHeight-foot+14, "middle", number(v))
	}
	for _, v := range y.ticks() {
		fmt.Fprintf(b, `<path d="M%.1f %.1fH%.1f" stroke="#ddd"/>`+"\n", left, y.at(v), panelWidth-right)
		text(left-5, y.at(v)+4, "end", number(v))
	}
	text((left+panelWidth-right)/2, panelHeight-8, "middle", p.x)
	text(left-5, above-8, "end", p.y)
	at := left
	for _, s := range p.series {
		if len(s.points) == 0 {
			continue
		}
		colour := cmp.Or(colours[s.name], "black")
		var path strings.Builder
		for i, q := range s.points {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], x.at(q.x), y.at(q.y))
			if s.dots {
				fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x.at(q.x), y.at(q.y), colour)
			}
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.8"/>`+"\n", path.String(), colour)
		fmt.Fprintf(b, `<path d="M%.1f 32h16" stroke="%s" stroke-width="3"/>`+"\n", at, colour)
		text(at+20, 36, "start", s.name)
		at += 28 + 7*float64(len(s.name))
	}
}

// axis maps values to pixels.
type axis struct {
	low, high float64
	from, to  float64
	log       bool
}

func (p panel) axes() (x, y axis) {
	x = axis{from: left, to: panelWidth - right, log: p.log}
	y = axis{from: panelHeight - foot, to: above, high: p.top}
	x.low = math.Inf(1)
	for _, s := range p.series {
		for _, q := range s.points {
			x.low, x.high = min(x.low, q.x), max(x.high, q.x)
			if p.top == 0 {
				y.high = max(y.high, q.y)
			}
		}
	}
	x.high, y.high = max(x.high, 1e-3), max(y.high, 1e-3)
	if p.log {
		x.low = math.Pow(10, math.Floor(math.Log10(min(max(x.low, 1), x.high))))
		x.high = math.Pow(10, math.Ceil(math.Log10(x.high*1.0001)))
		return x, y
	}
	x.low = 0
	x.high *= 1.03
	if p.top == 0 {
		y.high *= 1.05
	}
	return x, y
}

func (a axis) at(v float64) float64 {
	share := (v - a.low) / (a.high - a.low)
	if a.log {
		share = math.Log10(max(v, a.low)/a.low) / math.Log10(a.high/a.low)
	}
	return a.from + share*(a.to-a.from)
}

// ticks are round numbers on the axis, about five of them; on a logarithmic one
// the powers of ten.
func (a axis) ticks() []float64 {
	var all []float64
	if a.log {
		for v := a.low; v <= a.high*1.001; v *= 10 {
			all = append(all, v)
		}
		return all
	}
	step := math.Pow(10, math.Floor(math.Log10(a.high/5)))
	for _, f := range []float64{1, 2, 5, 10} {
		if a.high/(step*f) <= 6 {
			step *= f
			break
		}
	}
	for i := 0.0; i*step <= a.high*1.001; i++ {
		all = append(all, i*step)
	}
	return all
}

func number(v float64) string {
	return strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64)
}
