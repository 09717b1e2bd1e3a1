package e2e

import (
	"fmt"
	"testing"
	"time"
)

func TestZZ(t *testing.T) {
	for _, method := range []string{"RunPodSandbox", "StartContainer"} {
		for i := range 14 {
			d := time.Duration(3+i*6) * time.Millisecond
			t.Run(fmt.Sprint(method, d), func(t *testing.T) {
				s := newStage(t, shared)
				e := s.executioner()
				working[method] = d
				n := 1
				if method == "StartContainer" {
					n = 3
				}
				s.write("web.yaml", manifest("web", []string{container("main", "forever")}, "hostNetwork: true"))
				a := s.serve()
				e.arm(a, moment{n, true})
				e.disarm(s)
				s.serve()
				s.awaitReady("web", true)
				s.remove("web.yaml")
				s.awaitGone("web")
				<-time.After(300 * time.Millisecond)
				if l := shared.Look(); len(l.Processes) > 0 {
					t.Log(l.Processes)
				}
			})
		}
	}
}
