package dra

import (
	"context"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/activity"
)

// noteWait shows on the activity board that a pod waits for another operation on a claim, with the
// drivers of the claim, until the wait ends. The first operation on a claim does not wait.
func (c *Claims) noteWait(ctx context.Context, uid string) (end func()) {
	r, known := c.get(uid)
	if !known {
		return func() {}
	}
	var names []string
	for _, d := range r.Drivers {
		names = append(names, d.Name)
	}
	return activity.Begin(ctx, activity.Call{
		Kind: activity.Claim, Name: "another operation", Target: r.Name, Host: strings.Join(names, ", "), Limit: time.Now().Add(lockTimeout),
	})
}
