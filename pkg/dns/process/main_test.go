//go:build linux

package process

import (
	"fmt"
	"os"
	"testing"

	"github.com/nodectl/nodectl/test/suite"
)

// TestMain runs the tests in a network namespace of their own: they bind port 53, and add addresses to
// the loopback device.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 { // the tests that use the network fail without root
		if err := suite.OwnNetwork(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
