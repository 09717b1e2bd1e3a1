package engine

import (
	"log/slog"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

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

func (r *reporter) run() {
	failed := make(map[int]string, len(r.sinks))
	for letter := range r.letters {
		for _, key := range sortedKeys(letter) {
			line := letter[key]
			for i, s := range r.sinks {
				text := ""
				if err := s.Report(line.pod, line.origin, line.gone, line.at); err != nil {
					text = err.Error()
				}
				if text != failed[i] && text != "" {
					r.log.Warn("Status not written", "pod", key.String(), "error", text)
				}
				failed[i] = text
			}
		}
	}
}
