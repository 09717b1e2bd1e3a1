//go:build !race && !full

package manifest

// smaller is how much smaller the largest documents of the tests are than those of people.
const smaller = 4
