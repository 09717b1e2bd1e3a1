// Package tier lets a test of both tiers draw more random cases in the full one.
//
// It is for packages that start no goroutines, cmd and pkg/podconfig: hack/test runs all of
// their tests in the full tier, too. Of other packages the full tier runs only the tests in
// files with its build tag.
package tier

// Pick returns first in the first tier and full in the full one. Where it is a number of seeds,
// the full tier draws those of the first tier, too, if seeds begin at zero.
func Pick(first, full int) int {
	if isFull {
		return full
	}
	return first
}
