package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// EvictionThreshold is a threshold at which the node begins to reclaim a resource.
type EvictionThreshold struct {
	pod.Threshold
	Grace   time.Duration // of a soft threshold; 0 for a hard one
	Reclaim pod.Threshold // the minimum to reclaim beyond the threshold
}

// Thresholds returns the thresholds of --eviction-hard. Check has accepted them.
func (c Config) Thresholds() []pod.Threshold {
	all, _ := pod.ParseThresholds(c.EvictionHard)
	return all
}

// EvictionThresholds returns the hard thresholds, then the soft ones. Check has accepted them.
func (c Config) EvictionThresholds() []EvictionThreshold {
	reclaim, _ := amounts(c.EvictionMinimumReclaim)
	grace, _ := graces(c.EvictionSoftGracePeriod)
	soft, _ := pod.ParseThresholds(c.EvictionSoft)
	var all []EvictionThreshold
	for _, t := range c.Thresholds() {
		all = append(all, EvictionThreshold{Threshold: t, Reclaim: reclaim[t.Signal]})
	}
	for _, t := range soft {
		all = append(all, EvictionThreshold{Threshold: t, Grace: grace[t.Signal], Reclaim: reclaim[t.Signal]})
	}
	return all
}

// graces reads grace periods by signal: "memory.available=1m30s".
func graces(list []string) (map[string]time.Duration, error) {
	all := map[string]time.Duration{}
	for _, item := range items(list) {
		signal, text, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form signal=duration, such as memory.available=1m30s", item)
		}
		if msg := oneOf(signal, pod.Signals()...); msg != "" {
			return nil, fmt.Errorf("%s is not a signal: %s", signal, msg)
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("%s: %q is not a duration, such as 1m30s", signal, text)
		}
		if _, twice := all[signal]; twice {
			return nil, fmt.Errorf("%s is set twice", signal)
		}
		all[signal] = d
	}
	return all, nil
}

// amounts reads amounts by signal: "imagefs.available=2Gi".
func amounts(list []string) (map[string]pod.Threshold, error) {
	all := map[string]pod.Threshold{}
	for _, item := range items(list) {
		a, err := pod.ParseAmount(item)
		if err != nil {
			return nil, err
		}
		if _, twice := all[a.Signal]; twice {
			return nil, fmt.Errorf("%s is set twice", a.Signal)
		}
		all[a.Signal] = a
	}
	return all, nil
}

// softWithoutGrace refuses a soft threshold without a grace period, as the kubelet does.
func softWithoutGrace(c Config) string {
	grace, _ := graces(c.EvictionSoftGracePeriod)
	soft, _ := pod.ParseThresholds(c.EvictionSoft)
	i := slices.IndexFunc(soft, func(t pod.Threshold) bool { _, has := grace[t.Signal]; return !has })
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("%s has no grace period: set eviction-soft-grace-period to %[1]s=1m30s", soft[i].Signal)
}
