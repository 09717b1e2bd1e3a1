package engine

import (
	"testing"
	"time"
)

// A deletion gets less grace, and then none, while the runtime already stops a container
// without a hook. The worker calls the runtime again, at last with the minimum (C-1.23.5),
// and the earlier calls end with it. It never gives more grace.
//
// Shows: C-1.16.12
func TestC_1_16_12_ForceDeleteStopsASecondTime(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		web := of("api", "/k", mkpod("web", image("ignore-term"), graceSeconds(600)))
		m.src.name = "api:/k"
		m.src.set(web)
		m.arrive()
		m.rt.Reset()
		m.src.set(deletedAt(web, 600))
		m.pass(10 * time.Second)
		m.want("default/web sandbox attempt=0 ready", "default/web/app attempt=0 running")
		m.src.set(deletedAt(web, 100))
		m.pass(10 * time.Second)
		m.src.set(deletedAt(web, 500))
		m.pass(10 * time.Second)
		m.src.set(deletedAt(web, 0))
		m.pass(time.Minute)
		transcript(t, m, `
0s StopContainer default/web/app attempt=0 grace=600
10s StopContainer default/web/app attempt=0 grace=100
30s StopContainer default/web/app attempt=0 grace=2
32s StopPodSandbox default/web attempt=0
32s RemoveContainer default/web/app attempt=0
32s RemovePodSandbox default/web attempt=0`)
		if got := m.disk.ran(); len(got) != 0 {
			t.Errorf("%d hooks ran", len(got))
		}
	})
}

// TestStop_GraceLongerThanADuration_IsNotCutShort: the API accepts a grace of thousands of years. The
// container still gets its time, and the pod is neither overdue nor deleted in the past.
func TestStop_GraceLongerThanADuration_IsNotCutShort(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		const grace = 1 << 40
		web := of("api", "/k", mkpod("web", image("ignore-term"), graceSeconds(grace)))
		m.src.name = "api:/k"
		m.src.set(web)
		m.arrive()
		m.rt.Reset()
		m.src.set(deletedAt(web, grace))
		m.pass(time.Hour)
		m.want("default/web sandbox attempt=0 ready", "default/web/app attempt=0 running")
		if got := m.statusOf("web").Reason; got != "" {
			t.Errorf("status reason %q", got)
		}
		m.src.set(deletedAt(web, 0))
		m.pass(time.Minute)
		transcript(t, m, `
0s StopContainer default/web/app attempt=0 grace=3153600000
1h0m0s StopContainer default/web/app attempt=0 grace=2
1h0m2s StopPodSandbox default/web attempt=0
1h0m2s RemoveContainer default/web/app attempt=0
1h0m2s RemovePodSandbox default/web attempt=0`)
	})
}
