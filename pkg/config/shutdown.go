package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/shutdown"
)

// ShutdownClasses returns the grace periods of a shutdown of the machine by pod priority
// (C-1.36.3), the lowest priority first; nil if the shutdown does not wait for pods.
func (c Config) ShutdownClasses() []shutdown.Class {
	if len(c.ShutdownGracePeriodByPriority) > 0 {
		all, _ := shutdownClasses(c.ShutdownGracePeriodByPriority)
		return all
	}
	return shutdown.Classes(c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods)
}

// shutdownClasses parses grace periods by priority, "1000=20s".
func shutdownClasses(list []string) ([]shutdown.Class, error) {
	var all []shutdown.Class
	for _, item := range items(list) {
		priority, period, ok := strings.Cut(item, "=")
		n, err := strconv.ParseInt(priority, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q is not priority=duration, such as 1000=20s", item)
		}
		d, err := time.ParseDuration(period)
		if err != nil || d < 0 || d%time.Second != 0 {
			return nil, fmt.Errorf("%q of priority %d is not a duration in whole seconds", period, n)
		}
		if slices.ContainsFunc(all, func(c shutdown.Class) bool { return c.Priority == int32(n) }) {
			return nil, fmt.Errorf("priority %d is set twice", n)
		}
		all = append(all, shutdown.Class{Priority: int32(n), Period: d})
	}
	slices.SortFunc(all, func(a, b shutdown.Class) int { return cmp.Compare(a.Priority, b.Priority) })
	return all, nil
}

// shutdownPeriod returns the problem of a grace period, "" for none. As in the kubelet, it must be
// 0 or at least 1 s.
func shutdownPeriod(d time.Duration) string {
	if d < 0 || d > 0 && d < time.Second {
		return fmt.Sprintf("%s is neither 0 nor at least 1s", d)
	}
	return ""
}

func criticalPeriod(c Config) string {
	if c.ShutdownGracePeriodCriticalPods > c.ShutdownGracePeriod {
		return fmt.Sprintf("%s is longer than --shutdown-grace-period (%s)", c.ShutdownGracePeriodCriticalPods, c.ShutdownGracePeriod)
	}
	return shutdownPeriod(c.ShutdownGracePeriodCriticalPods)
}

func byPriority(c Config) string {
	_, err := shutdownClasses(c.ShutdownGracePeriodByPriority)
	if len(c.ShutdownGracePeriodByPriority) > 0 && c.ShutdownGracePeriod > 0 {
		err = errors.New("cannot be used together with --shutdown-grace-period")
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
