package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/logs"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/workload"
)

// workloadAnswers implements server.Workloads.
type workloadAnswers struct {
	*controller.Controller
	node  string
	files *record.Workloads
}

// Workloads implements server.Workloads.
func (w workloadAnswers) Workloads(kind string, history bool) []server.Workload {
	var all []server.Workload
	now := time.Now()
	for _, of := range w.Controller.Workloads() {
		if of.Decision.Object == nil {
			of.Decision.Object = of.Object // there is no decision yet, and no status
		}
		if kind == "" || kind == of.Object.Kind {
			all = append(all, w.shown(of, history))
		}
		for _, child := range workload.Children(w.node, of.Decision, of.Pods, now) {
			if kind == "" || kind == kindOf(child) {
				all = append(all, placed(server.Workload{Object: child}, of.Object))
			}
		}
	}
	return all
}

func kindOf(child any) string {
	switch child.(type) {
	case *appsv1.ReplicaSet:
		return pod.KindReplicaSet
	case *batchv1.Job:
		return pod.KindJob
	}
	return ""
}

// placed returns the workload with the place of its manifest.
func placed(to server.Workload, o *pod.Object) server.Workload {
	to.Source, to.Location, to.File, to.Line = o.Origin.Source, o.Origin.Location, o.Origin.File, o.Origin.Line
	return to
}

func (w workloadAnswers) shown(of controller.Workload, history bool) server.Workload {
	one := placed(server.Workload{Object: workload.APIObject(w.node, of.Decision), Unreported: of.Decision.Unreported}, of.Object)
	for _, o := range of.Decision.State.Override.Fields() {
		one.Overrides = append(one.Overrides, server.WorkloadOverride(o))
	}
	if !history {
		return one
	}
	for _, h := range workload.History(&of.Decision.State) {
		r := server.WorkloadRevision{Revision: h.Revision, Cause: h.Cause, Failed: h.Failed, Since: h.Since.Time, Template: h.Template}
		dir := filepath.Join(w.files.Logs(of.Object.ObjectKey()), strconv.FormatInt(h.Revision, 10))
		if info, err := os.Stat(dir); h.Failed != "" && err == nil && info.IsDir() {
			r.Logs = dir
		}
		one.History = append(one.History, r)
	}
	return one
}

// ChangeWorkload implements server.Workloads.
func (w workloadAnswers) ChangeWorkload(ctx context.Context, of server.WorkloadRef, c server.WorkloadCommand) (string, error) {
	verb := workload.Verb(c.Verb)
	if !slices.Contains(workload.Verbs(), verb) {
		return "", &server.StatusError{Code: http.StatusBadRequest, Message: fmt.Sprintf("unknown verb %q", c.Verb)}
	}
	key := pod.ObjectKey{Kind: of.Kind, Key: pod.Key{Namespace: of.Namespace, Name: of.Name}}
	result, err := w.Do(ctx, key, workload.Command{Verb: verb, Replicas: c.Replicas, Current: c.Current, Revision: c.Revision, Name: c.Job, Field: c.Field})
	var refused *controller.RefusedError
	switch {
	case errors.Is(err, controller.ErrNoWorkload):
		return "", &server.StatusError{Code: http.StatusNotFound, Message: fmt.Sprintf("%s not found", key)}
	case errors.As(err, &refused):
		return "", &server.StatusError{Code: http.StatusConflict, Message: refused.Error()}
	}
	return result, err
}

// The limits of the logs that are kept of versions that were rolled back.
const (
	keptVersions = 3  // for each workload
	keptPods     = 10 // for each version
	keepTimeout  = 10 * time.Second
)

// keepLogs copies the logs of the pods of a version that is rolled back. On a hanging disk, it
// returns after a time limit, and the copy continues.
func (a *Agent) keepLogs(o *pod.Object, failed workload.FailedVersion) {
	to := record.NewWorkloads(a.cfg.RootDir).Logs(o.ObjectKey())
	err := a.logCopies.Do(context.Background(), o.ObjectKey().String(), keepTimeout, func() error {
		var errs []error
		version := filepath.Join(to, strconv.FormatInt(failed.Number, 10))
		for _, s := range failed.Pods[:min(len(failed.Pods), keptPods)] {
			errs = append(errs, logs.Keep(a.cfg.PodLogsDir, s.Namespace+"_"+s.Name+"_"+s.UID(), filepath.Join(version, s.Name)))
		}
		return errors.Join(append(errs, logs.KeepNewest(to, keptVersions))...)
	})
	if err != nil {
		a.log.Warn("Failed to keep some logs of a version that is rolled back", "workload", o.ObjectKey().String(), "revision", failed.Number, "error", err)
	}
}
