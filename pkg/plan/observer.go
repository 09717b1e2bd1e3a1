package plan

import (
	"context"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Observer reads the runtime and has no method that changes anything.
type Observer interface {
	// Pods returns every pod on the runtime that carries our node's label, sorted by key and
	// read now. With an error it returns the pods that could be read; nil pods mean that
	// nothing is known.
	Pods(ctx context.Context) ([]pod.Actual, error)
	// Pod returns one pod, read now; an empty Actual (with its Key) when the
	// runtime shows nothing of it.
	Pod(ctx context.Context, key pod.Key) (pod.Actual, error)
	// Ready returns what the runtime reports of itself now. An error means that it
	// does not answer.
	Ready(ctx context.Context) (pod.RuntimeReady, error)
}
