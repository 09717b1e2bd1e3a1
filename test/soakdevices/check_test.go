package soakdevices

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	kubecpuset "k8s.io/utils/cpuset"

	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
	"github.com/nodectl/nodectl/test/growth"
)

// noteSets compares the devices, exclusive CPUs, memory and claims of a container that was just created
// with those of the first container of its name and pod.
func (w *world) noteSets(object string) {
	of := strings.Split(object, "/") // namespace, pod, container
	key := pod.Key{Namespace: of[0], Name: of[1]}
	config := w.rt.ContainerConfig(key, of[2])
	if config == nil {
		w.problem(other, "%s: was not created", object)
		return
	}
	notes := config.GetAnnotations()
	var has []pod.DeviceAllocation
	var placed pod.Placement
	if text := notes[pod.AnnotationDevices]; text != "" && json.Unmarshal([]byte(text), &has) != nil {
		w.problem(other, "%s: devices %s", object, text)
	}
	if text := notes[pod.AnnotationPlacement]; text != "" && json.Unmarshal([]byte(text), &placed) != nil {
		w.problem(other, "%s: placement %s", object, text)
	}
	placed.Shared = "" // they are those that no container has
	text := fmt.Sprint(placed, notes[pod.AnnotationClaims])
	for _, a := range has {
		text += fmt.Sprint(" ", a.Resource, a.Devices)
	}
	id := config.GetLabels()[pod.LabelPodUID] + "/" + of[2]
	w.mu.Lock()
	before, known := w.sets[id]
	w.sets[id] = text
	w.mu.Unlock()
	if known && before != text {
		w.problem(changed, "%s: changed from %s to %s", object, before, text)
	}
}

// actual returns the pods in the runtime.
func (w *world) actual() []pod.Actual {
	all, err := w.rt.Connect().CRI(cri.Config{Node: nodeName}).Pods(context.Background())
	if err != nil {
		w.problem(other, "read the runtime: %v", err)
	}
	return all
}

// ran is a container that ran when an agent was killed.
type ran struct {
	uid   string // of its pod
	image string // as its pod names it
	pod   pod.Key
}

// noteRunning notes the containers that run while no agent does.
func (w *world) noteRunning() {
	for _, have := range w.actual() {
		for name, c := range have.Containers {
			if config := w.rt.ContainerConfig(have.Key, name); c.State == pod.StateRunning && config != nil {
				w.ran[c.ID] = ran{have.UID, config.GetImage().GetUserSpecifiedImage(), have.Key}
			}
		}
	}
}

// checkRunning checks that each container that ran still runs, unless its pod was changed or removed.
func (w *world) checkRunning(when string, all []pod.Actual) {
	running := make(map[string]bool)
	for _, have := range all {
		for _, c := range have.Containers {
			running[c.ID] = c.State == pod.StateRunning
		}
	}
	for id, of := range w.ran {
		same := slices.ContainsFunc(w.api.desired(), func(p *v1.Pod) bool {
			return string(p.UID) == of.uid && p.DeletionTimestamp == nil && p.Spec.Containers[0].Image == of.image
		})
		if same && !running[id] {
			w.problem(ended, "%s: container %s of %s does not run any more", when, id, of.pod)
		}
	}
	clear(w.ran)
}

// checkPods checks the node after it has settled: each desired pod runs with its requests, and no
// device or exclusive CPU has two users.
func (w *world) checkPods(when string) {
	reports := w.reports()
	desired := w.api.desired()
	for _, p := range desired {
		r, known := reports[pod.KeyOf(p)]
		switch {
		case p.DeletionTimestamp != nil:
			w.problem(left, "%s: pod %s is not gone", when, p.Name)
		case !known || r.Pod.Status.Phase != v1.PodRunning || !r.Pod.Status.ContainerStatuses[0].Ready:
			w.problem(waiting, "%s: pod %s does not run: %+v", when, p.Name, statusOf(r))
		default:
			w.checkUse(when, p)
		}
	}
	all := w.actual()
	w.checkRunning(when, all)
	devices, taken := make(map[string]string), kubecpuset.New()
	for _, have := range all {
		if !slices.ContainsFunc(desired, func(p *v1.Pod) bool { return p.Name == have.Key.Name }) {
			w.problem(left, "%s: %s is left in the runtime", when, have.Key)
		}
		for _, c := range podview.AllContainers(have) {
			if !c.MayRun() {
				continue
			}
			for _, a := range c.Devices {
				for _, id := range a.Devices {
					if other := devices[id]; other != "" {
						w.problem(shared, "%s: %s and %s have device %s", when, other, have.Key, id)
					}
					devices[id] = have.Key.String()
				}
			}
			cpus, err := kubecpuset.Parse(c.Placement.CPUs)
			if err != nil || !taken.Intersection(cpus).IsEmpty() {
				w.problem(shared, "%s: %s shares CPUs %s: %v", when, have.Key, c.Placement.CPUs, err)
			}
			taken = taken.Union(cpus)
		}
	}
	if err := w.rt.Check(); err != nil {
		w.problem(other, "%s: %v", when, err)
	}
	w.checkGrowth(when)
}

// checkGrowth checks that the table of growing files has each file of the agent and of its plugins.
func (w *world) checkGrowth(when string) {
	for _, line := range (growth.Node{Dirs: map[growth.Place]string{growth.Root: w.path("root"), growth.Kubelet: w.path("kubelet")}}).Check() {
		w.problem(left, "%s: %s", when, line)
	}
}

// knowsClaim reports whether the disk of the agent says that a claim is prepared.
func (w *world) knowsClaim(uid string) bool {
	text, err := os.ReadFile(w.path("root", "resource-claims", uid+".json"))
	return err == nil && strings.Contains(string(text), fmt.Sprintf(`"progress":"done boot-%d"`, w.boot))
}

// knowsMount reports whether the disk of the agent says that a volume is mounted at a target.
func (w *world) knowsMount(target string) bool {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(target), "vol_data.json"))
	return err == nil && strings.Contains(string(text), fmt.Sprintf(`"nodectl.dev/progress":"done boot-%d"`, w.boot))
}

// checkUse checks that the drivers have prepared the claim of a pod that runs, and mounted its volume.
func (w *world) checkUse(when string, p *v1.Pod) {
	for _, of := range p.Spec.ResourceClaims {
		if !slices.Contains(w.cards.Prepared.Left(), "uid-"+*of.ResourceClaimName) {
			w.problem(without, "%s: claim %s of %s is not prepared", when, *of.ResourceClaimName, p.Name)
		}
	}
	for _, of := range p.Spec.Volumes {
		at := w.path("kubelet", "pods", string(p.UID), "volumes", "kubernetes.io~csi", "pv-"+of.PersistentVolumeClaim.ClaimName, "mount")
		if !slices.Contains(w.disks.Mounted.Left(), at) || !slices.Contains(w.mounts(), at) {
			w.problem(without, "%s: volume %s of %s is not mounted", when, of.Name, p.Name)
		}
	}
}

func statusOf(r pod.StatusReport) any {
	if r.Pod == nil {
		return "never reported"
	}
	return r.Pod.Status
}

// mounts returns the mounts below the directory of the node, the newest first.
func (w *world) mounts() []string {
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(w.root))
	if err != nil {
		w.problem(other, "read mounts: %v", err)
	}
	var paths []string
	for _, m := range all {
		paths = append(paths, m.Mountpoint)
	}
	slices.Reverse(paths)
	return paths
}

func (w *world) unmountAll() {
	for _, path := range w.mounts() {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			w.problem(other, "unmount %s: %v", path, err)
		}
	}
}

// checkEmpty checks that nothing is left after the last pod is gone. The agent runs.
func (w *world) checkEmpty() {
	none := func(what string, list []string) {
		if len(list) > 0 {
			w.problem(left, "at the end: %s %v", what, list)
		}
	}
	if all := w.mounts(); len(all) > 0 {
		w.problem(mounted, "at the end: %v", all)
	}
	none("volumes", append(w.files(w.path("kubelet", "pods")), w.files(w.path("kubelet", "plugins", "kubernetes.io"))...))
	none("mounts of the CSI driver", w.disks.Mounted.Left())
	none("claims of the DRA driver", w.cards.Prepared.Left())
	none("files of claims", w.files(w.path("root", "resource-claims")))
	none("files of pods", w.files(w.path("root", "pods")))
	none("objects of the runtime", slices.Collect(strings.Lines(w.rt.State())))
	for _, r := range w.agent.devices.Resources() {
		for _, d := range r.Devices {
			if len(d.Users) > 0 {
				w.problem(left, "at the end: device %s of %v", d.ID, d.Users)
			}
		}
	}
	w.checkStateFiles()
	for _, what := range append(w.cards.Prepared.Twice(), w.disks.Mounted.Twice()...) {
		w.problem(twice, "prepared, staged or published twice: %s", what)
	}
}

// checkStateFiles checks that no container has exclusive CPUs or memory any more.
func (w *world) checkStateFiles() {
	var cpus cpuset.CPUManagerCheckpoint
	var memory cpuset.MemoryManagerCheckpoint
	for name, into := range map[string]any{cpuset.CPUStateFile: &cpus, cpuset.MemoryStateFile: &memory} {
		text, err := os.ReadFile(w.path("root", name))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			w.problem(other, "state file: %v", err)
		}
	}
	if len(cpus.Entries) > 0 || cpus.DefaultCPUSet != "0-23" || len(memory.Entries) > 0 {
		w.problem(left, "at the end: exclusive CPUs %v, memory %v, shared CPUs %s", cpus.Entries, memory.Entries, cpus.DefaultCPUSet)
	}
}
