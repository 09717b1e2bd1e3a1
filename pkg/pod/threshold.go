package pod

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The signals that a threshold may name (C-1.35.2).
const (
	SignalMemory        = "memory.available"
	SignalNodeFs        = "nodefs.available"
	SignalNodeInodes    = "nodefs.inodesFree"
	SignalImageFs       = "imagefs.available"
	SignalImageInodes   = "imagefs.inodesFree"
	SignalContainerFs   = "containerfs.available"
	SignalContainerInos = "containerfs.inodesFree"
	SignalPIDs          = "pid.available"
	SignalPodsMemory    = "allocatableMemory.available"
)

// Signals returns every signal that a threshold may name.
func Signals() []string {
	return []string{
		SignalMemory, SignalNodeFs, SignalNodeInodes, SignalImageFs, SignalImageInodes,
		SignalContainerFs, SignalContainerInos, SignalPIDs, SignalPodsMemory,
	}
}

// ConditionOf returns the condition of a node that is short of a signal's resource.
func ConditionOf(signal string) v1.NodeConditionType {
	switch signal {
	case SignalMemory, SignalPodsMemory:
		return v1.NodeMemoryPressure
	case SignalPIDs:
		return v1.NodePIDPressure
	}
	return v1.NodeDiskPressure
}

// Threshold is the amount of a resource below which a node is under pressure: a quantity, or a
// fraction of the capacity. One with neither is never met, as the kubelet takes 0% and 100%.
type Threshold struct {
	Signal   string             // one of Signals
	Quantity *resource.Quantity // nil where Percent counts
	Percent  float64            // of the capacity: 10 is a tenth
}

// ParseThreshold reads "memory.available<100Mi" and "nodefs.available<10%".
func ParseThreshold(text string) (Threshold, error) {
	signal, value, ok := strings.Cut(text, "<")
	if !ok {
		return Threshold{}, fmt.Errorf("%q is not of the form signal<quantity, such as memory.available<100Mi", text)
	}
	return NewThreshold(strings.TrimSpace(signal), strings.TrimSpace(value))
}

// NewThreshold is ParseThreshold for a signal and its value apart, as a
// KubeletConfiguration gives them.
func NewThreshold(signal, value string) (Threshold, error) {
	if !slices.Contains(Signals(), signal) {
		return Threshold{}, fmt.Errorf("%q is not a signal; the signals are: %s", signal, strings.Join(Signals(), ", "))
	}
	if text, ok := strings.CutSuffix(value, "%"); ok {
		p, err := strconv.ParseFloat(text, 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return Threshold{}, fmt.Errorf("%s: %q is not between 0%% and 100%%", signal, value)
		}
		if p == 100 {
			p = 0
		}
		return Threshold{Signal: signal, Percent: p}, nil
	}
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Sign() <= 0 {
		return Threshold{}, fmt.Errorf("%s: %q is neither a quantity above zero, such as 100Mi, nor a percentage, such as 10%%", signal, value)
	}
	return Threshold{Signal: signal, Quantity: &q}, nil
}

// ParseAmount reads "memory.available=50Mi" and "nodefs.available=5%": an amount of a signal's
// resource. Unlike in a threshold, it may be nothing or all.
func ParseAmount(text string) (Threshold, error) {
	signal, value, ok := strings.Cut(text, "=")
	if !ok {
		return Threshold{}, fmt.Errorf("%q is not of the form signal=quantity, such as memory.available=50Mi", text)
	}
	if !slices.Contains(Signals(), signal) {
		return Threshold{}, fmt.Errorf("%q is not a signal; the signals are: %s", signal, strings.Join(Signals(), ", "))
	}
	if text, ok := strings.CutSuffix(value, "%"); ok {
		p, err := strconv.ParseFloat(text, 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return Threshold{}, fmt.Errorf("%s: %q is not between 0%% and 100%%", signal, value)
		}
		return Threshold{Signal: signal, Percent: p}, nil
	}
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Sign() < 0 {
		return Threshold{}, fmt.Errorf("%s: %q is neither a quantity, such as 50Mi, nor a percentage, such as 5%%", signal, value)
	}
	return Threshold{Signal: signal, Quantity: &q}, nil
}

// ParseThresholds reads a list of thresholds, each item of which may be a list
// itself ("a<1Gi,b<10%"). No signal may stand in it twice.
func ParseThresholds(list []string) ([]Threshold, error) {
	var all []Threshold
	for _, texts := range list {
		for text := range strings.SplitSeq(texts, ",") {
			if text = strings.TrimSpace(text); text == "" {
				continue
			}
			t, err := ParseThreshold(text)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(all, func(o Threshold) bool { return o.Signal == t.Signal }) {
				return nil, fmt.Errorf("%s is set twice", t.Signal)
			}
			all = append(all, t)
		}
	}
	return all, nil
}

// Of returns the threshold in bytes for a capacity, rounded as the kubelet does; 0 is none.
func (t Threshold) Of(capacity int64) int64 {
	if t.Quantity != nil {
		return t.Quantity.Value()
	}
	return int64(float64(capacity) * float64(float32(t.Percent)/100))
}

// String returns the threshold as ParseThreshold reads it.
func (t Threshold) String() string {
	if t.Quantity != nil {
		return t.Signal + "<" + t.Quantity.String()
	}
	return t.Signal + "<" + strconv.FormatFloat(t.Percent, 'f', -1, 64) + "%"
}
