package server

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// Workloads shows and changes the workloads of sources without an API server. An error may be a
// *StatusError.
type Workloads interface {
	// Workloads returns the workloads of a kind ("Deployment"), all for "", with the ReplicaSets
	// of Deployments and the Jobs of CronJobs. history adds the versions of their pod templates.
	Workloads(kind string, history bool) []Workload
	// ChangeWorkload carries out a command, and returns its result as text: "scaled".
	ChangeWorkload(ctx context.Context, of WorkloadRef, command WorkloadCommand) (result string, err error)
}

// WorkloadRef names a workload.
type WorkloadRef struct{ Kind, Namespace, Name string }

// WorkloadCommand is a change of a workload: scale, pause, resume, restart, undo, clear or
// create-job.
type WorkloadCommand struct {
	Verb     string
	Replicas int32  // of scale
	Current  *int32 // of scale: the number that the workload must have now; nil means any
	Revision int64  // of undo; 0 means the revision before
	Field    string // of clear: the field whose override ends; "" means all
	Job      string // of create-job: the name of the Job
}

// Workload is one workload, as /v1/workloads lists it.
type Workload struct {
	// Object is the workload as an API server would have it, with its status.
	Object any `json:"object"`
	// Source, Location, File and Line are the place of the manifest.
	Source   string `json:"source"`
	Location string `json:"location"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	// Unreported is the number of pods that this agent has not observed yet: the status counts them
	// as the previous agent reported them.
	Unreported int                `json:"unreported,omitempty"`
	Overrides  []WorkloadOverride `json:"overrides,omitempty"`
	History    []WorkloadRevision `json:"history,omitempty"`
}

// WorkloadOverride is a field that a command or a rollback has changed.
type WorkloadOverride struct {
	Field  string    `json:"field"`
	Value  string    `json:"value"`
	Source string    `json:"source"` // the value in the source
	Why    string    `json:"why"`
	Since  time.Time `json:"since"`
	// Rollback says that a rollback has set the value.
	Rollback bool `json:"rollback,omitempty"`
}

// WorkloadRevision is a version of the pod template of a workload.
type WorkloadRevision struct {
	Revision int64     `json:"revision"`
	Cause    string    `json:"cause,omitempty"`  // kubernetes.io/change-cause
	Failed   string    `json:"failed,omitempty"` // the reason of the rollback
	Logs     string    `json:"logs,omitempty"`   // the directory with the logs of its pods
	Since    time.Time `json:"since"`
	Template any       `json:"template"`
}

// workloads answers /v1/workloads.
func (s *Server) workloads(w http.ResponseWriter, q *request) error {
	if s.cfg.Workloads == nil {
		return notImplemented(q)
	}
	if !s.waitForPods(q.Context(), podsReadTimeout) {
		return errPodsNotRead
	}
	items := s.cfg.Workloads.Workloads(q.params.Get("kind"), isTrue(q.params.Get("history")))
	if items == nil {
		items = []Workload{}
	}
	return send(w, struct {
		Kind  string     `json:"kind"`
		Items []Workload `json:"items"`
	}{"WorkloadList", items})
}

// changeWorkload answers /v1/workloads/{kind}/{namespace}/{name}/{verb}.
func (s *Server) changeWorkload(w http.ResponseWriter, q *request) error {
	if s.cfg.Workloads == nil {
		return notImplemented(q)
	}
	c := WorkloadCommand{Verb: q.values["verb"], Field: q.params.Get("field"), Job: q.params.Get("job")}
	replicas, err := int32Of(q, "replicas")
	if err != nil {
		return err
	}
	if c.Current, err = int32Of(q, "currentReplicas"); err != nil {
		return err
	}
	if replicas != nil {
		c.Replicas = *replicas
	} else if c.Verb == "scale" {
		return &StatusError{Code: http.StatusBadRequest, Message: "replicas is required"}
	}
	if text := q.params.Get("revision"); text != "" {
		if c.Revision, err = strconv.ParseInt(text, 10, 64); err != nil || c.Revision < 0 {
			return &StatusError{Code: http.StatusBadRequest, Message: "revision is not a number that may be 0"}
		}
	}
	ref := WorkloadRef{q.values["kind"], q.values["namespace"], q.values["name"]}
	result, err := s.cfg.Workloads.ChangeWorkload(q.Context(), ref, c)
	if err != nil {
		return err
	}
	return send(w, struct {
		Result string `json:"result"`
	}{result})
}

// int32Of reads a parameter of a query; nil if it is not given.
func int32Of(q *request, name string) (*int32, error) {
	text := q.params.Get(name)
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return nil, &StatusError{Code: http.StatusBadRequest, Message: name + " is not a number that may be 0"}
	}
	v := int32(n)
	return &v, nil
}
