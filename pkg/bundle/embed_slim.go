//go:build !bundle

package bundle

// carried is empty: this is the slim binary.
const carried = ""

func putBack() {}
