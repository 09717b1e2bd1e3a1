package apiclient

import (
	"context"
	"net/http"
	"sync"
	"time"

	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// classes caches handlers of runtime classes. The handler of a class never changes, but a
// class may be deleted and created again.
type classes struct {
	mu    sync.Mutex // guards the fields below
	known map[string]class
}

type class struct {
	handler string
	asked   time.Time
}

const (
	// classFor is how long an answer about a runtime class is used.
	classFor = time.Minute
	// knownClassTimeout bounds a request about a class of which an older answer is known.
	knownClassTimeout = time.Second
)

// RuntimeHandler returns the runtime's handler of a RuntimeClass; ok is false where the
// server has no class of that name. The error says that the server did not answer, and
// never has before: whether there is such a class is not known.
func (r *Reader) RuntimeHandler(ctx context.Context, name string) (handler string, ok bool, err error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", false, nil
	}
	c := &r.classes
	c.mu.Lock()
	was, known := c.known[name]
	c.mu.Unlock()
	if known && time.Since(was.asked) < classFor {
		return was.handler, true, nil
	}
	timeout := fetchTimeout
	if known {
		timeout = knownClassTimeout
	}
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	var is nodev1.RuntimeClass
	err = r.fetch(ctx, request{
		method: http.MethodGet, path: []string{"apis", "node.k8s.io", "v1", "runtimeclasses", name}, purpose: "read runtimeclass/" + name,
	}, &is)
	if err == nil && (is.Name != name || is.Handler == "") { // which would be the runtime's default
		err = errPartial
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case isStatus(err, http.StatusNotFound):
		delete(c.known, name)
		return "", false, nil
	case err != nil && known:
		return was.handler, true, nil
	case err != nil:
		return "", false, err
	}
	if c.known == nil {
		c.known = make(map[string]class)
	}
	c.known[name] = class{is.Handler, time.Now()}
	return is.Handler, true, nil
}
