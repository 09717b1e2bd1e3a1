package stats_test

import (
	"os"
	"testing"

	"github.com/nodectl/nodectl/test/node"
)

func TestMain(m *testing.M) { os.Exit(node.Main(m)) }
