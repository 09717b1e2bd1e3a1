package engine

import (
	"log/slog"
	"maps"
	"time"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
)

// reportRetry is how long the reporter waits after a sink failed.
const reportRetry = 5 * time.Second

// statusOutput is the destination of the sync loop's statuses.
type statusOutput struct {
	feed      *feed.Publisher
	listeners []Sink // see Config.Listeners
	reporter  *reporter
}

// report passes a status to the feed and the listeners before it returns, and queues it for the
// sinks.
func (o *statusOutput) report(key pod.Key, line pod.StatusReport) {
	o.feed.PublishStatus(key, line)
	for _, listener := range o.listeners {
		_ = listener.Report(line) // never fails
	}
	o.reporter.add(key, line)
}

// reporter sends statuses to the sinks in its own goroutine, so that a slow or full disk never
// delays the sync loop. At most one batch waits, with the newest status of each pod.
type reporter struct {
	statuses chan map[pod.Key]pod.StatusReport // capacity 1, see add
	sinks    []Sink
	log      *slog.Logger
}

func newReporter(sinks []Sink, log *slog.Logger) *reporter {
	return &reporter{statuses: make(chan map[pod.Key]pod.StatusReport, 1), sinks: sinks, log: log}
}

// add queues a status without waiting; only the sync loop calls it.
func (r *reporter) add(key pod.Key, line pod.StatusReport) {
	batch := map[pod.Key]pod.StatusReport{key: line}
	select {
	case waiting := <-r.statuses:
		maps.Copy(waiting, batch)
		batch = waiting
	default:
	}
	r.statuses <- batch // there is room: only this goroutine sends
}

func (r *reporter) close() { close(r.statuses) }

// run sends batches to the sinks until close. If a sink returns an error for a status, run keeps
// the newest status of that pod. It sends it again with the next batch, or after reportRetry. It
// logs a sink's first error, and another one only after the sink has taken everything.
func (r *reporter) run() {
	again := make([]map[pod.Key]pod.StatusReport, len(r.sinks))
	logged := make([]bool, len(r.sinks))
	retry := time.NewTicker(reportRetry)
	defer retry.Stop()
	for open := true; open; {
		var batch map[pod.Key]pod.StatusReport
		select {
		case batch, open = <-r.statuses:
		case <-retry.C:
		}
		for i, s := range r.sinks {
			lines := batch
			if len(again[i]) > 0 {
				maps.Copy(again[i], batch)
				lines = again[i]
			}
			var err error
			if again[i], err = reportTo(s, lines); err != nil && !logged[i] {
				r.log.Warn("Failed to write status; retrying", "error", err)
			}
			logged[i] = err != nil
		}
	}
}

// reportTo sends lines to a sink and returns those for which the sink returned an error.
func reportTo(s Sink, lines map[pod.Key]pod.StatusReport) (left map[pod.Key]pod.StatusReport, err error) {
	for _, key := range sortedKeys(lines) {
		line := lines[key]
		if lost := s.Report(line); lost != nil {
			if left == nil {
				left = make(map[pod.Key]pod.StatusReport)
			}
			left[key], err = line, lost
		}
	}
	return left, err
}
