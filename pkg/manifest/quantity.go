package manifest

import "strings"

// The library that parses and compares quantities has no limits: for a large exponent it computes
// every digit, which takes hours and gigabytes. So it gets no text beyond these limits (F46).
const (
	longestQuantity = 1000 // bytes
	longestExponent = 3    // digits
)

// slowToParse reports whether text is beyond the limits for a quantity.
func slowToParse(text string) bool {
	text = strings.TrimSpace(text)
	if len(text) > longestQuantity {
		return true
	}
	i := strings.IndexAny(text, "eE")
	if i < 0 {
		return false
	}
	exponent := strings.TrimLeft(strings.TrimLeft(text[i+1:], "+-"), "0")
	return len(exponent) > longestExponent && strings.Trim(exponent, "0123456789") == ""
}

// mayBeSlow reports whether js may contain a quantity for which slowToParse is true. It finds each such
// quantity, and also some other texts.
func mayBeSlow(js []byte) bool {
	run := 0 // of digits and points
	for i, c := range js {
		switch {
		case c >= '0' && c <= '9' || c == '.':
			if run++; run > longestQuantity/10 {
				return true
			}
		case run > 0 && (c == 'e' || c == 'E'):
			if run = 0; longExponent(js[i+1:]) {
				return true
			}
		default:
			run = 0
		}
	}
	return false
}

// longExponent reports whether rest begins with an exponent that is too long. Digits with a letter after
// them are no exponent: digests contain such text.
func longExponent(rest []byte) bool {
	if len(rest) > 0 && (rest[0] == '+' || rest[0] == '-') {
		rest = rest[1:]
	}
	n := 0
	for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
		n++
	}
	return n > longestExponent && (n == len(rest) || !letter(rest[n]))
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
