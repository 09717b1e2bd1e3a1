package apiserver

import "time"

// bucket is a token bucket: it allows qps requests a second, and burst at once.
type bucket struct {
	qps, burst float64
	left       float64
	at         time.Time // when left was counted
}

func newBucket(qps float64, burst int, now time.Time) *bucket {
	b := max(float64(burst), 1)
	return &bucket{qps: qps, burst: b, left: b, at: now}
}

// take takes one token; when there is none, it returns how long to wait for one.
func (b *bucket) take(now time.Time) (wait time.Duration) {
	if b.qps <= 0 {
		return 0
	}
	b.left = min(b.left+now.Sub(b.at).Seconds()*b.qps, b.burst)
	b.at = now
	if b.left < 1 {
		return time.Duration((1-b.left)/b.qps*float64(time.Second)) + time.Millisecond
	}
	b.left--
	return 0
}

// giveBack returns a token that was not used.
func (b *bucket) giveBack() { b.left++ }
