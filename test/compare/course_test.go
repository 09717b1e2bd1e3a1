package compare

import (
	"testing"
	"time"
)

func s(what string, from, to float64) Stretch {
	return Stretch{what, time.Duration(from * float64(time.Second)), time.Duration(to * float64(time.Second))}
}

func TestCoursesForgiveWhatIsBrief(t *testing.T) {
	for name, c := range map[string]struct {
		a, b  []Stretch
		equal bool
	}{
		"the same":                      {[]Stretch{s("x", 0, 3), s("y", 3, 9)}, []Stretch{s("x", 0, 2), s("y", 2, 9)}, true},
		"brief in one alone":            {[]Stretch{s("x", 0, 1), s("y", 1, 9)}, []Stretch{s("y", 0, 9)}, true},
		"long in one alone":             {[]Stretch{s("x", 0, 4), s("y", 4, 9)}, []Stretch{s("y", 0, 9)}, false},
		"brief in between":              {[]Stretch{s("x", 0, 4), s("y", 4, 5), s("x", 5, 9)}, []Stretch{s("x", 0, 9)}, true},
		"long in between":               {[]Stretch{s("x", 0, 4), s("y", 4, 6), s("x", 6, 9)}, []Stretch{s("x", 0, 9)}, false},
		"another order":                 {[]Stretch{s("x", 0, 4), s("y", 4, 9)}, []Stretch{s("y", 0, 4), s("x", 4, 9)}, false},
		"nothing at all against a long": {nil, []Stretch{s("x", 0, 4)}, false},
	} {
		if got := Same(c.a, c.b, 1500*time.Millisecond); got != c.equal {
			t.Errorf("%s: same is %t", name, got)
		}
	}
}
