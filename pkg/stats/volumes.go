package stats

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/nodectl/nodectl/pkg/backoff"
)

// Volumes returns a collector of the kubelet's series kubelet_volume_stats_*, for each claim of a pod on this
// node.
func (s *Stats) Volumes() prometheus.Collector {
	return collector(func(out chan<- prometheus.Metric) {
		if !slices.ContainsFunc(s.cfg.Pods(), func(p v1.Pod) bool { return claiming(&p) }) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), claimsWithin) // a collector has no context
		defer cancel()
		r, err := s.read(ctx, false)
		if err != nil {
			return
		}
		disks, _ := s.disks(ctx, r, true, claiming) // after a timeout, return the known values
		to, seen := &series{out}, map[api.PVCReference]bool{}
		for _, p := range r.pods {
			for _, v := range disks[string(p.pod.UID)].volumes {
				ref := api.PVCReference{Name: v.claim, Namespace: p.pod.Namespace}
				if v.claim == "" || seen[ref] {
					continue
				}
				seen[ref] = true
				to.claim(labels{"namespace", ref.Namespace, "persistentvolumeclaim", ref.Name}, v)
			}
		}
	})
}

// claimsWithin is how long a scrape waits for the disk usage of claims.
const claimsWithin = 10 * time.Second

// claiming reports whether a pod has a claim, or a volume of a CSI driver.
func claiming(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return foreign(&v) })
}

func (s *series) claim(of labels, v volumeUsage) {
	for _, m := range []struct {
		name, help string
		value      uint64
	}{
		{"capacity_bytes", "Capacity in bytes of the volume", v.disk.capacity},
		{"available_bytes", "Number of available bytes in the volume", v.disk.available},
		{"used_bytes", "Number of used bytes in the volume", v.taken.bytes},
		{"inodes", "Maximum number of inodes in the volume", v.disk.inodes},
		{"inodes_free", "Number of free inodes in the volume", v.disk.inodesFree},
		{"inodes_used", "Number of used inodes in the volume", v.taken.inodes},
	} {
		s.gauge("kubelet_volume_stats_"+m.name, m.help, of, float64(m.value))
	}
	if v.health.Known {
		abnormal := 0.0
		if v.health.Abnormal {
			abnormal = 1
		}
		s.gauge("kubelet_volume_stats_health_status_abnormal", "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy", of, abnormal)
	}
}

// WatchVolumes measures the volumes of CSI drivers every Config.Remeasure, until ctx ends. So Config.Abnormal
// is called even if no other caller reads the usage of volumes. If Remeasure is negative, it returns at once.
func (s *Stats) WatchVolumes(ctx context.Context) {
	for s.cfg.Remeasure > 0 && backoff.Sleep(ctx, s.cfg.Remeasure) {
		if !slices.ContainsFunc(s.cfg.Pods(), func(p v1.Pod) bool { return claiming(&p) }) {
			continue
		}
		measuring, stop := context.WithTimeout(ctx, claimsWithin)
		r, err := s.read(measuring, false)
		if err == nil {
			_, err = s.disks(measuring, r, true, claiming)
		}
		stop()
		if err != nil {
			s.cfg.Log.Debug("Failed to measure volumes", "error", err)
		}
	}
}
