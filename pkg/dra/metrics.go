package dra

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// count reports each call to a driver for metrics.
func (c *Claims) count(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, q, answer any, conn *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		began := time.Now()
		err := call(ctx, method, q, answer, conn, o...)
		if c.cfg.Called != nil {
			c.cfg.Called(driver, method, codeOf(err), time.Since(began))
		}
		return err
	}
}

// codeOf returns the name of an error's gRPC code. A driver may return any number. For a number without
// a name, codeOf returns Unknown.
func codeOf(err error) string {
	code := status.Code(err)
	if code > codes.Unauthenticated {
		code = codes.Unknown
	}
	return code.String()
}

// handled reports an operation on all claims of a pod for metrics.
func (c *Claims) handled(operation string, began time.Time, err error) {
	if c.cfg.Handled != nil {
		c.cfg.Handled(operation, time.Since(began), err)
	}
}

// setLocked changes the record of a claim in memory. The caller holds c.mu. A claim is in use after all of
// its drivers have prepared it, until all have unprepared it.
func (c *Claims) setLocked(uid string, r record) {
	c.claims[uid], c.served = r, true
	switch {
	case r.prepared(c.boot):
		c.inUse[uid] = true
	case !r.begun():
		delete(c.inUse, uid)
	}
}

// InUse returns the number of claims in use, in total and by driver. ok is false until the node has had a
// driver.
func (c *Claims) InUse() (all int, drivers map[string]int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	drivers = make(map[string]int)
	for uid := range c.inUse {
		for _, d := range c.claims[uid].Drivers {
			drivers[d.Name]++
		}
	}
	return len(c.inUse), drivers, c.served
}
