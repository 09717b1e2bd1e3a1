// Package suggest finds the word that a mistyped one is most likely meant to be, for the
// messages about flags, commands, settings and fields.
//
// It is pure, and its cost is bounded for any input.
package suggest

// Similar returns the known word that is closest to a mistyped one, "" if none is close.
func Similar(word string, known []string) string {
	best, least := "", max(2, len(word)/3)+1
	for _, k := range known {
		if d := Distance(word, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// Distance is the number of letters to insert, delete, replace or swap with
// their neighbour to get from a to b. Names longer than any field's are far
// from everything.
func Distance(a, b string) int {
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
