package sorted

// Changed returns the elements of one sorted slice whose pointers another one lacks, and the other way
// around. If an element is replaced by one that compares as equal, the result has both.
func Changed[E any](before, after []*E, compare func(a, b *E) int) (gone, came []*E) {
	for len(before) > 0 && len(after) > 0 {
		if before[0] == after[0] {
			before, after = before[1:], after[1:]
			continue
		}
		order := compare(before[0], after[0])
		if order <= 0 {
			gone, before = append(gone, before[0]), before[1:]
		}
		if order >= 0 {
			came, after = append(came, after[0]), after[1:]
		}
	}
	return append(gone, before...), append(came, after...)
}
