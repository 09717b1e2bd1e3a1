package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/backoff"
)

// followEvery is the shortest time between the starts of two watches. It grows to followRarely
// while the server does not let the node watch.
const (
	followEvery  = time.Second
	followRarely = 10 * time.Second
)

// follow watches the object, which a node is permitted to do, until ctx ends.
func (h *Heartbeat) follow(ctx context.Context) {
	since := "" // the resource version to go on from; "" lists first
	epoch := h.cfg.Epoch()
	wait, failing := followEvery, time.Duration(0)
	for ctx.Err() == nil {
		next := time.NewTimer(backoff.Jitter(wait, 1, 1.125)) // spread the nodes' retries
		var err error
		if since == "" {
			epoch = h.cfg.Epoch() //nolint:fatcontext // each epoch is a context of its own, of no other one
			since, err = h.list(ctx)
		}
		if since != "" {
			since, err = h.watchIn(ctx, epoch, since)
		}
		if ctx.Err() == nil {
			h.note("watch", err)
		}
		if wait = followEvery; err != nil {
			failing = backoff.Next(failing, followEvery, followRarely)
			wait = failing
		} else {
			failing = 0
		}
		select {
		case <-next.C:
		case <-ctx.Done():
		}
		next.Stop()
	}
}

func (h *Heartbeat) selector() string {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, h.cfg.Observer.Name()).String()
}

// list reads the object, and returns the resource version for a watch; "" asks for
// another list.
func (h *Heartbeat) list(ctx context.Context) (string, error) {
	changes := h.changeCount()
	all, err := h.nodes.List(ctx, metav1.ListOptions{FieldSelector: h.selector()})
	if err != nil {
		return "", err
	}
	if len(all.Items) > 0 {
		if !h.updateListed(&all.Items[0], changes) {
			return "", nil // the next list says which of the two is the newest
		}
	} else if !h.updateNoneListed(changes) {
		return "", nil
	}
	return all.ResourceVersion, nil
}

// watchIn is watch within an epoch of the server's data. After its end follow lists
// again: a watch of a resource version of the future gets no events (F71).
func (h *Heartbeat) watchIn(ctx, epoch context.Context, since string) (string, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(epoch, stop)()
	since, err := h.watch(ctx, since)
	if epoch.Err() != nil {
		return "", nil
	}
	return since, err
}

// watch receives changes until the server or ctx ends it, and returns the resource
// version for the next watch; "" asks for a list. Its end is no error.
func (h *Heartbeat) watch(ctx context.Context, since string) (string, error) {
	seconds := int64(300 + rand.IntN(300))
	w, err := h.watches.Watch(ctx, metav1.ListOptions{
		FieldSelector: h.selector(), ResourceVersion: since, TimeoutSeconds: &seconds, AllowWatchBookmarks: true,
	})
	if err != nil {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsTimeout(err) || apierrors.IsInvalid(err) {
			return "", nil
		}
		return since, err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		n, ok := e.Object.(*v1.Node)
		switch {
		case e.Type == watch.Error:
			err := apierrors.FromObject(e.Object)
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				err = nil
			}
			return "", err
		case !ok:
			return "", fmt.Errorf("watch of node %s: got an object of type %T", h.cfg.Observer.Name(), e.Object)
		case e.Type == watch.Deleted:
			h.deleted(n.UID)
		case e.Type != watch.Bookmark:
			h.update(n)
		}
		since = n.ResourceVersion
	}
	return since, nil
}
