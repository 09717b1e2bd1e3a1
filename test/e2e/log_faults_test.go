package e2e

import (
	"regexp"
)

// counted is a line of the verb count, in a container's log.
var counted = regexp.MustCompile(`^\S+ stdout F line (\d+)\n$`)
