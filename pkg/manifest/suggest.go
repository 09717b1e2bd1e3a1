package manifest

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nodectl/nodectl/pkg/suggest"
)

// nearest returns the known name that is most similar to an unknown one, "" if none is similar.
func nearest(name string, known []string) string {
	best, bestDistance := "", 1+max(len(name)/3, 1)
	for _, k := range known {
		d := suggest.Distance(strings.ToLower(name), strings.ToLower(k))
		// A name of which letters are missing is similar if it has more than half of the letters:
		// workdir is similar to workingDir, grace is not to terminationGracePeriodSeconds.
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

// quote returns s in quotes for a message: escaped, and shortened to 80 bytes.
func quote(s string) string {
	return strconv.Quote(cut(s, 80))
}

// cut returns the first most bytes of s. It adds an ellipsis if that is not all.
func cut(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
