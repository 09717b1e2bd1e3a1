package apiclient

import "sync"

// reachability notices that the server answers again after it could not be reached. The zero value
// knows of no failure. Many goroutines may use it.
type reachability struct {
	mu       sync.Mutex
	lost     bool          // a request got no response, and none was answered since
	returned chan struct{} // closed by the next answered; nil until it is asked for
}

// failed notes a request that got no response.
func (r *reachability) failed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
}

// answered notes a request that got a response without an error.
func (r *reachability) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost && r.returned != nil {
		close(r.returned)
		r.returned = nil
	}
	r.lost = false
}

// Recovered returns a channel that is closed when the server answers a request without an error
// after one that got no response.
func (c *Client) Recovered() <-chan struct{} {
	r := &c.reachability
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.returned == nil {
		r.returned = make(chan struct{})
	}
	return r.returned
}
