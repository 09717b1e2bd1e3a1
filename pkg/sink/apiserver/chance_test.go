package apiserver

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestRandomFailures: reports, deletions, pods created again, late or lost watch
// events and a server that fails in every way, in random order. Then nothing fails for
// a while, and the server must hold the last reported status of every pod. The test's
// server checks that no pod leaves a terminal phase, that no pod has two requests at a
// time, and that requests name a UID.
func TestRandomFailures(t *testing.T) {
	t.Parallel()
	randomFailures(t, 40)
}

// randomFailures runs as many sequences as seeds says, each from its own seed.
func randomFailures(t *testing.T, seeds uint64) {
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				c := &chance{node: n, Rand: rand.New(rand.NewPCG(seed, 6)), own: map[string]*v1.Pod{}, said: map[string]int32{}, static: map[string]string{}, shown: map[string]*v1.Pod{}}
				c.run(t)
			})
		})
	}
}

// chance is the state of one run. It belongs to the test's goroutine.
type chance struct {
	*node
	*rand.Rand
	uids   int
	own    map[string]*v1.Pod // the server's pods that run on this node, by name
	said   map[string]int32   // the last reported restart count; -1: it terminated
	static map[string]string  // hashes
	ending []*v1.Pod          // with grace
	shown  map[string]*v1.Pod // as a source would see them; the server's lock guards it
}

// show is the watch of a source; the server's lock is held.
func (c *chance) show(p *v1.Pod, gone bool) {
	if c.shown[p.Name] = p; gone {
		delete(c.shown, p.Name)
	}
	c.ObservePod(p, gone)
}

// relist shows which pods exist and which do not; the server's lock is held.
func (c *chance) relist() {
	for name, was := range c.shown {
		if is := c.server.pods[name]; is == nil || is.UID != was.UID {
			c.show(was, true)
		}
	}
	for _, p := range c.server.pods {
		c.show(p.DeepCopy(), false)
	}
}

func (c *chance) watch(on bool) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.shows = nil; on {
		c.shows = c.show
		c.relist()
	}
}

func (c *chance) run(t *testing.T) {
	c.shows = c.show
	for range 120 {
		pick := func(kind string, of int) string { return fmt.Sprint(kind, c.IntN(of)) }
		switch c.IntN(12) {
		case 0, 1, 2, 3:
			c.sayOne(pick("p", 4))
		case 4:
			c.make(pick("p", 4))
		case 5:
			c.delete(pick("p", 4))
		case 6:
			c.sayStatic(pick("s", 3))
		case 7:
			c.dropMirror(pick("s", 3))
		case 8:
			codes := []int{0, 0, -1, -2, 401, 403, 404, 409, 413, 422, 429, 500, 503}
			code, share, draws := codes[c.IntN(len(codes))], c.Float64(), rand.New(rand.NewPCG(c.Uint64(), 1))
			c.says(func(call) (int, http.Header) { // under the server's lock
				if draws.Float64() < share {
					return code, nil
				}
				return 0, nil
			})
		case 9:
			c.watch(c.IntN(2) == 0)
		default:
			pass(time.Duration(c.IntN(3000)) * time.Millisecond)
		}
	}
	c.says(nil)
	c.watch(true)
	c.Synced()
	pass(8 * time.Minute)        // more than the longest pause
	for _, p := range c.ending { // the engine sees objects disappear
		if is := c.pod(p.Name); is == nil {
			c.tell(p, statusOf(v1.PodFailed, "False", endedState(143, "")), forGood)
		}
	}
	pass(time.Minute)
	c.judge(t)
	before := len(c.calls("", ""))
	pass(5 * time.Minute)
	if now := c.calls("", ""); len(now) != before {
		t.Errorf("%d requests while nothing happens, the last %+v", len(now)-before, now[len(now)-1])
	}
}

func (c *chance) make(name string) {
	if c.pod(name) != nil {
		return
	}
	if old := c.own[name]; old != nil {
		c.tell(old, statusOf(v1.PodFailed, "False", endedState(137, "")), forGood)
	}
	c.server.mu.Lock()
	c.uids++
	p := staticPod(name, "")
	p.UID, p.Annotations, p.Generation = types.UID(fmt.Sprint("uid-", c.uids)), nil, 1
	p.Status = v1.PodStatus{Phase: v1.PodPending}
	c.store(p)
	c.server.mu.Unlock()
	c.own[name], c.said[name] = p.DeepCopy(), 0
	c.tell(c.own[name], runningStatus())
}

func (c *chance) sayOne(name string) {
	p := c.own[name]
	if p == nil || c.said[name] < 0 {
		return
	}
	if c.IntN(8) == 0 {
		c.said[name] = -1
		c.tell(p, statusOf(v1.PodSucceeded, "False", endedState(0, "")))
		return
	}
	c.said[name]++
	c.tell(p, restarted(c.said[name]))
}

// delete deletes a pod, with a grace period or by force.
func (c *chance) delete(name string) {
	p := c.own[name]
	if p == nil {
		return
	}
	delete(c.own, name)
	end := statusOf(v1.PodFailed, "False", endedState(143, ""))
	if is := c.pod(name); c.IntN(2) == 0 && is != nil && is.UID == p.UID {
		c.ending = append(c.ending, c.change(name, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }))
		c.tell(c.ending[len(c.ending)-1], end, over)
		return
	}
	c.server.mu.Lock()
	if is := c.server.pods[name]; is != nil && is.UID == p.UID {
		delete(c.server.pods, name)
		c.server.show(is, true)
	}
	c.server.mu.Unlock()
	c.tell(p, end, forGood)
}

func (c *chance) sayStatic(name string) {
	hash := fmt.Sprint("h", c.IntN(3))
	if c.static[name] != "" && c.IntN(5) == 0 {
		c.tell(staticPod(name, c.static[name]), runningStatus(), ofFile, forGood)
		delete(c.static, name)
		return
	}
	c.static[name] = hash
	c.said[name]++
	c.tell(staticPod(name, hash), restarted(c.said[name]), ofFile)
}

func (c *chance) dropMirror(name string) {
	if c.pod(name) == nil {
		return
	}
	if c.IntN(2) == 0 {
		c.change(name, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		return
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	is := c.server.pods[name]
	delete(c.server.pods, name)
	c.server.show(is, true)
}

// judge compares the server's objects with the reports.
func (c *chance) judge(t *testing.T) {
	for _, name := range []string{"p0", "p1", "p2", "p3"} {
		is, own := c.pod(name), c.own[name]
		switch {
		case own == nil && is != nil:
			t.Errorf("%s is there: %+v", name, is)
		case own == nil:
		case is == nil:
			t.Errorf("%s is not there", name)
		case c.said[name] < 0 && is.Status.Phase != v1.PodSucceeded, c.said[name] >= 0 && (is.Status.Phase != v1.PodRunning || is.Status.ContainerStatuses[0].RestartCount != c.said[name]):
			t.Errorf("%s: %+v, %d was reported", name, is.Status, c.said[name])
		}
	}
	for _, name := range []string{"s0", "s1", "s2"} {
		is, hash := c.pod(name), c.static[name]
		switch {
		case hash == "" && is != nil:
			t.Errorf("mirror %s is there", name)
		case hash == "":
		case !hasHash(is, hash) || is.Status.ContainerStatuses[0].RestartCount != c.said[name]:
			t.Errorf("mirror %s: %+v, %s %d was reported", name, is, hash, c.said[name])
		}
	}
	if kept := len(c.loop.entries); kept > len(c.own)+len(c.static) {
		t.Errorf("%d entries are kept of %d pods", kept, len(c.own)+len(c.static))
	}
}
