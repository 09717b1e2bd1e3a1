package controller

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// TestExpand_LogDiskHangs_ReadingsGoOn: the logs of a failed version are copied once, and Expand
// does not wait for that. The rollback takes effect when the copy has ended, or after a time.
func TestExpand_LogDiskHangs_ReadingsGoOn(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"the copy ends": true, "the copy hangs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := &node1{t: t, store: &mortal{shelf: newShelf(), left: -1}, state: map[string]*v1.PodStatus{}, hangs: make(chan struct{})}
				n.boot()
				defer func() { n.c.Close() }()
				n.turn(deployed("good"), healthy)
				time.Sleep(2 * time.Minute)
				n.turn(deployed("good"), healthy)
				bad := deployed("bad")
				for i := range 8 {
					began := time.Now()
					n.round(healthy, bad)
					if took := time.Since(began); took != time.Second {
						t.Errorf("call %d waited %v", i, took-time.Second)
					}
				}
				if images := n.images(); !strings.Contains(images, "bad") {
					t.Errorf("the logs are not kept yet, and the pods are of %s", images)
				}
				if ends {
					close(n.hangs)
				} else {
					defer close(n.hangs)
					time.Sleep(copyPatience)
				}
				synctest.Wait()
				select {
				case <-n.c.Due():
				default:
					t.Error("it is not due")
				}
				n.round(healthy, bad)
				check(t, "the pods", n.images(), "good good")
				if keeps := n.keeps.Load(); keeps != 1 {
					t.Errorf("the logs of %d pods were copied, want 1", keeps)
				}
			})
		})
	}
}

// TestKeep_ManyVersionsFail_CopiesAreBounded: a further copy begins when another one has ended.
func TestKeep_ManyVersionsFail_CopiesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun, hangs := make(chan string, maxCopies+1), make(chan struct{}) // each copy sends once
		c := decides(t, nil, func(cfg *Config) {
			cfg.Keep = func(o *pod.Object, _ workload.FailedVersion) {
				begun <- o.Name
				<-hangs
			}
		})
		now := time.Now()
		var all []*entry
		for i := range maxCopies + 1 {
			o := want(fmt.Sprintf("web-%d", i))
			e := newEntry(o.ObjectKey(), "")
			e.object = o
			if all = append(all, e); c.copyLogs(e, workload.FailedVersion{Number: 2}, now) {
				t.Errorf("%s does not wait", o.Name)
			}
		}
		synctest.Wait()
		last := all[maxCopies]
		if len(begun) != maxCopies || c.isDue(last, now) {
			t.Errorf("%d copies run; the last workload is due: %v", len(begun), c.isDue(last, now))
		}
		close(hangs)
		synctest.Wait()
		if !c.isDue(last, now) || c.copyLogs(last, workload.FailedVersion{Number: 2}, now) {
			t.Error("the last copy has not begun")
		}
		synctest.Wait()
		for _, e := range all {
			if !c.isDue(e, now) || !c.copyLogs(e, workload.FailedVersion{Number: 2}, now) {
				t.Errorf("%s waits for a copy that has ended", e.object.Name)
			}
		}
		if len(begun) != maxCopies+1 {
			t.Errorf("%d copies, want %d", len(begun), maxCopies+1)
		}
	})
}
