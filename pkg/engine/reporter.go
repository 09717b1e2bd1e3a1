package engine

import (
	"log/slog"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// reportRetry is how long a sink that failed is left alone.
const reportRetry = 5 * time.Second

// reporter carries statuses to the sinks, so that a slow or full disk never
// holds the sync loop. What waits is one letter with the newest status per pod.
type reporter struct {
	letters chan map[pod.Key]statusLine // capacity 1, see say
	sinks   []Sink
	log     *slog.Logger
}

// statusLine is one status on its way to the sinks.
type statusLine struct {
	pod    *v1.Pod
	origin pod.Origin
	gone   bool
	at     time.Time
}

func newReporter(sinks []Sink, log *slog.Logger) *reporter {
	return &reporter{letters: make(chan map[pod.Key]statusLine, 1), sinks: sinks, log: log}
}

// say hands a status on without waiting; the sync loop alone calls it.
func (r *reporter) say(key pod.Key, line statusLine) {
	letter := map[pod.Key]statusLine{key: line}
	select {
	case waiting := <-r.letters:
		maps.Copy(waiting, letter)
		letter = waiting
	default:
	}
	r.letters <- letter // there is room: only this goroutine sends
}

func (r *reporter) close() { close(r.letters) }

// run carries letters until close. What a sink does not take, a full disk above
// all, is kept, the newest line of each pod, and offered again.
func (r *reporter) run() {
	again := make([]map[pod.Key]statusLine, len(r.sinks))
	told := make([]bool, len(r.sinks))
	retry := time.NewTicker(reportRetry)
	defer retry.Stop()
	for open := true; open; {
		var letter map[pod.Key]statusLine
		select {
		case letter, open = <-r.letters:
		case <-retry.C:
		}
		for i, s := range r.sinks {
			lines := letter
			if len(again[i]) > 0 {
				maps.Copy(again[i], letter)
				lines = again[i]
			}
			var err error
			if again[i], err = deliver(s, lines); err != nil && !told[i] {
				r.log.Warn("Status not written; it is tried again", "error", err)
			}
			told[i] = err != nil
		}
	}
}

// deliver gives lines to a sink and returns those it did not take.
func deliver(s Sink, lines map[pod.Key]statusLine) (left map[pod.Key]statusLine, err error) {
	for _, key := range sortedKeys(lines) {
		line := lines[key]
		if lost := s.Report(line.pod, line.origin, line.gone, line.at); lost != nil {
			if left == nil {
				left = make(map[pod.Key]statusLine)
			}
			left[key], err = line, lost
		}
	}
	return left, err
}
