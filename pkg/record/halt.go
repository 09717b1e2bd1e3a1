package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Halt says why the agent starts no pods: the machine shuts down, or a person has drained the
// node. It applies until the next boot.
type Halt struct {
	Boot  string    `json:"boot"` // the ID of the boot in which it began
	Since time.Time `json:"since"`
	Cause string    `json:"cause"`
	// MaxGrace limits the seconds that each pod gets to stop; nil is no limit.
	MaxGrace *int64 `json:"maxGrace,omitempty"`
	// Drained is the drain that a shutdown has replaced; nil for none. It applies again if the
	// shutdown is cancelled.
	Drained *Halt `json:"drained,omitempty"`
}

// The causes of a Halt.
const (
	CauseDrain  = "drain"  // nodectl drain
	CauseSignal = "signal" // SIGPWR
	CauseLogind = "logind" // PrepareForShutdown
)

// Shutdown reports whether the machine shuts down.
func (h Halt) Shutdown() bool { return h.Cause != CauseDrain }

// Reason is the reason in the status of a pod that does not run because of the halt.
func (h Halt) Reason() string {
	if h.Shutdown() {
		return "NodeShutdown"
	}
	return "NodeDrained"
}

// Text returns why no pod starts, for logs and commands.
func (h Halt) Text() string {
	if h.Shutdown() {
		return "the machine is shutting down"
	}
	return h.Message()
}

// Message is the message in the status of a pod that does not run because of the halt. For a
// shutdown it is the kubelet's (C-1.31.1).
func (h Halt) Message() string {
	if h.Shutdown() {
		return "Pod was rejected as the node is shutting down."
	}
	return fmt.Sprintf("the node has been drained since %s; run 'nodectl drain --undo' to let pods start again", h.Since.UTC().Format(time.RFC3339))
}

func haltFile(root string) string { return filepath.Join(root, "halt.json") }

// SaveHalt writes the halt below the root directory.
func SaveHalt(root string, h Halt) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return replace(haltFile(root), append(data, '\n'))
}

// LoadHalt returns the saved halt, if it began in the boot with this ID. ok is false if there is none,
// if it began in an earlier boot, or if boot is "".
func LoadHalt(root, boot string) (h Halt, ok bool, err error) {
	data, err := os.ReadFile(haltFile(root))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return h, false, nil
	case err != nil:
		return h, false, err
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return Halt{}, false, fmt.Errorf("read %s: %w", haltFile(root), err)
	}
	return h, h.Boot == boot && boot != "", nil
}

// Applicable returns the part of an earlier agent's halt that applies to this agent; nil if none
// does. A drain does not apply in a cluster. A shutdown that logind announced applies only to an
// agent that watches logind, since only logind announces that the shutdown was cancelled.
func (h *Halt) Applicable(cluster, logind bool) *Halt {
	switch {
	case h == nil, h.Cause == CauseDrain && cluster:
		return nil
	case h.Cause == CauseLogind && !logind:
		return h.Drained.Applicable(cluster, logind)
	}
	of := *h
	of.Drained = h.Drained.Applicable(cluster, logind)
	return &of
}

// RemoveHalt removes the saved halt. It succeeds if there is none.
func RemoveHalt(root string) error {
	if err := os.Remove(haltFile(root)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
