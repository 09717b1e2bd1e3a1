package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/event"
	images "github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/logs"
	"github.com/nodectl/nodectl/pkg/pleg"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/volume"
	"github.com/nodectl/nodectl/test/growth"
)

func (m *machine) dir(name string) string { return filepath.Join(m.root, name) }

// useRoot gives an agent the real writers below a root directory, in place of the fakes.
func (m *machine) useRoot(cfg *Config, conn *critest.Conn) {
	root, podLogs, links := m.dir("root"), m.dir("logs"), m.dir("links")
	rt := conn.CRI(cri.Config{Node: "n1", NodeMemory: 8 << 30, RootDir: root, PodLogsDir: podLogs, ContainerLogsDir: links})
	puller := images.New(images.Config{Runtime: rt, Dir: filepath.Join(root, "image_manager")})
	go puller.Run(m.t.Context())
	cfg.Runtime = struct {
		*cri.Runtime
		*images.Puller
	}{rt, puller}
	cfg.Hints = pleg.New(pleg.Config{Runtime: rt})
	cfg.PodConfig = podconfig.New(podconfig.Config{Sources: []source.Source{m.src.reader(false)}})
	cfg.Records = record.New(root)
	cfg.Sets = record.NewSets(root, record.NewKey(root, ""))
	cfg.Volumes = volume.New(volume.Config{RootDir: root, PodLogsDir: podLogs, ContainerLogsDir: links})
	cfg.Sinks = []Sink{journal.New(filepath.Join(root, "journal.jsonl"), nil)}
	cfg.Logs = logs.New(logs.Config{Dir: podLogs, MaxSize: 1 << 10})
	events := event.Open(event.Config{Path: filepath.Join(root, "events.jsonl"), Node: "n1"})
	go events.Run(m.t.Context())
	cfg.Events = events
}

// differences compares the root directory with the table of growing files.
func (m *machine) differences(pods ...string) []string {
	m.t.Helper()
	n := growth.Node{Dirs: map[growth.Place]string{growth.Root: m.dir("root"), growth.Logs: m.dir("logs"), growth.Links: m.dir("links")}, Pods: map[string]bool{}}
	for _, name := range pods {
		n.Pods["uid-"+name] = true
	}
	have, err := m.rt.Connect().CRI(cri.Config{Node: "n1"}).Pods(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, p := range have {
		n.Objects = append(n.Objects, growth.Objects(p)...)
	}
	return n.Check()
}

// TestGrowth_ManyRestartsPodsAndEdits_RootIsAsTheTableSays: agents come and go, containers
// crash and write logs, and pods are edited, removed and added. Every file that they leave belongs
// to a row of the table, and stays within the row's bound. In the end there are no files of pods.
func TestGrowth_ManyRestartsPodsAndEdits_RootIsAsTheTableSays(t *testing.T) {
	root := t.TempDir()
	bubble(t, func(t *testing.T, m *machine) {
		m.root = root
		shown := func(turn int) func(*v1.Pod) {
			return func(p *v1.Pod) {
				c := &p.Spec.Containers[0]
				c.TerminationMessagePath = v1.TerminationMessagePathDefault
				c.Env = []v1.EnvVar{{Name: "TURN", Value: fmt.Sprint(turn)}}
				p.Spec.Volumes = []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
				c.VolumeMounts = []v1.VolumeMount{{Name: "d", MountPath: "/d"}}
			}
		}
		for turn := range 15 {
			passing := fmt.Sprint("passing", turn)
			m.src.set(
				mkpod("keeps", shown(0)),
				mkpod("edited", shown(turn)),
				mkpod("replaced", shown(0), initContainer("exit-0-after-1s"), func(p *v1.Pod) { p.Spec.Hostname = fmt.Sprint("h", turn) }),
				mkpod("crashes", shown(0), image("exit-1-after-3s")),
				mkpod(passing, shown(0), func(p *v1.Pod) { p.UID = types.UID("uid-" + passing) }),
			)
			if m.agent == nil {
				m.arrive()
			}
			m.pass(time.Minute)
			m.write(2 << 10)
			m.rt.Exit(pod.Key{Namespace: "default", Name: "keeps"}, "app", 1)
			m.pass(time.Duration(turn) * time.Second)
			switch turn % 3 {
			case 0:
				m.die()
			case 1:
				m.leave()
			}
		}
		if m.agent == nil {
			m.arrive()
		}
		m.pass(10 * time.Minute)
		if wrong := m.differences("keeps", "edited", "replaced", "crashes", "passing14"); len(wrong) > 0 {
			t.Error(strings.Join(wrong, "\n"))
		}
		for _, name := range []string{"root/journal.jsonl", "root/events.jsonl", "root/sources/*/*.json", "root/pods/uid-keeps/1/ready",
			"root/pods/uid-crashes/containers/app/*", "logs/*_passing14_*/app/*.log.*", "links/*"} {
			if found, _ := filepath.Glob(m.dir(name)); len(found) == 0 {
				t.Errorf("there is no %s: the test does not show its bound", name)
			}
		}
		m.src.set()
		m.pass(10 * time.Minute)
		if wrong := m.differences(); len(wrong) > 0 {
			t.Errorf("without pods: %s", strings.Join(wrong, "\n"))
		}
	})
}

// write appends text to every log that is written to now.
func (m *machine) write(size int) {
	m.t.Helper()
	files, err := filepath.Glob(m.dir("logs/*/*/*.log"))
	if err != nil || len(files) == 0 {
		m.t.Fatalf("no logs: %v", err)
	}
	for _, file := range files {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			m.t.Fatal(err)
		}
		_, err = f.WriteString(strings.Repeat("x", size) + "\n")
		if err := f.Close(); err != nil {
			m.t.Fatal(err)
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
}
