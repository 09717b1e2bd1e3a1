package server

import (
	"container/list"
	"time"
)

// cache stores answers of other servers. When it is full, it drops the oldest ones.
type cache struct {
	entries, bytes int // limits
	size           int
	order          *list.List // of *cached, oldest first
	by             map[string]*list.Element
}

// cached is one answer.
type cached struct {
	key   string
	msg   []byte
	from  time.Time
	until time.Time
}

func newCache(entries, bytes int) *cache {
	return &cache{entries: entries, bytes: bytes, order: list.New(), by: make(map[string]*list.Element)}
}

// get returns an answer and its age. Callers must not change the answer.
func (c *cache) get(key string, now time.Time) (msg []byte, age time.Duration, ok bool) {
	e := c.by[key]
	if e == nil {
		return nil, 0, false
	}
	k := e.Value.(*cached)
	if !now.Before(k.until) || now.Before(k.from) {
		c.drop(e)
		return nil, 0, false
	}
	return k.msg, now.Sub(k.from), true
}

// put stores an answer for the duration life.
func (c *cache) put(key string, msg []byte, now time.Time, life time.Duration) {
	if e := c.by[key]; e != nil {
		c.drop(e)
	}
	k := &cached{key: key, msg: msg, from: now, until: now.Add(life)}
	if k.weight() > c.bytes/16 { // a large answer would displace many others
		return
	}
	c.by[key] = c.order.PushBack(k)
	c.size += k.weight()
	for c.order.Len() > c.entries || c.size > c.bytes {
		c.drop(c.order.Front())
	}
}

func (c *cache) drop(e *list.Element) {
	k := c.order.Remove(e).(*cached)
	delete(c.by, k.key)
	c.size -= k.weight()
}

// weight estimates the memory of an answer, in bytes.
func (k *cached) weight() int { return len(k.msg) + 2*len(k.key) + 256 }
