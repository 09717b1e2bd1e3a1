package device

import (
	"context"

	"github.com/nodectl/nodectl/pkg/activity"
)

// note shows on the activity board that a container waits for devices of a resource, for "nodectl why",
// until the wait ends.
func note(ctx context.Context, container, resource string) (end func()) {
	return activity.Begin(ctx, activity.Call{Kind: activity.Plugin, Name: "allocate devices", Target: container, Host: resource})
}
