package sink

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/wait"
)

// events: as the kubelet's, counted when they repeat; kubectl finds those of a mirror pod, a
// pod and a node.
func events(t *testing.T, a *agent) {
	p := a.c.CreatePod(t, cluster.Pod(a.name, "reported"))
	e := pod.Event{Key: pod.KeyOf(p), UID: string(p.UID), Container: "spec.containers{main}", Type: pod.EventNormal, Reason: "Started", Message: "Started container main", At: time.Now()}
	a.Event(e)
	for range 3 {
		again := e
		again.Type, again.Reason, again.Message = pod.EventWarning, "BackOff", "Back-off restarting failed container"
		a.Event(again)
	}
	static := staticPod(a.name, "static-reported", "h9")
	a.says(static, running(static, true), fromFile)
	a.until(t, "static-reported", "there", there)
	a.Event(pod.Event{Key: pod.KeyOf(static), UID: string(static.UID), Type: pod.EventNormal, Reason: "Killing", Message: "Stopping container main", At: time.Now()})
	a.NodeEvent(v1.EventTypeNormal, "Starting", "Starting nodectl.")

	var list v1.EventList
	find := func(reason string, count int32) (found *v1.Event) {
		t.Helper()
		wait.NoError(t, func() error {
			if err := a.c.Client(t).Get().Namespace("default").Resource("events").Do(context.Background()).Into(&list); err != nil {
				return err
			}
			for i := range list.Items {
				if e := &list.Items[i]; e.Reason == reason && e.Source.Host == a.name && e.Count == count {
					found = e
					return nil
				}
			}
			return fmt.Errorf("no event %s counted %d times: %+v\n%s", reason, count, list.Items, a.log)
		})
		return found
	}
	is := find("Started", 1)
	o := is.InvolvedObject
	if o.Kind != "Pod" || o.APIVersion != "v1" || o.UID != p.UID || o.FieldPath != "spec.containers{main}" || is.Source.Component != "kubelet" || is.ReportingController != "kubelet" || is.ReportingInstance != a.name || is.Type != "Normal" {
		t.Errorf("event %+v", is)
	}
	find("BackOff", 3)
	if is := find("Killing", 1); is.InvolvedObject.UID != "h9" {
		t.Errorf("event %+v, kubectl looks for the mirror's hash", is)
	}
	if is := find("Starting", 1); is.InvolvedObject.Kind != "Node" || is.InvolvedObject.UID != "" && string(is.InvolvedObject.UID) != a.name {
		t.Errorf("event %+v", is)
	}
}
