//go:build linux

package support

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	mounted = "volumeMounts: [{name: v, mountPath: /v}]"
	claim   = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`
)

// fileSystem returns the file system at a mount.
func (n *node) fileSystem(at string) (s unix.Statfs_t, err error) {
	m := n.mount(at)
	if m == nil {
		return s, fmt.Errorf("no mount %s", at)
	}
	return s, unix.Statfs(m.GetHostPath(), &s)
}

func volumeProofs() []proof {
	const at = "spec.volumes[]"
	all := []proof{
		{
			name: "directory of the node", rows: "spec.volumes spec.volumes[].name " + at + ".hostPath " + at + ".hostPath.path " + at + ".hostPath.type",
			spec: "volumes: [{name: v, hostPath: {path: $DIR/host/sub, type: DirectoryOrCreate}}]", container: mounted,
			look: func(n *node) error {
				path := filepath.Join(n.dir, "host/sub")
				_, err := os.Stat(path)
				return errors.Join(is("mount", n.mount("/v").GetHostPath(), path), err)
			},
		},
		{
			name: "memory", rows: at + ".emptyDir " + at + ".emptyDir.medium " + at + ".emptyDir.sizeLimit",
			spec: "volumes: [{name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]", container: mounted,
			look: func(n *node) error {
				s, err := n.fileSystem("/v")
				return errors.Join(err, is("kind of file system", s.Type, int64(unix.TMPFS_MAGIC)), is("bytes", int64(s.Blocks)*s.Bsize, 1<<20))
			},
		},
		{
			name: "image", rows: at + ".image " + at + ".image.reference " + at + ".image.pullPolicy",
			spec: "volumes: [{name: v, image: {reference: 'data:1', pullPolicy: Always}}]", container: mounted,
			look: func(n *node) error {
				n.pass(time.Minute)
				return errors.Join(is("image", n.mount("/v").GetImage().GetUserSpecifiedImage(), "data:1"), holds(len(n.calls("PullImage data:1")) > 0, "not pulled"))
			},
		},
		{
			name: "claim", rows: at + ".persistentVolumeClaim " + at + ".persistentVolumeClaim.claimName " + at + ".persistentVolumeClaim.readOnly",
			spec: "volumes: [{name: v, persistentVolumeClaim: {claimName: data, readOnly: true}}]", container: mounted, with: claim,
			look: func(n *node) error {
				m := n.mount("/v")
				return errors.Join(holds(strings.HasPrefix(m.GetHostPath(), filepath.Join(n.root, "volumes/default/data")), "mount %v", m), is("read-only", m.GetReadonly(), true))
			},
		},
	}
	all = append(all, keyProofs("ConfigMap", at+".configMap", "name", "cfg", func(s string) string { return "configMap: {" + s + "}" }, true)...)
	all = append(all, keyProofs("Secret", at+".secret", "secretName", "sec", func(s string) string { return "secret: {" + s + "}" }, true)...)
	all = append(all, downwardProofs("pod's fields", at+".downwardAPI", func(s string) string { return "downwardAPI: {" + s + "}" }, true)...)
	const of = at + ".projected.sources[]"
	project := func(kind string) func(string) string {
		return func(s string) string { return "projected: {sources: [{" + kind + ": {" + s + "}}]}" }
	}
	all = append(all, keyProofs("ConfigMap, projected", of+".configMap", "name", "cfg", project("configMap"), false)...)
	all = append(all, keyProofs("Secret, projected", of+".secret", "name", "sec", project("secret"), false)...)
	all = append(all, downwardProofs("pod's fields, projected", of+".downwardAPI", project("downwardAPI"), false)...)
	return append(all, proof{
		name: "projected", rows: at + ".projected " + at + ".projected.sources " + at + ".projected.defaultMode", with: objects,
		spec: "volumes: [{name: v, projected: {defaultMode: 256, sources: [{configMap: {name: cfg}}]}}]", container: mounted,
		look: func(n *node) error { return is("file", n.file("/v", "k"), "0400 one") },
	})
}

// keyProofs are those of a volume whose files are an object's keys.
func keyProofs(kind, at, name, object string, in func(string) string, modes bool) []proof {
	rows, mode, other := []string{at, at + "." + name, at + ".items", at + ".items[].key", at + ".items[].path", at + ".items[].mode"}, "", "0644"
	if modes {
		rows, mode, other = append(rows, at+".defaultMode"), "defaultMode: 256, ", "0400"
	}
	return []proof{
		{
			name: "files of a " + kind, rows: strings.Join(rows, " "), with: objects, container: mounted,
			spec: "volumes: [{name: v, " + in(mode+name+": "+object+", items: [{key: k, path: sub/f, mode: 384}, {key: l, path: g}]") + "}]",
			look: func(n *node) error {
				return errors.Join(is("file", n.file("/v", "sub/f"), "0600 one"), is("file", n.file("/v", "g"), other+" two"), is("file not asked for", n.file("/v", "k"), "no file"))
			},
		},
		{
			name: "files of a " + kind + " that may be missing", rows: at + ".optional", container: mounted,
			spec: "volumes: [{name: v, " + in(name+": absent, optional: true") + "}]",
			look: func(n *node) error { return holds(n.mount("/v") != nil, "no mount") },
		},
	}
}

// downwardProofs are those of a volume whose files are the pod's fields.
func downwardProofs(kind, at string, in func(string) string, modes bool) []proof {
	i := at + ".items[]"
	rows := []string{
		at, at + ".items", i + ".path", i + ".mode", i + ".fieldRef", i + ".fieldRef.apiVersion", i + ".fieldRef.fieldPath",
		i + ".resourceFieldRef", i + ".resourceFieldRef.containerName", i + ".resourceFieldRef.resource", i + ".resourceFieldRef.divisor",
	}
	mode, other := "", "0644"
	if modes {
		rows, mode, other = append(rows, at+".defaultMode"), "defaultMode: 256, ", "0400"
	}
	return []proof{{
		name: "files of the " + kind, rows: strings.Join(rows, " "), same: i + ".fieldRef.apiVersion",
		container: mounted + ", resources: {limits: {memory: 64Mi}}",
		spec: "volumes: [{name: v, " + in(mode+"items: [{path: a, mode: 384, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}, "+
			"{path: b, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}]") + "}]",
		look: func(n *node) error {
			return errors.Join(is("file", n.file("/v", "a"), "0600 default"), is("file", n.file("/v", "b"), other+" 64"))
		},
	}}
}

// group returns the group of the file at a path.
func group(path string) (uint32, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Gid, nil
}

func securityPodProofs() []proof {
	const at = "spec.securityContext"
	return []proof{
		{
			name: "users of the pod", rows: at + " " + at + ".runAsUser " + at + ".runAsGroup " + at + ".supplementalGroups " + at + ".supplementalGroupsPolicy",
			spec: "securityContext: {runAsUser: 7, runAsGroup: 8, supplementalGroups: [9], supplementalGroupsPolicy: Strict}",
			look: func(n *node) error {
				c, b := n.security(), n.box().GetLinux().GetSecurityContext()
				return errors.Join(is("user", c.GetRunAsUser().GetValue(), 7), is("group", c.GetRunAsGroup().GetValue(), 8), is("groups", c.GetSupplementalGroups(), []int64{9}),
					is("policy", c.GetSupplementalGroupsPolicy().String(), "Strict"), is("sandbox's user", b.GetRunAsUser().GetValue(), 7))
			},
		},
		{
			name: "pod not as root", rows: at + ".runAsNonRoot", spec: "securityContext: {runAsNonRoot: true}",
			look: func(n *node) error {
				w := n.state().State.Waiting
				return holds(w != nil && w.Reason == "CreateContainerConfigError", "state %+v", n.state().State)
			},
		},
		{
			name: "SELinux of the pod", rows: at + ".seLinuxOptions " + at + ".seLinuxOptions.user " + at + ".seLinuxOptions.role " + at + ".seLinuxOptions.type " + at + ".seLinuxOptions.level",
			spec: "securityContext: {seLinuxOptions: {user: u, role: r, type: t, level: s0}}",
			look: func(n *node) error {
				return errors.Join(seLinux(n.security().GetSelinuxOptions()), seLinux(n.box().GetLinux().GetSecurityContext().GetSelinuxOptions()))
			},
		},
		{
			name: "seccomp of the pod", rows: at + ".seccompProfile " + at + ".seccompProfile.type " + at + ".seccompProfile.localhostProfile",
			spec: "securityContext: {seccompProfile: {type: Localhost, localhostProfile: p.json}}",
			look: func(n *node) error {
				return is("profile", n.security().GetSeccomp().GetLocalhostRef(), n.dir+"/seccomp/p.json")
			},
		},
		{
			name: "AppArmor of the pod", rows: at + ".appArmorProfile " + at + ".appArmorProfile.type " + at + ".appArmorProfile.localhostProfile",
			spec: "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: p}}",
			look: func(n *node) error { return is("profile", n.security().GetApparmor().GetLocalhostRef(), "p") },
		},
		{
			name: "pod unconfined", rows: at + ".seccompProfile.type " + at + ".appArmorProfile.type",
			spec: "securityContext: {seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}}",
			look: unconfined,
		},
		{
			name: "sysctls", rows: at + ".sysctls " + at + ".sysctls[].name " + at + ".sysctls[].value",
			spec: "securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: '1'}]}",
			look: func(n *node) error {
				return is("sysctls", n.box().GetLinux().GetSysctls(), map[string]string{"kernel.shm_rmid_forced": "1"})
			},
		},
		{
			name: "group of volumes", rows: at + ".fsGroup", spec: "securityContext: {fsGroup: 77}, volumes: [{name: v, emptyDir: {}}]", container: mounted,
			look: func(n *node) error {
				gid, err := group(n.mount("/v").GetHostPath())
				return errors.Join(err, is("group", gid, 77), is("groups", n.security().GetSupplementalGroups(), []int64{77}))
			},
		},
		{
			name: "when the group of volumes is changed", rows: at + ".fsGroupChangePolicy", with: claim,
			spec:      "securityContext: {fsGroup: 77, fsGroupChangePolicy: OnRootMismatch}, volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]",
			container: mounted,
			look: func(n *node) error {
				path := filepath.Join(n.mount("/v").GetHostPath(), "f")
				if err := n.write("main", "/v", "f", ""); err != nil {
					return err
				}
				if err := os.Chown(path, 0, 5); err != nil {
					return err
				}
				if err := n.edit("hostname: other"); err != nil {
					return err
				}
				n.pass(time.Minute)
				gid, err := group(path)
				return errors.Join(err, is("hostname", n.box().GetHostname(), "other"), is("group", gid, 5))
			},
		},
	}
}
