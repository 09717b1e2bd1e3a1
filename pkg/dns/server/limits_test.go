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

// A pod that sends from changing addresses gets no more than a few clients do: neither with the rates of
// these addresses, nor because its own rate is forgotten. A client whose address a connection has
// proven keeps its rate meanwhile, and a new one is referred to connections.
//
// Shows: D1
func TestClients_ForgedAddresses_TakeTheShareOfUnprovenOnes(t *testing.T) {
	l := DefaultLimits()
	c := newClients(l)
	begin := time.Unix(1000, 0)
	own, proven, fresh := netip.MustParseAddr("10.88.0.66"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.88.0.99")
	if !c.connect(proven, begin) {
		t.Fatal("no connection")
	}
	c.disconnect(proven)
	const seconds, each = 5, 40000
	forged, ofOwn, ofProven := 0, 0, 0
	for i := range seconds * each {
		now := begin.Add(time.Duration(i) * time.Second / each)
		if c.allow(netip.AddrFrom4([4]byte{172, byte(i >> 16), byte(i >> 8), byte(i)}), byDatagram, now) {
			forged++
		}
		if i%4 == 0 && c.allow(own, byDatagram, now) {
			ofOwn++
		}
		if i%(each/l.Rate) == 0 && c.allow(proven, byDatagram, now) {
			ofProven++
		}
	}
	if most := unprovenFactor * (l.Burst + seconds*l.Rate); forged+ofOwn > most {
		t.Errorf("%d and %d queries of one pod are allowed, want at most %d", forged, ofOwn, most)
	}
	if most := l.Burst + seconds*l.Rate; ofOwn > most {
		t.Errorf("%d queries from its own address are allowed, want at most %d", ofOwn, most)
	}
	if ofProven != seconds*l.Rate {
		t.Errorf("a proven client has %d answers, want %d", ofProven, seconds*l.Rate)
	}
	now := begin.Add(seconds * time.Second)
	for c.allow(netip.AddrFrom4([4]byte{172, 31, byte(forged >> 8), byte(forged)}), byDatagram, now) {
		forged++
	}
	if c.allow(fresh, byDatagram, now) || !c.allow(fresh, cut, now) {
		t.Error("a new client is not referred to connections")
	}
	if !c.connect(fresh, now) || !c.allow(fresh, byStream, now) || !c.allow(fresh, byDatagram, now) {
		t.Error("a new client has no rate of its own after a connection")
	}
	if n := len(c.rates) + len(c.older); n > l.Clients {
		t.Errorf("%d unproven clients are known", n)
	}
}

// A connection gives a client no new burst. Proven clients are bounded, one that still asks keeps its
// place, and one that has left makes room.
func TestClients_Proven_AreBoundedAndKeepTheirTokens(t *testing.T) {
	c := newClients(Limits{Rate: 1, Burst: 3, Clients: 100, Proven: 2, Connections: 10, ClientConnections: 10})
	now := time.Unix(1000, 0)
	one, two, three := netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("fe80::2%1"), netip.MustParseAddr("10.88.0.3")
	for range 3 {
		c.allow(one, byDatagram, now)
	}
	c.connect(one, now)
	c.connect(netip.MustParseAddr("fe80::2%eth0"), now)
	c.connect(three, now)
	if c.allow(one, byDatagram, now) {
		t.Error("a connection gave a client a new burst")
	}
	if c.proven[keyOf(two)] == nil || c.proven[three] != nil || len(c.proven) != 2 {
		t.Errorf("proven: %v", c.proven)
	}
	now = now.Add(provenIdle)
	c.allow(two, byDatagram, now)
	c.connect(three, now)
	if c.proven[one] != nil || c.proven[keyOf(two)] == nil || c.proven[three] == nil {
		t.Errorf("proven after a minute: %v", c.proven)
	}
}

// Queries of forged addresses take at most half of the places that wait for other servers. Clients with
// proven addresses, and connections, have the others.
//
// Shows: D1
func TestClients_UnprovenWait_OthersMayWait(t *testing.T) {
	c := newClients(DefaultLimits())
	var leave []func()
	for i := range 10000 {
		if result, end := c.enter(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), byDatagram); result == admitted {
			leave = append(leave, end)
		} else if result != tooManyUnproven {
			t.Fatalf("query %d: %v", i, result)
		}
	}
	one, two := netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("10.88.0.2")
	c.connect(one, time.Unix(1000, 0))
	for name, result := range map[string]func() (admission, func()){
		"proven":     func() (admission, func()) { return c.enter(one, byDatagram) },
		"connection": func() (admission, func()) { return c.enter(two, byStream) },
	} {
		if got, end := result(); got != admitted {
			t.Errorf("%s: %v while %d wait", name, got, c.waits)
		} else {
			end()
		}
	}
	for _, end := range leave {
		end()
	}
	if len(leave) != c.limits.Waiting/2 || c.waits+c.unproven+len(c.waiting) != 0 {
		t.Errorf("%d unproven clients could wait; left: %d %d %v", len(leave), c.waits, c.unproven, c.waiting)
	}
}

func TestClients_Counts_AreBoundedByClientAndInTotal(t *testing.T) {
	c := newClients(Limits{ClientWaiting: 2, Waiting: 3, ClientConnections: 1, Connections: 2})
	one, two, three := netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("::ffff:10.88.0.2"), netip.MustParseAddr("10.88.0.3")
	now := time.Unix(1000, 0)
	var ends []func()
	enter := func(from netip.Addr) bool {
		result, end := c.enter(from, byStream)
		if result == admitted {
			ends = append(ends, end)
		}
		return result == admitted
	}
	got := fmt.Sprint(enter(one), enter(one), enter(one), enter(two), enter(three))
	ends[0]()
	got += fmt.Sprint(" ", enter(three), c.connect(one, now), c.connect(one, now), c.connect(two, now), c.connect(three, now))
	c.disconnect(two)
	got += fmt.Sprint(" ", c.connect(three, now))
	if want := "true true false true false true true false true false true"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, end := range ends[1:] {
		end()
	}
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
		ends := make([][]func(), greedy)
		fill := func(i int) {
			for range c.limits.Waiting {
				if result, end := c.enter(client(i), byStream); result == admitted {
					ends[i] = append(ends[i], end)
				}
			}
		}
		for i := range greedy {
			fill(i)
			if n := c.waiting[client(i)]; n < 1 {
				t.Errorf("%d clients: the one that came as number %d may not wait", greedy, i+1)
			}
		}
		for range 50 { // answers come, and each client asks again at once
			for i := range greedy {
				ends[i][0]()
				ends[i] = ends[i][1:]
				fill(i)
			}
		}
		for i := range greedy {
			if n := c.waiting[client(i)]; n < 1 || greedy > 2 && n > c.limits.Waiting/greedy {
				t.Errorf("%d clients: one has %d of %d", greedy, n, c.limits.Waiting)
			}
		}
		if result, _ := c.enter(client(100), byStream); result != admitted {
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
