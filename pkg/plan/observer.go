package plan

import (
	"context"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Observer reads the runtime and has no method that changes anything.
type Observer interface {
	// Pods reads all pods on the runtime that carry our node's label, sorted by key. With an
	// error it returns the pods that could be read, or nil.
	Pods(ctx context.Context) ([]pod.Actual, error)
	// Pod reads one pod. If the runtime shows nothing of it, only the Key of the result is set.
	Pod(ctx context.Context, key pod.Key) (pod.Actual, error)
	// Ready returns the state that the runtime reports of itself. An error means that it does
	// not answer.
	Ready(ctx context.Context) (pod.RuntimeReady, error)
}
