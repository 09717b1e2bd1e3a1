package manifest

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// nearest returns the known name that an unknown one is most likely meant to
// be, "" when none is near.
func nearest(name string, known []string) string {
	best, bestDistance := "", 1+max(len(name)/3, 1)
	for _, k := range known {
		d := distance(strings.ToLower(name), strings.ToLower(k))
		// A name with letters left out is near however many are missing: workdir
		// for workingDir, grace for terminationGracePeriodSeconds is not.
		if d >= bestDistance && len(name) >= 4 && 2*len(name) > len(k) && subsequence(strings.ToLower(name), strings.ToLower(k)) {
			d = bestDistance - 1
		}
		if d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

func subsequence(short, long string) bool {
	for _, c := range short {
		i := strings.IndexRune(long, c)
		if i < 0 {
			return false
		}
		long = long[i+utf8.RuneLen(c):]
	}
	return true
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to get from a to b. Names longer than any field's are far
// from everything.
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	var rows [3][longest + 1]int
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			d := min(row[j]+1, last[j+1]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, before[j-1]+1)
			}
			row[j+1] = d
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// quote returns s as messages show it: escaped, and short.
func quote(s string) string {
	return strconv.Quote(cut(s, 80))
}

// cut returns at most so many bytes of s, with a mark where that is not all.
func cut(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
