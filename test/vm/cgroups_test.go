//go:build vm

package vm

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	mark       = "trusted.nodectl"
	// hugePages is how many of 2 MiB the machine has while cgroups are looked at.
	hugePages = 8
)

// values are files of one cgroup with their contents.
type values map[string]string

// member is a pod of the tests of cgroups: numbers worked out by hand, as the kubelet
// does (C-1.22.14, C-1.41.2). Its weight is 1 + (shares-2)×9999/262142; that of a
// container is runc's own.
type member struct {
	name, uid, class, spec string
	pod                    values
	containers             map[string]values
}

// container is one of a pod of these tests, in YAML.
func container(name, resources string) string {
	return "{name: " + name + ", image: " + node.Stamp + ", imagePullPolicy: Never, args: [forever], resources: " + resources + "}"
}

func members(systemd bool) []member {
	whole, part := "22300 100000", "12300 100000"
	if systemd { // it knows hundredths of a processor, and the library rounds up
		whole, part = "23000 100000", "13000 100000"
	}
	none := values{"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max", "pids.max": "150", "hugetlb.2MB.max": "0"}
	return []member{
		{ // 200m: 204 shares
			name: "guaranteed", uid: "11111111-aaaa-4000-8000-000000000001",
			spec: "containers: [" + container("a", "{limits: {cpu: 200m, memory: 64Mi, hugepages-2Mi: 4Mi}}") + "]",
			pod:  values{"cpu.weight": "8", "cpu.max": "20000 100000", "memory.max": "67108864", "pids.max": "150", "hugetlb.2MB.max": "4194304"},
			containers: map[string]values{
				"a": {"cpu.weight": "29", "cpu.max": "20000 100000", "memory.max": "67108864", "hugetlb.2MB.max": "4194304", "memory.swap.max": "0"},
			},
		},
		{ // 50m and 100m: 153 shares; 223m of time
			name: "closed", uid: "22222222-aaaa-4000-8000-000000000002", class: "burstable",
			spec: "containers: [" + container("a", "{requests: {cpu: 50m}, limits: {cpu: 123m, memory: 32Mi}}") + ", " +
				container("b", "{requests: {cpu: 100m}, limits: {cpu: 100m, memory: 64Mi}}") + "]",
			pod: values{"cpu.weight": "6", "cpu.max": whole, "memory.max": "100663296", "pids.max": "150", "hugetlb.2MB.max": "0"},
			containers: map[string]values{
				"a": {"cpu.weight": "11", "cpu.max": part, "memory.max": "33554432", "hugetlb.2MB.max": "0"},
				"b": {"cpu.weight": "17", "cpu.max": "10000 100000", "memory.max": "67108864"},
			},
		},
		{ // 100m: 102 shares; one container is not limited
			name: "open", uid: "33333333-aaaa-4000-8000-000000000003", class: "burstable",
			spec: "containers: [" + container("a", "{requests: {cpu: 100m}, limits: {cpu: 200m, memory: 32Mi}}") + ", " + container("b", "{}") + "]",
			pod:  values{"cpu.weight": "4", "cpu.max": "max 100000", "memory.max": "max", "pids.max": "150", "hugetlb.2MB.max": "0"},
			containers: map[string]values{
				"a": {"cpu.weight": "17", "cpu.max": "20000 100000", "memory.max": "33554432"},
				"b": {"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max"},
			},
		},
		{ // the pod's own 150m, 300m and 80Mi
			name: "whole", uid: "44444444-aaaa-4000-8000-000000000004", class: "burstable",
			spec:       "resources: {requests: {cpu: 150m, memory: 40Mi}, limits: {cpu: 300m, memory: 80Mi}}, containers: [" + container("a", "{}") + "]",
			pod:        values{"cpu.weight": "6", "cpu.max": "30000 100000", "memory.max": "83886080", "pids.max": "150", "hugetlb.2MB.max": "0"},
			containers: map[string]values{"a": {}},
		},
		{
			name: "besteffort", uid: "55555555-aaaa-4000-8000-000000000005", class: "besteffort",
			spec:       "containers: [" + container("a", "{}") + "]",
			pod:        none,
			containers: map[string]values{"a": {"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max"}},
		},
	}
}

// above has the values of the cgroups above the pods: the burstable pods request weight. 100m,
// 256Mi and 1000 processes are the system's.
func above(t testing.TB, a *agent, weight string) map[string]values {
	t.Helper()
	cpus := strings.TrimSpace(read(t, "/sys/devices/system/cpu/online"))
	all, ok := map[string]string{"0": "36", "0-1": "75"}[cpus] // 900m: 921 shares; 1900m: 1945
	if !ok {
		t.Fatalf("processors %s, want one or two", cpus)
	}
	var kib, pids, threads int64
	if _, err := fmt.Sscanf(read(t, "/proc/meminfo"), "MemTotal: %d kB", &kib); err != nil {
		t.Fatal(err)
	}
	for file, n := range map[string]*int64{"/proc/sys/kernel/pid_max": &pids, "/proc/sys/kernel/threads-max": &threads} {
		if _, err := fmt.Sscan(read(t, file), n); err != nil {
			t.Fatal(err)
		}
	}
	// 1<<62 is the kubelet's word for huge pages that a tier does not limit.
	open := values{"cpu.max": "max 100000", "memory.max": "max", "pids.max": "max", "hugetlb.2MB.max": "4611686018427387904"}
	burstable, bestEffort := maps.Clone(open), maps.Clone(open)
	burstable["cpu.weight"], bestEffort["cpu.weight"] = weight, "1"
	return map[string]values{
		a.dir(""): {
			"cpu.weight": all, "cpu.max": "max 100000", "memory.max": strconv.FormatInt((kib-256*1024)*1024, 10),
			"pids.max": strconv.FormatInt(min(pids, threads)-1000, 10), "hugetlb.2MB.max": strconv.Itoa(hugePages << 21),
		},
		a.dir("burstable"):  burstable,
		a.dir("besteffort"): bestEffort,
	}
}

// TestC_1_41_CgroupsOnV2: the kubelet's tree on a kernel with cgroup v2 alone, made by either
// driver. It has the pods' requests from the first moment on, through all restarts of systemd and
// the agent, and is removed with the last pod.
//
// Shows: C-1.41
func TestC_1_41_CgroupsOnV2(t *testing.T) {
	for _, driver := range []string{"cgroupfs", "systemd"} {
		t.Run(driver, func(t *testing.T) {
			const pool = "/proc/sys/vm/nr_hugepages"
			if err := os.WriteFile(pool, []byte(strconv.Itoa(hugePages)), 0); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.WriteFile(pool, []byte("0"), 0) })
			if got := strings.TrimSpace(read(t, pool)); got != strconv.Itoa(hugePages) {
				t.Fatalf("%s huge pages, want %d", got, hugePages)
			}
			a := newAgent(t, driver, "")
			t.Run("F34_Foreign", func(t *testing.T) { foreign(t, a) })
			t.Run("Life", func(t *testing.T) { life(t, a) })
		})
	}
}

// TestC_1_41_CgroupRootOfItsOwn: the same below an own cgroup, which does not exist before
// and goes with the last pod. In a slice's name a dash would be another level (C-1.41.1).
//
// Shows: C-1.41
func TestC_1_41_CgroupRootOfItsOwn(t *testing.T) {
	a := newAgent(t, "systemd", "my-own")
	m := member{
		name: "deep", uid: "88888888-aaaa-4000-8000-000000000008", class: "burstable",
		spec:       "containers: [" + container("a", "{requests: {cpu: 100m}, limits: {memory: 32Mi}}") + "]",
		pod:        values{"cpu.weight": "4", "cpu.max": "max 100000", "memory.max": "33554432", "pids.max": "150"},
		containers: map[string]values{"a": {"cpu.weight": "17", "memory.max": "33554432"}},
	}
	a.put(t, m.name, m.uid, m.spec)
	eventually(t, func() error { // an agent that ends with its tree half made
		_, err := os.Stat(filepath.Dir(a.dir("")))
		return err
	})
	a.kill(t)
	a.await(t, m.name, "ready", ready)
	own := map[string]values{a.dir(""): {}, a.dir("burstable"): {"cpu.weight": "4"}, a.dir("besteffort"): {"cpu.weight": "1"}}
	if want := cgroupRoot + "/my_own.slice/my_own-kubepods.slice/my_own-kubepods-burstable.slice"; a.dir("burstable") != want {
		t.Fatalf("looks at %s, want %s", a.dir("burstable"), want)
	}
	a.checkTree(t, []member{m}, own, "start")
	a.drop(t, m.name)
	eventually(t, func() error {
		if _, err := os.Stat(cgroupRoot + "/my_own.slice"); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it is left: %v", err)
		}
		return nil
	})
	if said := systemctl(t, "list-units", "--all", "--plain", "--no-legend", "my_own*"); said != "" {
		t.Errorf("systemd still knows of %s", said)
	}
}

func life(t *testing.T, a *agent) {
	all := members(a.systemd)
	for _, m := range all {
		a.put(t, m.name, m.uid, m.spec)
	}
	for _, m := range all {
		a.await(t, m.name, "ready", ready)
	}
	ids := a.ids(t)
	check := func(t testing.TB, weight, after string) {
		t.Helper()
		a.checkTree(t, all, above(t, a, weight), after)
		if now := a.ids(t); !same(now, ids) {
			t.Errorf("%s: containers were\n%v\nare\n%v", after, ids, now)
		}
	}
	const weight = "16" // 150m, 100m and 150m: 409 shares
	check(t, weight, "start")
	for _, args := range [][]string{{"daemon-reload"}, {"daemon-reexec"}, {"restart", a.unit}, {"daemon-reload"}} {
		systemctl(t, args...)
		check(t, weight, strings.Join(args, " "))
	}
	a.kill(t)
	check(t, weight, "kill -9")

	// A resize, in place: more, then less. 300m: 307 shares; the tier has 500m: 512.
	all[0].pod = values{"cpu.weight": "12", "cpu.max": "30000 100000", "memory.max": "134217728", "pids.max": "150", "hugetlb.2MB.max": "4194304"}
	all[0].containers["a"] = values{"cpu.weight": "40", "cpu.max": "30000 100000", "memory.max": "134217728", "hugetlb.2MB.max": "4194304"}
	a.put(t, all[0].name, all[0].uid, strings.NewReplacer("200m", "300m", "64Mi", "128Mi").Replace(all[0].spec))
	all[2].pod = values{"cpu.weight": "8", "cpu.max": "max 100000", "memory.max": "max", "pids.max": "150"}
	all[2].containers["a"]["cpu.weight"] = "29"
	a.put(t, all[2].name, all[2].uid, strings.Replace(all[2].spec, "cpu: 100m", "cpu: 200m", 1))
	a.settle(t, all, above(t, a, "20"))
	check(t, "20", "a resize up")
	systemctl(t, "daemon-reload")
	check(t, "20", "daemon-reload after a resize up")

	all[0].pod = values{"cpu.weight": "4", "cpu.max": "10000 100000", "memory.max": "100663296", "pids.max": "150", "hugetlb.2MB.max": "4194304"}
	all[0].containers["a"] = values{"cpu.weight": "17", "cpu.max": "10000 100000", "memory.max": "100663296", "hugetlb.2MB.max": "4194304"}
	a.put(t, all[0].name, all[0].uid, strings.NewReplacer("200m", "100m", "64Mi", "96Mi").Replace(all[0].spec))
	all[2].pod["cpu.weight"], all[2].containers["a"]["cpu.weight"] = "4", "17"
	a.put(t, all[2].name, all[2].uid, all[2].spec)
	a.settle(t, all, above(t, a, weight))
	check(t, weight, "a resize down")
	a.kill(t)
	check(t, weight, "kill -9 after a resize down")

	for _, i := range []int{4, 1} { // besteffort, then one of three burstable ones
		a.drop(t, all[i].name)
		delete(ids, all[i].name)
		all = slices.Delete(all, i, i+1)
		a.settle(t, all, above(t, a, map[int]string{4: weight, 1: "10"}[i])) // 250m: 256 shares
	}
	for _, m := range all {
		a.drop(t, m.name)
	}
	eventually(t, func() error {
		left := a.under("")
		if len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	if said := systemctl(t, "list-units", "--all", "--plain", "--no-legend", "kubepods*"); said != "" {
		t.Errorf("systemd still knows of %s", said)
	}
	if marks := marksOf(t, cgroupRoot); len(marks) > 0 {
		t.Errorf("marks left on the root: %v", marks)
	}
}

// foreign: the agent leaves another program's tree, with a process in it, as it is, down to
// each number, and the pod names the tree. When the tree has gone, the pod starts.
func foreign(t *testing.T, a *agent) {
	top, theirs := a.dir(""), a.pod("burstable", "77777777-aaaa-4000-8000-000000000007")
	var end func()
	if a.systemd {
		systemd := exec.CommandContext(t.Context(), "systemd-run", "--unit=foreign", "--slice="+filepath.Base(theirs), "-p", "CPUWeight=33", "sleep", "infinity")
		if out, err := systemd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		systemctl(t, "set-property", "--runtime", "kubepods.slice", "CPUWeight=77")
		end = func() {
			_ = exec.Command("systemctl", "stop", "foreign").Run()
			_ = exec.Command("systemctl", "stop", "kubepods.slice").Run()
			_ = exec.Command("systemctl", "revert", "kubepods.slice").Run()
		}
	} else {
		if err := os.MkdirAll(theirs, 0o755); err != nil {
			t.Fatal(err)
		}
		sleep := exec.Command("sleep", "infinity")
		if err := sleep.Start(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(theirs, "cgroup.procs"), []byte(strconv.Itoa(sleep.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, "cgroup.subtree_control"), []byte("+cpu"), 0); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, "burstable/cpu.weight"), []byte("77"), 0); err != nil {
			t.Fatal(err)
		}
		end = func() {
			_ = sleep.Process.Kill()
			_ = sleep.Wait()
			for dir := theirs; dir != cgroupRoot; dir = filepath.Dir(dir) {
				_ = wait.Try(func() error { return os.Remove(dir) })
			}
		}
	}
	defer func() { end() }()
	before := everything(t, top)
	const uid = "66666666-aaaa-4000-8000-000000000006"
	a.put(t, "late", uid, "containers: ["+container("a", "{requests: {cpu: 10m}}")+"]")
	eventually(t, func() error {
		said := a.said(t, "late")
		for _, w := range []string{top, "is not nodectl's", "--cgroup-root /nodectl", "stop the kubelet"} {
			if !strings.Contains(said, w) {
				return fmt.Errorf("it does not say %q: %s", w, said)
			}
		}
		return nil
	})
	if now := everything(t, top); now != before {
		t.Errorf("the tree was\n%s\nis\n%s", before, now)
	}
	end()
	end = func() {}
	a.await(t, "late", "ready", ready)
	a.drop(t, "late")
	eventually(t, func() error {
		if left := a.under(""); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// everything returns the writable values of a tree of cgroups, marks included.
func everything(t testing.TB, top string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			fmt.Fprintf(&b, "%s %v\n", path, marksOf(t, path))
			return nil
		}
		switch name := d.Name(); {
		case name == "cgroup.procs", name == "cgroup.subtree_control", name == "cpu.weight", strings.HasSuffix(name, ".max"):
			text, err := os.ReadFile(path)
			fmt.Fprintf(&b, "%s %q %v\n", path, text, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// marksOf returns the extended attributes of a cgroup that are nodectl's.
func marksOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(dir, list)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	all := map[string]string{}
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if !strings.HasPrefix(name, mark) {
			continue
		}
		value := make([]byte, 512)
		n, err := unix.Lgetxattr(dir, name, value)
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		all[name] = string(value[:n])
	}
	return all
}

// checkTree fails unless the kernel has exactly these pods' cgroups, with the wanted values.
func (a *agent) checkTree(t testing.TB, all []member, above map[string]values, after string) {
	t.Helper()
	if err := a.tree(t, all, above); err != nil {
		t.Errorf("after %s: %v", after, err)
	}
}

// settle returns when the tree is as wanted.
func (a *agent) settle(t testing.TB, all []member, above map[string]values) {
	t.Helper()
	eventually(t, func() error { return a.tree(t, all, above) })
}

func (a *agent) tree(t testing.TB, all []member, above map[string]values) error {
	t.Helper()
	var errs []error
	want := maps.Clone(above)
	for _, m := range all {
		want[a.pod(m.class, m.uid)] = m.pod
	}
	found := a.under("")
	for _, dir := range found {
		if _, ok := want[dir]; !ok {
			errs = append(errs, fmt.Errorf("%s is not wanted", dir))
		}
	}
	for dir, v := range want {
		if !slices.Contains(found, dir) {
			errs = append(errs, fmt.Errorf("%s is not there", dir))
			continue
		}
		errs = append(errs, holds(dir, v))
		marks := marksOf(t, dir)
		if len(marks) != 1 || !strings.HasPrefix(marks[mark], nodeName+" ") {
			errs = append(errs, fmt.Errorf("%s has the marks %v, want one", dir, marks))
		}
	}
	ids := a.ids(t)
	for _, m := range all {
		for c, v := range m.containers {
			dir := a.scope(a.pod(m.class, m.uid), ids[m.name][c])
			errs = append(errs, holds(dir, v))
			if _, err := os.Stat(dir); err == nil && len(marksOf(t, dir)) > 0 {
				errs = append(errs, fmt.Errorf("%s, the runtime's, is marked", dir))
			}
		}
	}
	return errors.Join(errs...)
}

func holds(dir string, want values) error {
	var errs []error
	for file, w := range want {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if got := strings.TrimSpace(string(text)); err != nil || got != w {
			errs = append(errs, fmt.Errorf("%s/%s is %q (%v), want %s", dir, file, got, err, w))
		}
	}
	return errors.Join(errs...)
}

func read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
