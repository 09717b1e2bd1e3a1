package pod

import (
	"context"
	"time"
)

// PullNews is one step on the way to an image that a container needs: it is there
// already, it is being pulled, or it was pulled.
type PullNews struct {
	Image   string // as the runtime is asked for it
	Present bool   // it was there, and the pod may use it
	Pulled  bool   // it was pulled just now; neither: it is about to be
	Took    time.Duration
	Waited  time.Duration // Took, and what the pull waited for others before
	Bytes   int64         // of the image; 0 is unknown
}

type pullNewsKey struct{}

// WithPullNews returns a context by which who makes images present tells hear of every
// step. hear is called from the goroutine that waits for the image, and must not wait.
func WithPullNews(ctx context.Context, hear func(PullNews)) context.Context {
	return context.WithValue(ctx, pullNewsKey{}, hear)
}

// TellPull tells whoever gave ctx, where anybody wants to hear.
func TellPull(ctx context.Context, n PullNews) {
	if hear, ok := ctx.Value(pullNewsKey{}).(func(PullNews)); ok {
		hear(n)
	}
}

type warningKey struct{}

// WithWarnings returns a context by which who makes or asks something of a pod tells
// what a person should hear of although it went well, with the reason of its event.
// hear may be called from any goroutine, and must not wait.
func WithWarnings(ctx context.Context, hear func(reason, message string)) context.Context {
	return context.WithValue(ctx, warningKey{}, hear)
}

// Warn tells whoever gave ctx, where anybody wants to hear.
func Warn(ctx context.Context, reason, message string) {
	if hear, ok := ctx.Value(warningKey{}).(func(reason, message string)); ok {
		hear(reason, message)
	}
}
