package growth

// A Place is a directory that nodectl or the runtime writes to.
type Place string

// The places of a node.
const (
	Root    Place = "<root-dir>"
	Kubelet Place = "<kubelet-dir>"
	Run     Place = "<run-dir>"
	Logs    Place = "<pod-logs-dir>"
	Links   Place = "containers"
	Runtime Place = "the runtime" // objects that CRI lists, by the names that Objects gives them
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
)

// Row is one kind of thing that a node collects.
//
// Name is its path below In. An element in angle brackets stands for any name; <uid> for the UID of
// a pod, and a pod that the node does not have must have none. A name that ends in "/..." stands
// for a directory with all that is below it.
type Row struct {
	In     Place
	Name   string
	Holds  string
	Bound  string // in words
	Prunes string // the part that removes it, and when
	Count  int    // at most so many in one directory; 0: as many as Bound says
	Bytes  int64  // of each; 0: not compared
}

// Table has a row for everything that a node collects.
var Table = []Row{
	// Of one pod.
	{Runtime, "exited/<uid>/<container>/<id>", "exited containers", "the newest of each container, where it has a successor or its pod is kept", "the pod's worker, when a newer one has exited; eviction, where it has a successor", 1, 0},
	{Runtime, "sandboxes/<uid>/<id>", "sandboxes that are not ready", "the newest of a pod, and those that a container is in", "the pod's worker, when a newer one runs and no container is in it", 2, 0},
	{Root, "pods/<uid>", "all files of a pod", "one for each pod", "the pod's worker, when nothing else of it is left; the sweep of a started agent", 0, 0},
	{Root, "pods/<uid>/record.json", "the record of a pod", "its spec, notes on containers that exist, devices of removed ones", "with the pod", 1, 2 * mib},
	{Root, "pods/<uid>/record.json.corrupt-<time>", "a damaged record, for a person", "10", "the next damaged one; with the pod", 10, 2 * mib},
	{Root, "pods/<uid>/userns", "the pod's block of user IDs", "one", "with the pod", 1, 4 * kib},
	{Root, "pods/<uid>/containers/<container>/<attempt>", "a termination message", "one for each container that exists, and one that is being made", "with the container", 3, 0},
	{Root, "pods/<uid>/<instance>", "volumes of an instance", "one instance, and one that is being replaced", "the pod's worker, when the instance has ended", 2, 0},
	{Root, "pods/<uid>/<instance>/ready", "that volumes are set up", "one", "with the instance", 1, 2 * mib},
	{Root, "pods/<uid>/<instance>/etc-hosts", "the pod's /etc/hosts", "one", "with the instance", 1, 2 * mib},
	{Root, "pods/<uid>/<instance>/volumes/...", "volumes", "`sizeLimit` of an emptyDir, `limits.ephemeral-storage`; else the disk: eviction", "with the instance", 1, 0},
	{Root, "pods/<uid>/<instance>/volume-subpaths/...", "mounts of parts of volumes", "one for each `subPath`", "with the instance", 1, 0},
	{Logs, "<namespace>_<name>_<uid>", "logs of a pod", "one for each pod", "with the pod", 0, 0},
	{Logs, "<namespace>_<name>_<uid>/<container>/<log>", "logs of a container", "for each container: `--container-log-max-files` files of `--container-log-max-size`, and 10 s of output", "rotation, every 10 s; with the container", 15, 32 * mib},
	{Links, "<link>", "links to logs", "one for each container that exists", "with the container; with the pod", 0, 0},

	// Of the node.
	{Root, "journal.jsonl", "the newest status of each pod", "4 MiB, or twice the newest statuses", "rewritten above the bound", 1, 8 * mib},
	{Root, "events.jsonl", "events", "1,000, in 1 MiB", "the oldest go; rewritten above the bound", 1, mib + 64*kib},
	{Root, "audit.jsonl", "privileged calls", "10 MiB", "rotated above the bound", 1, 10*mib + 64*kib},
	{Root, "audit.jsonl.<n>", "earlier privileged calls", "4 files of 10 MiB", "the next rotation removes the oldest", 4, 10*mib + 64*kib},
	{Root, "services.json", "addresses and node ports of Services", "one entry for each Service", "the running agent, when no source has the Service", 1, 0},
	{Root, "dns.log", "the output of the DNS server's process", "one fault a minute, while the process runs", "the next start of the process", 1, 0},
	{Root, "workloads/<workload>.json", "the state of a workload", "one for each workload: at most as many versions as its `revisionHistoryLimit` and those that pods have", "the running agent, when no source has the workload and its pods are gone", 0, 0},
	{Root, "workloads/logs/<workload>/<revision>/...", "the ends of the logs of a version that was rolled back", "3 versions of a workload, 10 pods of each, 2 MiB for each container", "with the state of the workload; a later rollback", 0, 0},
	{Root, "workloads/<workload>.json.corrupt-<time>", "a damaged state, for a person", "those of one start, and 9 before", "the next start that finds one", 0, 0},
	{Root, "sources/<layer>", "the last good set of a source", "one for each source", "the start of an agent without that source; one whose files are all damaged stays, for a person", 0, 0},
	{Root, "sources/<layer>/<file>.json", "the last good set of a manifest file", "one for each file, and a header", "when the file is gone", 0, 0},
	{Root, "sources/<layer>/<file>.json.corrupt-<time>", "a damaged set, for a person", "for each source, those of one start, and 9 before", "the next start that finds one", 0, 0},
	{Root, "images-used.json", "when images were in use", "one entry for each image", "when the image is gone", 1, mib},
	{Root, "cpu_manager_state", "the exclusive CPUs of containers", "one entry for each container", "when the container's pod is gone", 1, mib},
	{Root, "memory_manager_state", "the memory of NUMA nodes that containers have", "one entry for each container", "when the container's pod is gone", 1, mib},
	{Root, "images-imported.json", "image archives that were imported", "one entry for each archive", "when the archive is gone", 1, mib},
	{Root, "image_manager/pulling/<image>.json", "image pulls that run", "one for each image that is being pulled, or whose pull has an unknown outcome, also on runtimes that were used before", "the end of the pull; if that is unknown, the next pull by the same runtime", 0, 4 * kib},
	{Root, "image_manager/pulled/<image>", "which pull secrets have pulled an image", "100 secrets for each image, also of runtimes that were used before", "with the image, when no runtime may have it; image garbage collection, every 5 minutes, if another program has removed that", 0, mib},
	{Root, "pki/<certificate>", "certificates and keys", "the newest and the one before, for client and server", "the next rotation", 8, 64 * kib},
	{Root, "checkpoints/<checkpoint>.tar", "checkpoints", "10, and none where less than 1 GiB is free", "a person", 10, 0},
	{Root, "volumes/<namespace>/<claim>/...", "data of PersistentVolumeClaims", "none: it is the owner's", "`nodectl delete pvc`", 0, 0},
	{Root, "images/...", "image archives to import", "none: they are the owner's", "a person", 1, 0},
	{Root, "seccomp/...", "seccomp profiles", "none: they are the owner's", "a person", 1, 0},
	{Root, "config.json", "credentials of registries", "one: it is the owner's", "a person", 1, mib},
	{Root, ".dockercfg", "credentials of registries", "one: it is the owner's", "a person", 1, mib},
	{Root, "cgroups.json", "cgroups, where the kernel takes no mark", "one entry for each cgroup", "with the cgroup", 1, mib},
	{Root, "halt.json", "that the node is drained or shuts down", "one", "`nodectl drain --undo`, the next boot", 1, 4 * kib},
	{Root, "resource-claims/<claim>.json", "a prepared ResourceClaim", "one for each claim that a pod uses, and those that a driver does not unprepare", "the last pod of the claim; the running agent", 0, mib},
	{Root, "goroutines.txt", "stacks of a stalled agent", "the newest", "the next one", 1, 64 * mib},
	{Root, "lock", "the process that holds the directory", "one", "never", 1, 4 * kib},
	{Root, "node-name", "the node that owns the directory", "one", "never", 1, 4 * kib},
	{Root, "nodectl.sock", "a link to the socket", "one", "never", 1, 0},
	{Root, "agent/nodectl.sock", "the socket, where this is the run directory, too", "one", "the next agent", 1, 0},
	{Root, "agent/dns.sock", "the socket of the DNS server's process, where this is the run directory, too", "one", "the end of the process; the next one", 1, 0},
	{Root, "agent/dns.json", "the DNS server's processes, for the next agent, where this is the run directory, too", "one", "the end of the process; the next one", 1, 64 * kib},
	{Root, "kubelet/...", "the directory of plugins, where `--kubelet-dir` is not set", "see below", "see below", 1, 0},

	// Of the plugins.
	{Kubelet, "device-plugins/<socket>", "sockets of device plugins", "one for each plugin, and the agent's", "the next agent", 0, 0},
	{Kubelet, "pod-resources/<socket>", "the socket of pod resources", "one", "the next agent", 1, 0},
	{Kubelet, "plugins/...", "sockets of plugins, and staged volumes of CSI drivers", "one directory for each volume that a pod uses, and those that a driver does not unstage", "the last pod of the volume; the running agent", 1, 0},
	{Kubelet, "pods/<uid>/...", "mounted volumes of CSI drivers", "one directory for each volume of a pod", "the pod's worker; the sweep of a started agent", 0, 0},
	{Kubelet, "plugins_registry/...", "sockets of plugins that register", "none: they are the plugins'", "the plugins", 1, 0},

	// Of the bundled runtime.
	{Root, "bundle/<version>/...", "programs of the runtime", "this version, and those that shims of running pods use", "the start of the runtime, when their pods have ended", 2, 512 * mib},
	{Root, "runtime/containerd.log", "containerd's log", "10 MiB", "set aside above the bound, within a second, while `nodectl serve` runs", 1, 11 * mib},
	{Root, "runtime/containerd.log.1", "the log before", "10 MiB", "the next one", 1, 11 * mib},
	{Root, "runtime/root/...", "images, layers and writable layers", "`--image-gc-high-threshold` of the disk; `limits.ephemeral-storage`; eviction", "image garbage collection, every 5 minutes and after a pull; with the container", 1, 0},
	{Root, "runtime/cni/<network>", "the pods' network", "one", "the next start of the runtime", 1, 64 * kib},
	{Root, "runtime/certs.d/...", "settings of registries", "none: they are the owner's", "a person", 1, 0},
	{Root, "runtime/pause-seccomp.json", "the seccomp profile of sandboxes", "one", "the next version", 1, 64 * kib},
	{Root, "runtime/lock", "a lock", "one", "never", 1, 0},
	{Run, "config.toml", "containerd's configuration", "one", "the next start of the runtime", 1, 64 * kib},
	{Run, "launched.json", "namespaces of the runtime's processes", "one for each of them", "the next start of the runtime", 1, 64 * kib},
	{Run, "containerd.sock", "containerd's socket", "one", "the next boot", 1, 0},
	{Run, "containerd.sock.ttrpc", "containerd's socket for shims", "one", "the next boot", 1, 0},
	{Run, "s/<socket>", "sockets of shims", "one for each pod that runs", "with the pod's shim; the next boot", 0, 0},
	{Run, "state/...", "state of running containers", "one for each container", "with the container", 1, 0},
	{Run, "runc/...", "state of running containers", "one for each container", "with the container", 1, 0},
	{Run, "nodectl.sock", "a link to the agent's socket", "one", "the next boot", 1, 0},
	{Run, "agent/nodectl.sock", "the agent's socket", "one", "the next agent", 1, 0},
	{Run, "agent/dns.sock", "the socket of the DNS server's process", "one", "the end of the process; the next one", 1, 0},
	{Run, "agent/dns.json", "the DNS server's processes, for the next agent", "one", "the end of the process; the next one", 1, 64 * kib},
	{Run, "network.json", "devices that bundled runtimes share", "one entry for each", "with the last of those runtimes; the next boot", 1, 64 * kib},
	{Run, "addresses/...", "addresses of pods", "one for each pod", "with the pod; the next boot", 1, 0},
	{Run, "sources/...", "last good sets with Secrets of an API server", "as in the root directory", "as in the root directory; the next boot", 1, 0},
}
