package cri

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// shown has the runtime's entries for one key, not yet ordered.
type shown struct {
	sandboxes  []sandboxRecord
	containers []containerRecord
	print      uint64 // the fingerprint, see Relist
}

type sandboxRecord struct {
	uid string
	pod.Sandbox
}

type containerRecord struct {
	uid string
	pod.Container
}

// actual sorts the sandboxes and containers into the fields of pod.Actual: Sandbox and
// Containers get the newest ones, Older and Dead the rest.
func (s shown) actual(key pod.Key) pod.Actual {
	a := pod.Actual{Key: key}
	slices.SortFunc(s.sandboxes, func(x, y sandboxRecord) int {
		return newest(x.Attempt, y.Attempt, x.CreatedAt, y.CreatedAt, x.ID, y.ID)
	})
	slices.SortFunc(s.containers, func(x, y containerRecord) int {
		return newest(x.Attempt, y.Attempt, x.CreatedAt, y.CreatedAt, x.ID, y.ID)
	})
	for i, b := range s.sandboxes {
		if i == 0 {
			a.UID, a.Sandbox = b.uid, &b.Sandbox
			continue
		}
		a.Older = append(a.Older, b.Sandbox)
	}
	for _, c := range s.containers {
		if a.UID == "" {
			a.UID = c.uid
		}
		if a.Containers == nil {
			a.Containers = map[string]pod.Container{}
		}
		if _, seen := a.Containers[c.Name]; seen {
			a.Dead = append(a.Dead, c.Container)
			continue
		}
		a.Containers[c.Name] = c.Container
	}
	return a
}

// newest orders newest first: by attempt, then creation, then ID, so that the order never
// depends on the runtime's.
func newest(a1, a2 uint32, t1, t2 time.Time, id1, id2 string) int {
	return cmp.Or(cmp.Compare(a2, a1), t2.Compare(t1), cmp.Compare(id2, id1))
}

func sandboxOf(s *runtimeapi.PodSandboxStatus) sandboxRecord {
	notes := s.GetAnnotations()
	b := pod.Sandbox{
		ID:          s.GetId(),
		Attempt:     s.GetMetadata().GetAttempt(),
		Ready:       s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
		HostNetwork: s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE,
		CreatedAt:   timeOf(s.GetCreatedAt()),
		Instance:    number(notes, pod.AnnotationInstance, 0),
		SpecHash:    notes[pod.AnnotationSpecHash],
		SandboxHash: notes[pod.AnnotationSandboxHash],
		Layer:       notes[pod.AnnotationLayer],
		Grace:       int64(number(notes, pod.AnnotationGrace, -1)),
		Labels:      s.GetLabels(),
		Annotations: notes,
	}
	if !b.HostNetwork && s.GetNetwork().GetIp() != "" {
		b.IPs = []string{s.GetNetwork().GetIp()}
		for _, ip := range s.GetNetwork().GetAdditionalIps() {
			b.IPs = append(b.IPs, ip.GetIp())
		}
	}
	return sandboxRecord{uid: s.GetMetadata().GetUid(), Sandbox: b}
}

func (r *Runtime) containerOf(sandboxID string, s *runtimeapi.ContainerStatus) containerRecord {
	notes := s.GetAnnotations()
	c := pod.Container{
		ID:          s.GetId(),
		Name:        s.GetMetadata().GetName(),
		SandboxID:   sandboxID,
		State:       stateOf(s.GetState()),
		Attempt:     s.GetMetadata().GetAttempt(),
		Restarts:    number(notes, pod.AnnotationRestartCount, 0),
		Hash:        notes[pod.AnnotationContainerHash],
		CrashStreak: number(notes, pod.AnnotationCrashStreak, 0),
		Image:       cmp.Or(s.GetImage().GetUserSpecifiedImage(), s.GetImage().GetImage()),
		ImageID:     cmp.Or(s.GetImageRef(), s.GetImageId()),
		CreatedAt:   timeOf(s.GetCreatedAt()),
		StartedAt:   timeOf(s.GetStartedAt()),
		LogPath:     s.GetLogPath(),
		Resources:   notes[pod.AnnotationResources],
		Placement:   noted[pod.Placement](notes, pod.AnnotationPlacement),
		CPUs:        s.GetResources().GetLinux().GetCpusetCpus(),
		Devices:     noted[[]pod.DeviceAllocation](notes, pod.AnnotationDevices),
		Claims:      noted[[]pod.ClaimAllocation](notes, pod.AnnotationClaims),
		PreStop:     noted[*v1.LifecycleHandler](notes, pod.AnnotationPreStop),
		StopSignal:  signalName(s.GetStopSignal()),
	}
	for _, m := range s.GetMounts() {
		if m.GetRecursiveReadOnly() {
			c.Recursive = append(c.Recursive, m.GetContainerPath())
		}
	}
	if u := s.GetUser().GetLinux(); u != nil {
		c.User = &v1.LinuxContainerUser{UID: u.GetUid(), GID: u.GetGid(), SupplementalGroups: u.GetSupplementalGroups()}
	}
	if c.State == pod.StateExited {
		c.FinishedAt = timeOf(s.GetFinishedAt())
		c.ExitCode, c.Reason, c.Message = s.GetExitCode(), s.GetReason(), r.message(s)
	}
	return containerRecord{uid: s.GetLabels()[pod.LabelPodUID], Container: c}
}

func stateOf(s runtimeapi.ContainerState) pod.ContainerState {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return pod.StateCreated
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return pod.StateRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return pod.StateExited
	}
	return pod.StateUnknown
}

// timeOf converts CRI's nanoseconds; zero in CRI is the zero time.
func timeOf(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// number returns the decimal annotation name, or def if it is missing or is not a number.
func number(notes map[string]string, name string, def int) int {
	n, err := strconv.Atoi(notes[name])
	if err != nil {
		return def
	}
	return n
}
