package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/pleg"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/ui"
	"github.com/nodectl/nodectl/test/wait"
)

// fed is a source that yields the sets of a test.
type fed struct{ sets chan source.Snapshot }

func (fed) Name() string { return "file:/fed" }
func (f fed) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		for {
			select {
			case s := <-f.sets:
				if !yield(s, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// feed sends a set whose pod web contains n and bytes of padding, and returns when the
// engine has received it.
func (f fed) feed(t testing.TB, n, bytes int) {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid", Annotations: map[string]string{"n": fmt.Sprint(n), "load": strings.Repeat("x", bytes)}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "c:1"}}},
	}
	s := &pod.Spec{Key: pod.KeyOf(p), Pod: p, Hash: fmt.Sprint("v1-", n), Origin: pod.Origin{Source: "file", Location: "/fed", File: "/fed/web.yaml", Line: 1}}
	select {
	case f.sets <- source.Snapshot{Revision: uint64(n + 1), Files: source.FilesOf(source.File{File: "/fed/web.yaml", Pods: []*pod.Spec{s}})}:
	case <-time.After(wait.Limit):
		t.Fatal("the engine takes nothing any more")
	}
}

// fedEngine runs a whole engine until the test ends. Its runtime is not ready, so that
// only updates of the sources are measured.
func fedEngine(t testing.TB, log *slog.Logger) (fed, Config, *engine.Engine, hints) {
	root, err := os.MkdirTemp("", "fed") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	cfg := Config{Config: readonly.Config{
		Config: config.Config{RootDir: root, PodLogsDir: filepath.Join(root, "logs"), NodeName: "n1", SyncFrequency: time.Minute}, Log: log,
	}}
	rt := critest.New()
	rt.SetReady(false, false, "not now")
	f := fed{make(chan source.Snapshot)}
	client := rt.Connect().CRI(cri.Config{Node: "n1", PodLogsDir: cfg.PodLogsDir, Log: log})
	a := &Agent{cfg: cfg, log: log, state: openState(cfg), runtime: &containerRuntime{Runtime: client, hints: pleg.New(pleg.Config{Runtime: client})}, halts: &nodeHalt{}}
	e := a.newEngine(podconfig.New(podconfig.Config{Sources: []source.Source{f}}), readonly.Rules{}, receivers{})
	runUntilEnd(t, e.Run)
	return f, cfg, e, a.runtime.hints
}

// runUntilEnd runs f beside the test, until that ends.
func runUntilEnd(t testing.TB, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	})
}

// fedAgent is fedEngine with its socket, and a client of that.
func fedAgent(t testing.TB) (fed, *client.Client) {
	f, cfg, e, _ := fedEngine(t, slog.New(slog.DiscardHandler))
	answers := feedConfig(cfg, e.Live())
	answers.WriteTimeout = 10 * time.Minute // the stuck reader stays connected until the others are done
	if err := openRun(cfg.Config.Config); err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, server.New(answers).Serve)
	c, err := client.New(client.Config{
		Socket: cfg.SocketPath(),
		Dial:   func(ctx context.Context) (net.Conn, error) { return server.Dial(ctx, cfg.SocketPath()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, func() error {
		var d ui.SourceList
		return c.Document(t.Context(), "/v1/sources", nil, &d)
	})
	return f, c
}

// followed yields the agent's updates.
func followed(ctx context.Context, c *client.Client) iter.Seq2[ui.PodUpdate, error] {
	return func(yield func(ui.PodUpdate, error) bool) {
		for line, err := range c.Lines(ctx, "/v1/updates", ui.Selection{}.Query()) {
			var d ui.PodUpdate
			if err == nil {
				err = json.Unmarshal(line, &d)
			}
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// TestSocket_ReaderIsStuck_DelaysNoOther lets ten readers follow over the socket.
// Nine get every update, in order. One reads nothing for a while: it gets the updates in
// transit, then DROPPED with the number of lost ones, one SET, and all later updates.
//
// Shows: I5
func TestSocket_ReaderIsStuck_DelaysNoOther(t *testing.T) {
	t.Parallel()
	const updates, others = 1200, 9 // addServingMetrics 10 of docs/benchmarks.md has a hundred readers
	f, c := fedAgent(t)
	f.feed(t, 0, 0)
	stuck, err := c.Get(t.Context(), "/v1/updates", ui.Selection{Full: true}.Query()) // its lines are long, and soon fill the socket
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	in := json.NewDecoder(stuck)
	var first ui.PodUpdate
	if err := in.Decode(&first); err != nil || numberOf(t, first) != 0 { // the reader follows from now on
		t.Fatalf("%v, %v", first, err)
	}

	arrived := make(chan struct{}, others) // receives from a reader after each hundred lines
	var wg sync.WaitGroup
	for range others {
		wg.Go(func() { followInOrder(t, c, updates, arrived) })
	}
	for range others {
		<-arrived
	}
	for n := 1; n <= updates; n++ {
		f.feed(t, n, 8<<10)
		if n%100 == 0 {
			for range others {
				<-arrived
			}
		}
	}
	wg.Wait()

	lost, set, last := 0, false, 0
	for last < updates {
		var d ui.PodUpdate
		if err := in.Decode(&d); err != nil {
			t.Fatal(err)
		}
		switch op := podconfig.Op(d.Op); {
		case op == "DROPPED" && lost == 0:
			lost = d.Dropped
		case op == podconfig.SET && lost > 0 && !set:
			set = true
			if n := numberOf(t, d); n <= last {
				t.Errorf("the SET says %d after %d", n, last)
			} else if n-last != lost {
				t.Errorf("between %d and the SET, which says %d, not %d are lost", last, n, lost)
			}
			last = numberOf(t, d)
		case len(d.Pods) == 1 && numberOf(t, d) == last+1:
			last++
		default:
			t.Fatalf("after %d: %s %d %v", last, d.Op, d.Dropped, d.Pods)
		}
	}
	if !set {
		t.Error("nothing was dropped: the reader was not stuck")
	}
}

// numberOf returns the number in a document's pod.
func numberOf(t testing.TB, d ui.PodUpdate) (n int) {
	if _, err := fmt.Sscan(d.Pods[0].Object.Annotations["n"], &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// followInOrder reads until the last update, and sends to arrived after the first line and
// then after every hundred.
func followInOrder(t *testing.T, c *client.Client, updates int, arrived chan<- struct{}) {
	n := 0
	defer func() { // the test must not wait for a reader that has failed
		for ; n <= updates; n++ {
			if n%100 == 0 {
				arrived <- struct{}{}
			}
		}
	}()
	body, err := c.Get(t.Context(), "/v1/updates", ui.Selection{}.Query())
	if err != nil {
		t.Error(err)
		return
	}
	defer body.Close()
	in := bufio.NewReader(body)
	for ; n <= updates; n++ {
		line, err := in.ReadBytes('\n')
		want := fmt.Appendf(nil, `"hash":"v1-%d"`, n)
		if err != nil || !bytes.Contains(line, fmt.Appendf(nil, `"seq":%d,`, n+1)) || !bytes.Contains(line, want) {
			t.Errorf("line %d: %.300s, %v", n, line, err)
			return
		}
		if n%100 == 0 {
			arrived <- struct{}{}
		}
	}
}

// BenchmarkWatch_100Readers is the figure "watch with 100 readers x 100 updates/s": one agent, its
// socket, 100 readers that decode the updates. An operation is one update, delivered to all of
// them; the figure is the 99th percentile of the time from the engine to a reader.
func BenchmarkWatch_100Readers(b *testing.B) {
	const readers, rate = 100, 100
	f, c := fedAgent(b)
	f.feed(b, 0, 0)
	sent := make([]time.Time, b.N+1)
	delays := make([][]time.Duration, readers)
	var ready, done sync.WaitGroup
	ready.Add(readers)
	for i := range readers {
		done.Go(func() {
			began := false
			for d, err := range followed(b.Context(), c) {
				now := time.Now()
				if err != nil || len(d.Pods) != 1 {
					b.Errorf("%s %d, %v", d.Op, d.Dropped, err)
					return
				}
				var n int
				if _, err := fmt.Sscanf(d.Pods[0].Hash, "v1-%d", &n); err != nil {
					b.Error(err)
				}
				if !began {
					began = true
					ready.Done()
				} else {
					delays[i] = append(delays[i], now.Sub(sent[n]))
				}
				if n == b.N {
					return
				}
			}
		})
	}
	ready.Wait()
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	b.ResetTimer()
	for n := 1; n <= b.N; n++ {
		<-tick.C
		sent[n] = time.Now() // before the source sends it; readers use it after they got it
		f.feed(b, n, 0)
	}
	done.Wait()
	b.StopTimer()
	all := slices.Concat(delays...)
	if slices.Sort(all); len(all) != b.N*readers {
		b.Fatalf("%d deliveries, want %d", len(all), b.N*readers)
	}
	ms := func(p int) float64 { return float64(all[(len(all)-1)*p/100].Microseconds()) / 1000 }
	b.ReportMetric(ms(50), "p50-ms")
	b.ReportMetric(ms(99), "p99-ms")
	b.ReportMetric(ms(100), "max-ms")
}

// Containers with users of their own pass through the run directory, and find no socket there
// to connect to: it is in a directory of its owner alone. Both names by which clients know it
// lead there, also where an agent of an older version has left its socket. The agent
// replaces neither a file that is no socket nor the socket of an agent that answers.
//
// Shows: C-1.42, D1
func TestOpenRun_SharedRunDirectory_HidesTheSocket(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("", "run") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	cfg := config.Config{RootDir: filepath.Join(root, "state"), RunDir: filepath.Join(root, "run")}
	link := filepath.Join(cfg.RunDir, "nodectl.sock")
	if err := errors.Join(os.MkdirAll(filepath.Join(cfg.RunDir, "agent"), 0o755), os.Mkdir(cfg.RootDir, 0o700), os.Chmod(cfg.RunDir, 0o711)); err != nil {
		t.Fatal(err)
	}
	old, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: link})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	var used *server.InUseError
	if err := openRun(cfg); !errors.As(err, &used) {
		t.Errorf("the socket of an agent that answers: %v", err)
	}
	_ = old.Close()
	if err := openRun(cfg); err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, server.New(server.Config{Socket: cfg.ListenPath()}).Serve)
	for _, name := range []string{link, filepath.Join(cfg.RootDir, "nodectl.sock")} {
		wait.NoError(t, func() error {
			c, err := server.Dial(t.Context(), name)
			if err == nil {
				_ = c.Close()
			}
			return err
		})
		at, err := filepath.EvalSymlinks(name)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.Stat(filepath.Dir(at))
		if err != nil || dir.Mode().Perm() != 0o700 {
			t.Errorf("%s is in %s: %v, %v", name, filepath.Dir(at), dir.Mode(), err)
		}
	}
	if info, err := os.Stat(cfg.RunDir); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the run directory: %v, %v", info.Mode(), err)
	}
	if err := errors.Join(os.Remove(link), os.WriteFile(link, []byte("data"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := openRun(cfg); err == nil {
		t.Error("a file is replaced")
	}
}

// TestUpdates_ReaderLeaves_StreamEnds: a stream ends as soon as its reader has gone.
func TestUpdates_ReaderLeaves_StreamEnds(t *testing.T) {
	t.Parallel()
	f, c := fedAgent(t)
	f.feed(t, 0, 0)
	for range 300 { // more than the limit of streams
		for d, err := range followed(t.Context(), c) {
			if err != nil {
				t.Fatal(err)
			}
			if d.Op != string(podconfig.ADD) {
				t.Fatalf("got %s", d.Op)
			}
			break
		}
	}
}
