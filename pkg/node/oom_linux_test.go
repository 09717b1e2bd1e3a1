package node

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// kmsg yields one record at each read, as the kernel does; "" is a record that was
// overwritten.
type kmsg []string

func (k *kmsg) Read(b []byte) (int, error) {
	if len(*k) == 0 {
		return 0, io.EOF
	}
	record := (*k)[0]
	*k = (*k)[1:]
	if record == "" {
		return 0, unix.EPIPE
	}
	return copy(b, record), nil
}

// TestSystemOOM: only a kill because the whole machine is out of memory is reported, with the
// kubelet's text.
//
// Shows: C-1.25.10
func TestSystemOOM(t *testing.T) {
	const begin = "4,1,5,-;stress invoked oom-killer: gfp_mask=0x140dca, order=0, oom_score_adj=0\n"
	group := "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/kubepods,task_memcg=/kubepods/a,task=a,pid=7,uid=0"
	machine := "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/init.scope,task=my prog,pid=42,uid=0"
	for name, c := range map[string]struct {
		log  kmsg
		want []string
	}{
		"machine":               {kmsg{begin, "4,2,6,-;CPU: 0 PID: 42\n SUBSYSTEM=x\n", "6,3,7,-;" + machine + "\n", "3,4,8,-;Out of memory: Killed process 42 (my prog) total-vm:1kB\n"}, []string{"System OOM encountered, victim process: my prog, pid: 42"}},
		"cgroup":                {kmsg{begin, "6,3,7,-;" + group + "\n", "3,4,8,-;Memory cgroup out of memory: Killed process 7 (a)\n"}, nil},
		"both":                  {kmsg{begin, "6,3,7,-;" + group, begin, "6,3,7,-;" + machine}, []string{"System OOM encountered, victim process: my prog, pid: 42"}},
		"old kernel":            {kmsg{begin, "3,4,8,-;Killed process 9 (java) total-vm:1kB"}, []string{"System OOM encountered, victim process: java, pid: 9"}},
		"old kernel, cgroup":    {kmsg{begin, "6,3,7,-;Task in /a killed as a result of limit of /a", "3,4,8,-;Killed process 9 (java) total-vm:1kB"}, nil},
		"an overwritten record": {kmsg{begin, "", "6,3,7,-;" + machine}, []string{"System OOM encountered, victim process: my prog, pid: 42"}},
		"text of a program":     {kmsg{"12,1,5,-;x invoked oom-killer:", "12,3,7,-;" + machine, "nonsense"}, nil},
		"without a beginning":   {kmsg{"6,3,7,-;" + machine}, nil},
	} {
		var got []string
		if err := readOOM(&c.log, func(v Victim) { got = append(got, v.Message()) }); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := fmt.Sprint(Victim{Process: "a"}.Message()); strings.Contains(got, "pid") {
		t.Error(got)
	}
}
