package server

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A client has its burst, then its rate. Forged addresses do not make the memory grow.
func TestClients_Rate_IsEachClientsOwnAndBounded(t *testing.T) {
	c := newClients(Limits{Rate: 10, Burst: 5, Clients: 100})
	now := time.Unix(1000, 0)
	one, two := netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("10.88.0.2")
	allowed := func(who netip.Addr, n int) (yes int) {
		for range n {
			if c.allow(who, byDatagram, now) {
				yes++
			}
		}
		return yes
	}
	if got := allowed(one, 20); got != 5 {
		t.Errorf("burst of %d", got)
	}
	if got := allowed(two, 20); got != 5 {
		t.Errorf("another client's burst of %d", got)
	}
	now = now.Add(300 * time.Millisecond)
	if got := allowed(one, 20); got != 3 {
		t.Errorf("%d after 300 ms", got)
	}
	now = now.Add(-time.Hour) // a clock that jumps
	if got := allowed(one, 20); got != 0 {
		t.Errorf("%d after a jump back", got)
	}
	now = now.Add(time.Hour)
	for i := range 100000 {
		c.allow(netip.AddrFrom4([4]byte{172, byte(i >> 16), byte(i >> 8), byte(i)}), byDatagram, now)
		if i%40 == 0 {
			c.allow(one, byDatagram, now)
		}
	}
	if n := len(c.rates) + len(c.older); n > 100 {
		t.Errorf("%d clients are known", n)
	}
	if c.allow(one, byDatagram, now) {
		t.Error("a client that asks often was forgotten, and has a new burst")
	}
}

func TestClients_Counts_AreBoundedByClientAndInTotal(t *testing.T) {
	c := newClients(Limits{ClientWaiting: 2, Waiting: 3, ClientConnections: 1, Connections: 2})
	one, two, three := netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("::ffff:10.88.0.2"), netip.MustParseAddr("10.88.0.3")
	got := fmt.Sprint(c.enter(one), c.enter(one), c.enter(one), c.enter(two), c.enter(three))
	c.leave(one)
	got += fmt.Sprint(" ", c.enter(three), c.connect(one), c.connect(one), c.connect(two), c.connect(three))
	c.disconnect(two)
	got += fmt.Sprint(" ", c.connect(three))
	if want := "true true false true false true true false true false true"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	c.leave(one)
	c.leave(two)
	c.leave(three)
	c.disconnect(one)
	c.disconnect(three)
	if len(c.waiting)+len(c.connections)+c.waits+c.connected != 0 {
		t.Errorf("left: %v %v %d %d", c.waiting, c.connections, c.waits, c.connected)
	}
}

// Queries that panic do not fill the log: one a minute is logged, with their number.
func TestServer_ManyPanics_OneAMinuteIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := New(DefaultLimits(), slog.New(slog.NewTextHandler(&log, nil)))
		for range 100 {
			s.safely(func() { panic("broken") })
		}
		time.Sleep(panicEvery)
		s.safely(func() { panic("broken") })
		text := log.String()
		if strings.Count(text, "level=ERROR") != 2 || !strings.Contains(text, "count=1 ") || !strings.Contains(text, "count=100 ") || s.Counts().Panics != 101 {
			t.Errorf("%d panics, log: %s", s.Counts().Panics, text)
		}
	})
}

// Greedy clients leave room for others. Four would fill the limit of all if each had the limit of one
// client.
func TestClients_SeveralWaitALot_OthersMayWait(t *testing.T) {
	client := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 88, 0, byte(i)}) }
	for _, greedy := range []int{1, 4, 8, 12} {
		c := newClients(DefaultLimits())
		for i := range greedy {
			for range c.limits.Waiting {
				c.enter(client(i))
			}
			if n := c.waiting[client(i)]; n < 1 {
				t.Errorf("%d clients: the one that came as number %d may not wait", greedy, i+1)
			}
		}
		for range 50 { // answers come, and each client asks again at once
			for i := range greedy {
				c.leave(client(i))
				for range c.limits.Waiting {
					c.enter(client(i))
				}
			}
		}
		for i := range greedy {
			if n := c.waiting[client(i)]; n < 1 || greedy > 2 && n > c.limits.Waiting/greedy {
				t.Errorf("%d clients: one has %d of %d", greedy, n, c.limits.Waiting)
			}
		}
		if !c.enter(client(100)) {
			t.Errorf("%d clients: %d of %d wait, and another one may not", greedy, c.waits, c.limits.Waiting)
		}
	}
}

func TestCache_Full_ForgetsTheOldest(t *testing.T) {
	c := newCache(3, 1<<20)
	now := time.Unix(1000, 0)
	for i := range 5 {
		c.put(fmt.Sprint(i), []byte{byte(i)}, now, time.Minute)
	}
	has := func(at time.Time) (keys string) {
		for i := range 5 {
			if _, age, ok := c.get(fmt.Sprint(i), at); ok {
				keys += fmt.Sprint(i, ":", age, " ")
			}
		}
		return keys
	}
	if got := has(now.Add(3 * time.Second)); got != "2:3s 3:3s 4:3s " {
		t.Errorf("%q", got)
	}
	if got := has(now.Add(time.Minute)); got != "" || c.size != 0 || len(c.by) != 0 {
		t.Errorf("after a minute: %q, %d bytes, %d keys", got, c.size, len(c.by))
	}
	c = newCache(1000, 16*1024)
	for i := range 1000 {
		c.put(fmt.Sprint(i), make([]byte, 500), now, time.Minute)
		if c.size > 16*1024 {
			t.Fatalf("%d bytes", c.size)
		}
	}
	c.put("large", make([]byte, 4096), now, time.Minute)
	if _, _, ok := c.get("large", now); ok || c.order.Len() < 10 {
		t.Errorf("one answer displaced others: %d are left", c.order.Len())
	}
}
