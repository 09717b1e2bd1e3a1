package compare

import (
	"fmt"
	"strings"
	"time"
)

// A Stretch is how long a value stayed the same.
type Stretch struct {
	Is       string
	From, To time.Duration // since the beginning
}

// Length is how long it lasted.
func (s Stretch) Length() time.Duration { return s.To - s.From }

// Same reports whether two courses of a value are the same. A value that lasted no longer than
// brief may be in only one of them: the agents are polled at intervals, and notice changes with
// a delay.
func Same(a, b []Stretch, brief time.Duration) bool {
	return alike(a, b, brief) || alike(lasting(a, brief), lasting(b, brief), brief)
}

// lasting leaves out brief stretches, and joins those around them.
func lasting(s []Stretch, brief time.Duration) []Stretch {
	var out []Stretch
	for _, x := range s {
		if last := len(out) - 1; x.Length() <= brief {
			continue
		} else if last >= 0 && out[last].Is == x.Is {
			out[last].To = x.To
		} else {
			out = append(out, x)
		}
	}
	return out
}

func alike(a, b []Stretch, brief time.Duration) bool {
	// The longest common subsequence, in which long stretches weigh more.
	weight := func(s Stretch) int { return 1 + int(s.Length()/(100*time.Millisecond)) }
	best := make([][]int, len(a)+1)
	for i := range best {
		best[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			best[i][j] = max(best[i+1][j], best[i][j+1])
			if a[i].Is == b[j].Is {
				best[i][j] = max(best[i][j], best[i+1][j+1]+weight(a[i])+weight(b[j]))
			}
		}
	}
	differs := false
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i].Is == b[j].Is && best[i][j] == best[i+1][j+1]+weight(a[i])+weight(b[j]):
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || best[i][j] == best[i+1][j]):
			differs = differs || a[i].Length() > brief
			i++
		default:
			differs = differs || b[j].Length() > brief
			j++
		}
	}
	return !differs
}

// Course is a course in words.
func Course(s []Stretch) string {
	var out []string
	for _, x := range s {
		out = append(out, x.Is+" "+Seconds(x.Length()))
	}
	return strings.Join(out, " → ")
}

// Seconds is a duration in words.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
