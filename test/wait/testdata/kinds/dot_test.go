package kinds

import (
	"testing"
	. "time"
)

func TestDotImport(t *testing.T) {
	Sleep(1)   // WAIT
	<-After(1) // WAIT
}
