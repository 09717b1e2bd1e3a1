package apiserver

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerConforms(t *testing.T) {
	for _, json := range []bool{false, true} {
		name := "protobuf"
		if json {
			name = "JSON"
		}
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				s := newServer(t)
				s.json = json
				return s.fixture(t)
			})
		})
	}
}
