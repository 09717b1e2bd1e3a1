package activity

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Report has the known reasons why a pod waits.
type Report struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// Phase, Reason and Message are those of the pod's status; Phase is empty for a pod that has
	// no status yet.
	Phase   string `json:"phase,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Stopping says that the pod is being removed.
	Stopping bool `json:"stopping,omitempty"`
	// Summary is one sentence with the reason why the pod waits.
	Summary string `json:"summary"`
	// Settled says that the pod waits for nothing.
	Settled bool `json:"settled"`
	// NotReady names the containers that run and are not ready, with their messages.
	NotReady []string `json:"notReady,omitempty"`
	State    *State   `json:"state,omitempty"`
	// Calls are the calls for the pod that have not ended. Agent are calls for no pod that have
	// taken long. In both the oldest come first.
	Calls      []Call     `json:"calls,omitempty"`
	Agent      []Call     `json:"agent,omitempty"`
	AgentWaits string     `json:"agentWaits,omitempty"` // the condition that all pods wait for
	Mounts     []Mount    `json:"mounts,omitempty"`
	Processes  []Process  `json:"processes,omitempty"`
	Registries []Registry `json:"registries,omitempty"`
	Source     *Source    `json:"source,omitempty"`
	Server     *Server    `json:"server,omitempty"`
	Warnings   []Warning  `json:"warnings,omitempty"`
	Now        time.Time  `json:"now"`
}

// Mount is a mount that a pod uses.
type Mount struct {
	Path   string `json:"path"` // where it is mounted
	Type   string `json:"type"`
	Source string `json:"source"`
	// Hangs says that it does not answer. Error is its error, if it answered with one.
	Hangs bool   `json:"hangs"`
	Error string `json:"error,omitempty"`
}

// Process is a process, or one of its threads, that a pod may hang on.
type Process struct {
	PID  int    `json:"pid"`
	TID  int    `json:"tid,omitempty"` // of a thread other than the first
	Name string `json:"name"`
	// Of says whose it is: "pod", "shim", "network plugin" or "agent".
	Of    string `json:"of"`
	State string `json:"state"` // of /proc/PID/stat: D is an uninterruptible wait, T is stopped
	// Waits is the function of the kernel in which it waits, Stack the functions that led
	// there, as far as this agent may read them.
	Waits string   `json:"waits,omitempty"`
	Stack []string `json:"stack,omitempty"`
}

// Registry is the state of a registry from which an image of the pod is pulled.
type Registry struct {
	Host string `json:"host"`
	// Error is why it does not answer; empty: it answers, or was not asked.
	Error string `json:"error,omitempty"`
	// Waiting says that the pull waits for other pulls, or for the pull rate.
	Waiting bool `json:"waiting,omitempty"`
}

// Source is a source that does not answer, or cannot be read.
type Source struct {
	Name  string    `json:"name"`
	Error string    `json:"error"`
	Since time.Time `json:"since,omitzero"`
}

// Server says that the API server does not return a pod that the agent knows, that the agent does
// not watch its pods, or that the watch has not shown the version of the pod that the server has.
type Server struct {
	Host  string `json:"host"`
	Error string `json:"error"`
}

// Warning is an event of the pod.
type Warning struct {
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int       `json:"count"`
	At      time.Time `json:"at"`
}

// HangsAfter is how long a call may take before it counts as one that may hang.
const HangsAfter = time.Second

// Hanging returns the calls for the pod that may hang: those that have taken longer than
// HangsAfter.
func (r *Report) Hanging() []Call {
	return slices.DeleteFunc(slices.Clone(r.Calls), func(c Call) bool { return r.Now.Sub(c.Since) < HangsAfter })
}

// Summarize sets Summary and Settled.
func (r *Report) Summarize() {
	r.Summary, r.Settled = r.summary()
}

func (r *Report) summary() (text string, settled bool) {
	if c, step, ok := r.blocking(); ok {
		text = c.String() + " has not ended for " + age(c.Since, r.Now)
		if step != "" {
			text = step + ": " + text
		}
		return text, false
	}
	s := r.State
	switch {
	// If the pod waits for the same as the agent, AgentWaits begins with the pod's WaitFor and adds
	// the runtime's message. A pod without WaitFor shows AgentWaits before its failures.
	case r.AgentWaits != "" && (r.Phase == "" || s != nil && strings.HasPrefix(r.AgentWaits, s.WaitFor)):
		return r.AgentWaits, false
	case s != nil && s.WaitFor != "":
		return s.WaitFor + until(s.Until, r.Now), false
	case s != nil && len(s.Failures) > 0:
		f := s.Failures[0]
		text = f.Reason + ": " + f.Message
		if f.Container != "" {
			text = "container " + f.Container + ": " + text
		}
		return text + until(f.Until, r.Now), false
	case s != nil:
		return "next step: " + s.Steps[0], false
	case r.Phase == "Failed" || r.Phase == "Succeeded":
		text = "it has terminated"
		if r.Reason != "" {
			text += " (" + r.Reason + ")"
		}
		return text + "; waits for nothing", true
	case len(r.NotReady) > 0:
		return "not ready: " + strings.Join(r.NotReady, "; "), false
	case r.Server != nil:
		return "API server " + r.Server.Host + ": " + r.Server.Error, false
	case r.Phase == "":
		return "it has no status yet", false
	}
	return strings.ToLower(r.Phase) + "; waits for nothing", true
}

// blocking returns the call that keeps the pod's plan from continuing: the newest one within the
// step that the worker does, else the step, else a hanging call beside it.
func (r *Report) blocking() (c Call, step string, ok bool) {
	var doing, beside Call
	for _, h := range r.Hanging() {
		switch {
		case h.Kind == Step:
			doing, step = h, strings.TrimSpace(h.Name+" "+h.Target)
		case h.Kind == Probe || h.Kind == Log || strings.HasPrefix(h.Name, "measure "):
			beside = h // the step does not wait for it
		default:
			c = h
		}
	}
	switch {
	case c.Kind != "":
		return c, step, true
	case doing.Kind != "":
		return doing, "", true
	}
	return beside, "", beside.Kind != ""
}

// String returns the call as people read it.
func (c Call) String() string {
	if c.Resolving != "" {
		return c.text() + " (looking up the name " + c.Resolving + ")"
	}
	return c.text()
}

func (c Call) text() string {
	switch c.Kind {
	case Step:
		return "step " + strings.TrimSpace(c.Name+" "+c.Target)
	case Runtime:
		return strings.TrimSpace("runtime call " + c.Name + " " + short(c.Target))
	case Pull:
		return "pull of image " + c.Target + " from " + c.Host
	case Hook:
		return c.Name + " hook of container " + c.Target
	case Probe:
		return c.Name + " of container " + c.Target
	case Watch:
		return "watch of " + strings.TrimSuffix(c.Target, "/") + " at " + c.Host + " without an event"
	case Driver:
		return c.Name + " of volume " + short(c.Target) + " by CSI driver " + c.Host
	case Claim:
		return c.Name + " of ResourceClaim " + c.Target + " by DRA driver " + c.Host
	case Plugin:
		text := c.Name + " for container " + c.Target
		if c.Host != "" {
			text += " by the device plugin of " + c.Host
		}
		return text
	case Request:
		return "request " + c.Name + " " + c.Target + " to " + c.Host
	}
	text := strings.TrimSpace(c.Name + " " + c.Target)
	if c.Path != "" {
		text += " (" + c.Path + ")"
	}
	return text
}

// short shortens the ID of a container or sandbox, as runtimes' tools do.
func short(id string) string {
	const whole, part = 64, 12
	if len(id) == whole && !strings.ContainsAny(id, "/.:") {
		return id[:part]
	}
	return id
}

func age(since, now time.Time) string { return now.Sub(since).Truncate(time.Second).String() }

func until(at, now time.Time) string {
	if left := at.Sub(now).Round(time.Second); !at.IsZero() && left > 0 {
		return fmt.Sprintf(" (again in %s)", left)
	}
	return ""
}
