package apiclient

import "testing"

// Resource versions have an order where both are decimal numbers, of equal length or not.
// Others have none: they are never older.
func TestOlder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"9", "10", true}, // decimal: the shorter number is the smaller one
		{"10", "9", false},
		{"99", "100", true},
		{"18446744073709551615", "18446744073709551616", true}, // larger than 64 bits
		{"17", "18", true}, // of equal length
		{"18", "17", false},
		{"17", "17", false},
		{"", "1", false},
		{"1", "", false},
		{"", "", false},
		{"0", "1", false},
		{"01", "2", false},
		{"aaa", "bbb", false},
		{"a", "10", false},
		{"10", "b00", false},
		{"-1", "1", false},
	} {
		if got := Older(c.a, c.b); got != c.want {
			t.Errorf("Older(%q, %q) = %t", c.a, c.b, got)
		}
	}
}
