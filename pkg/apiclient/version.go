package apiclient

import "strings"

// Older reports whether resource version a is certainly of an earlier time than b. Where
// one of the two is not a decimal number, the order is not defined, and it is false.
func Older(a, b string) bool {
	if !isDecimal(a) || !isDecimal(b) {
		return false
	}
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return a < b
}

func isDecimal(s string) bool {
	return s != "" && s[0] != '0' && strings.Trim(s, "0123456789") == ""
}
