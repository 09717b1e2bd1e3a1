package cmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

type logFlags struct {
	endpoint     *endpoint
	namespace    *string
	container    string
	selector     string
	all, allPods bool
	prefix       bool
	ignoreErrors bool
	since        time.Duration
	tail         int64
	limit        int64
	most         int
	want         client.LogOptions
	cmd          *cobra.Command
}

func (p *program) logsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs POD [CONTAINER]",
		Short: "Print the logs of containers",
		Long: `Print the log of a container: the one that -c names, else the one in the pod's
annotation kubectl.kubernetes.io/default-container, else the pod's first one.
With -l, print the logs of every pod with these labels.

In a pipe or a file, a log is unchanged. On a terminal, logs shows its colours
and escapes every other control character, so that the output of a container
cannot control the terminal.`,
		Example: `  nodectl logs web
  nodectl logs -f web -c nginx --since 5m
  nodectl logs web --previous --tail 20
  nodectl logs -f -l app=web --all-containers --prefix`,
		Args: cobra.ArbitraryArgs,
	}
	f := &logFlags{cmd: cmd}
	f.namespace = addNamespace(cmd, "the namespace of the pod")
	fl := cmd.Flags()
	fl.StringVarP(&f.container, "container", "c", "", "only this container")
	fl.BoolVar(&f.all, "all-containers", false, "every container of the pod")
	fl.BoolVar(&f.allPods, "all-pods", false, "every pod of this node, or of -n")
	fl.StringVarP(&f.selector, "selector", "l", "", "every pod with these labels, such as app=web")
	fl.BoolVarP(&f.want.Follow, "follow", "f", false, "follow the log")
	fl.BoolVarP(&f.want.Previous, "previous", "p", false, "the log of the previous run of the container")
	fl.BoolVar(&f.prefix, "prefix", false, "begin each line with its pod and container")
	fl.BoolVar(&f.want.Timestamps, "timestamps", false, "begin each line with the time it was written")
	fl.DurationVar(&f.since, "since", 0, "only lines newer than this duration")
	fl.StringVar(&f.want.SinceTime, "since-time", "", "only lines newer than this time, such as 2026-11-20T12:00:00Z")
	fl.Int64Var(&f.tail, "tail", -1, "lines to print from the end (default: 10 with -l, else all)")
	fl.Int64Var(&f.limit, "limit-bytes", 0, "stop after this many bytes")
	fl.IntVar(&f.most, "max-log-requests", 5, "maximum number of logs followed at once")
	fl.BoolVar(&f.ignoreErrors, "ignore-errors", false, "with several logs, skip those that cannot be read")
	for _, w := range [][2]string{{"container", "NAME"}, {"selector", "LABELS"}, {"since-time", "TIME"}, {"tail", "N"}, {"limit-bytes", "N"}} {
		word(fl, w[0], w[1])
	}
	fl.Lookup("tail").DefValue = ""
	_ = cmd.RegisterFlagCompletionFunc("container", p.completeContainers())
	cmd.ValidArgsFunction = p.completePodThenContainer()
	f.endpoint = p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return p.logs(cmd, f, args) }
	return cmd
}

// check validates the flags.
func (f *logFlags) check(args []string) error {
	changed := f.cmd.Flags().Changed
	several := f.selector != "" || f.allPods
	switch {
	case len(args) == 0 && !several:
		return errors.New("logs needs a pod, -l or --all-pods")
	case len(args) > 0 && several:
		return errors.New("give either a pod, or -l or --all-pods")
	case len(args) > 2:
		return errors.New("logs takes one pod and one container")
	case len(args) == 2 && f.container != "", f.all && (f.container != "" || len(args) == 2):
		return errors.New("give one container, or --all-containers")
	case changed("since") && changed("since-time"):
		return errors.New("--since and --since-time exclude each other")
	case f.since < 0, f.limit < 0, f.tail < -1:
		return errors.New("--since, --limit-bytes, --tail: must not be negative")
	case f.want.Follow && f.want.Previous:
		return errors.New("-f and --previous exclude each other")
	case f.most < 1:
		return errors.New("--max-log-requests: must be at least 1")
	}
	if f.want.SinceTime != "" {
		if _, err := time.Parse(time.RFC3339, f.want.SinceTime); err != nil {
			return errors.New("--since-time: " + f.want.SinceTime + " is not a time such as 2026-11-20T12:00:00Z")
		}
	}
	if changed("since") {
		seconds := int64((f.since + time.Second - 1) / time.Second)
		f.want.SinceSeconds = &seconds
	}
	switch {
	case f.tail >= 0:
		f.want.Tail = &f.tail
	case several && !changed("tail"):
		f.tail = 10
		f.want.Tail = &f.tail
	}
	if changed("limit-bytes") {
		f.want.LimitBytes = &f.limit
	}
	if len(args) == 2 {
		f.container = args[1]
	}
	return nil
}

// logOf is one log to print.
type logOf struct {
	pod       *v1.Pod
	container string
}

func (l logOf) String() string {
	return "[pod/" + ui.Clean(l.pod.Name) + "/" + ui.Clean(l.container) + "] "
}

func (p *program) logs(cmd *cobra.Command, f *logFlags, args []string) error {
	if err := f.check(args); err != nil {
		return usage(cmd, err)
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	p.logger(slog.LevelWarn)
	ctx, stop := untilClosed(cmd.Context(), p.out.file)
	defer stop()
	err = p.printLogs(ctx, c, f, args)
	if stopped := (interrupted{}); f.want.Follow && errors.As(err, &stopped) {
		return nil // the user ends a stream with a signal
	}
	return err
}

func (p *program) printLogs(ctx context.Context, c *client.Client, f *logFlags, args []string) error {
	wanted, err := p.logsOf(ctx, c, f, args)
	if err != nil {
		return err
	}
	if f.want.Follow && len(wanted) > 1 {
		if len(wanted) > f.most {
			return failed(exitFailure, fmt.Errorf("cannot follow %d logs: --max-log-requests is %d", len(wanted), f.most), "raise --max-log-requests, or select fewer logs with -l, -n or -c")
		}
		return p.followLogs(ctx, c, f, wanted)
	}
	out := &logWriter{out: p.out, p: p}
	for _, l := range wanted {
		if err := p.copyLog(ctx, c, f, l, out); err != nil {
			if !f.ignoreErrors || len(wanted) == 1 {
				return err
			}
			p.say(p.err.Error(l.String() + err.Error()))
		}
	}
	return nil
}

// logsOf returns the logs to print.
func (p *program) logsOf(ctx context.Context, c *client.Client, f *logFlags, args []string) ([]logOf, error) {
	all, err := c.Pods(ctx)
	if err != nil {
		return nil, clientError(err)
	}
	var pods []*v1.Pod
	if of, ok, err := p.workloadPod(ctx, c, *f.namespace, strings.Join(args[:min(len(args), 1)], "")); ok || err != nil {
		if err != nil {
			return nil, err
		}
		pods = append(pods, of)
	} else if len(args) > 0 {
		parsed, err := client.ParseName(args[0], *f.namespace)
		if err != nil {
			return nil, failed(exitUsage, err)
		}
		one, err := onePod(parsed, all)
		if err != nil {
			return nil, err
		}
		pods = append(pods, one)
	} else {
		pick, err := client.NewPodSelector(*f.namespace, f.selector, "", nil)
		if err != nil {
			return nil, failed(exitUsage, err)
		}
		some, _ := pick.Select(all)
		for i := range some {
			pods = append(pods, &some[i])
		}
		if len(pods) == 0 {
			p.say(p.err.Notice("no pod matches"))
		}
	}
	var wanted []logOf
	for _, it := range pods {
		if f.all {
			regular, init, ephemeral := containers(it)
			for _, name := range slices.Concat(init, regular, ephemeral) {
				wanted = append(wanted, logOf{it, name})
			}
			continue
		}
		name, err := p.container(it, f.container)
		if err != nil && len(pods) == 1 {
			return nil, err
		}
		if err == nil {
			wanted = append(wanted, logOf{it, name})
		}
	}
	return wanted, nil
}

// followLogs follows several logs until all have ended. Without --ignore-errors, the first error
// ends all of them.
func (p *program) followLogs(ctx context.Context, c *client.Client, f *logFlags, wanted []logOf) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &logWriter{out: p.out, p: p}
	var wg sync.WaitGroup
	for _, l := range wanted {
		wg.Go(func() {
			err := p.copyLog(ctx, c, f, l, out)
			switch {
			case err == nil || ctx.Err() != nil:
			case f.ignoreErrors && !errors.Is(err, errClosed):
				out.note(p.err.Error(l.String() + err.Error()))
			default:
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return nil
}

// logWriter writes lines of several logs to one stream.
type logWriter struct {
	mu  sync.Mutex
	p   *program
	out *output
}

func (w *logWriter) line(prefix string, line []byte, screen *ui.LineSanitizer) error {
	if screen != nil {
		line = screen.Line(line)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.out.Write(append([]byte(prefix), line...))
	return err
}

func (w *logWriter) note(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.p.say(text)
}

// maxPiece limits the part of a line that copyLog buffers until the end of the line arrives.
const maxPiece = 64 << 10

// copyLog prints one log to its end.
func (p *program) copyLog(ctx context.Context, c *client.Client, f *logFlags, l logOf, out *logWriter) error {
	body, err := c.Logs(ctx, l.pod.Namespace, l.pod.Name, l.container, f.want)
	if err != nil {
		if no, ok := errors.AsType[*client.RefusedError](err); ok {
			return failed(exitFailure, fmt.Errorf("%s: %s", pod.KeyOf(l.pod).String()+"/"+l.container, no.Message))
		}
		return clientError(err)
	}
	defer body.Close()
	prefix := ""
	if f.prefix {
		prefix = l.String()
	}
	var screen *ui.LineSanitizer
	if p.out.terminal() {
		screen = &ui.LineSanitizer{}
	}
	in := bufio.NewReaderSize(body, maxPiece)
	for begin := true; ; {
		piece, err := in.ReadSlice('\n')
		if len(piece) > 0 {
			head := prefix
			if !begin {
				head = ""
			}
			begin = piece[len(piece)-1] == '\n'
			if wrong := out.line(head, piece, screen); wrong != nil {
				return wrong
			}
		}
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		default:
			return failed(exitFailure, fmt.Errorf("read the log of %s/%s: %w", pod.KeyOf(l.pod), l.container, err))
		}
	}
}
