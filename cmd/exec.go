package cmd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
)

// streamFlags are the flags of exec and attach.
type streamFlags struct {
	endpoint   *endpoint
	namespace  *string
	container  string
	stdin, tty bool
	quiet      bool
	detach     string
}

func (p *program) addStream(cmd *cobra.Command) *streamFlags {
	f := &streamFlags{}
	f.namespace = addNamespace(cmd, "the namespace of the pod")
	fl := cmd.Flags()
	fl.StringVarP(&f.container, "container", "c", "", "container of the pod")
	fl.BoolVarP(&f.stdin, "stdin", "i", false, "pass standard input to the container")
	fl.BoolVarP(&f.tty, "tty", "t", false, "use a terminal")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print only the output of the container")
	fl.StringVar(&f.detach, "detach-keys", "ctrl-p,ctrl-q", "keys that detach from a terminal and leave the process running; '' means none")
	word(fl, "container", "NAME")
	word(fl, "detach-keys", "KEYS")
	_ = cmd.RegisterFlagCompletionFunc("container", p.completeContainers())
	cmd.ValidArgsFunction = p.completePods(false)
	f.endpoint = p.addEndpoint(cmd)
	return f
}

func (p *program) execCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec POD [-c CONTAINER] -- COMMAND [ARG...]",
		Short: "Run a command in a container",
		Long: `Run a command in a container of a pod, and exit with its exit code. With -it the
command gets this terminal and its size; ctrl-p ctrl-q detaches and leaves the
command running (a single ctrl-p is passed on with the next key).`,
		Example: `  nodectl exec web -- ls /etc
  nodectl exec -it web -c nginx -- sh
  nodectl exec -i web -- tar xf - -C /tmp < files.tar`,
		Args: cobra.ArbitraryArgs,
	}
	f := p.addStream(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		at := cmd.ArgsLenAtDash()
		switch {
		case len(args) == 0 || at == 0:
			return usage(cmd, errors.New("exec needs a pod"))
		case at < 0 && len(args) > 1, at > 1:
			return usage(cmd, errors.New(`put the command after --: nodectl exec `+args[0]+` -- `+args[1]))
		case len(args) == 1:
			return usage(cmd, errors.New("exec needs a command: nodectl exec "+args[0]+" -- COMMAND"))
		}
		return p.stream(cmd, f, args[0], func(ctx context.Context, c *client.Client, it *v1.Pod, container string, s client.Streams) error {
			return c.Exec(ctx, it.Namespace, it.Name, container, args[1:], s)
		})
	}
	return cmd
}

func (p *program) attachCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "attach POD [-c CONTAINER]",
		Short: "Attach to the main process of a container",
		Long: `Print the output of a container's main process from now on, and with -i pass
standard input to it. -i needs stdin: true in the manifest, and -t tty: true. On
a terminal ctrl-p ctrl-q detaches; ctrl-c goes to the process.`,
		Example: `  nodectl attach web
  nodectl attach -it shell -c sh`,
		Args: cobra.ArbitraryArgs,
	}
	f := p.addStream(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage(cmd, errors.New("attach needs one pod"))
		}
		return p.stream(cmd, f, args[0], func(ctx context.Context, c *client.Client, it *v1.Pod, container string, s client.Streams) error {
			if s.TTY && !hasTerminal(it, container) {
				return failed(exitFailure, errors.New("container "+container+" has no terminal: its manifest does not set tty: true"), "omit -t")
			}
			return c.Attach(ctx, it.Namespace, it.Name, container, s)
		})
	}
	return cmd
}

func hasTerminal(it *v1.Pod, container string) bool {
	c, _ := (&pod.Spec{Pod: it}).Container(container)
	return c != nil && c.TTY
}

// errDetached ends a stream after the detach keys.
var errDetached = errors.New("detached")

// stream finds the container, sets up the terminal, and calls run. It always restores the
// terminal.
func (p *program) stream(cmd *cobra.Command, f *streamFlags, name string, run func(context.Context, *client.Client, *v1.Pod, string, client.Streams) error) error {
	keys, err := parseKeys(f.detach)
	if err != nil {
		return usage(cmd, errors.New("--detach-keys: "+err.Error()))
	}
	p.logger(slog.LevelWarn)
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	it, err := p.findPod(cmd.Context(), c, *f.namespace, name)
	if err != nil {
		return err
	}
	container, err := p.container(it, f.container)
	if err != nil {
		return err
	}
	untilEnd, stop := untilClosed(cmd.Context(), p.out.file)
	defer stop()
	ctx, cancel := context.WithCancelCause(untilEnd)
	defer cancel(nil)
	s := client.Streams{Stdout: p.out.file, Stderr: p.err.file}
	if f.stdin {
		s.Stdin = p.in
	}
	var restore func()
	if f.stdin && f.tty {
		t, err := openTerminal(p.in, p.out.file)
		if err != nil {
			return failed(exitFailure, err)
		}
		if t == nil {
			p.say(p.err.Notice("standard input is not a terminal: ignoring -t"))
		} else {
			if cmd.Name() == "attach" && !f.quiet { // the shell has already written its prompt
				p.say("If you don't see a command prompt, try pressing enter.\r\n")
			}
			s.TTY, s.Stderr, s.Resize = true, nil, t.sizes
			if len(keys) > 0 {
				s.Stdin = &detacher{in: p.in, keys: keys, detach: func() { cancel(errDetached) }}
			}
			restore = t.close
			defer t.close()
		}
	}
	err = run(ctx, c, it, container, s)
	if restore != nil {
		restore()
	}
	return p.streamEnd(err, it, container)
}

// streamEnd returns the error of the command for the error with which a stream ended. A command
// in a container sets the exit code.
func (p *program) streamEnd(err error, it *v1.Pod, container string) error {
	ended, code := errors.AsType[*client.ExitError](err)
	switch {
	case errors.Is(err, errDetached):
		p.say("\n" + p.err.Notice("detached; "+pod.KeyOf(it).String()+"/"+container+" keeps running"))
		return nil
	case code:
		p.say(ended.Error() + "\n")
		return &exit{code: ended.Code}
	case isClosedPipe(err):
		return errClosed
	}
	return clientError(err)
}

// detacher reads standard input until the detach keys.
type detacher struct {
	in      io.Reader
	keys    []byte
	detach  func()
	pressed int    // how many detach keys were pressed in a row
	rest    []byte // input that Read has not returned yet
	left    bool   // all detach keys were pressed
}

// Read implements io.Reader.
func (d *detacher) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.left {
			d.detach()
			return 0, io.EOF
		}
		buf := make([]byte, len(p))
		n, err := d.in.Read(buf)
		for _, b := range buf[:n] {
			if b == d.keys[d.pressed] {
				if d.pressed++; d.pressed == len(d.keys) {
					d.left = true // Read returns the input before the detach keys first
					break
				}
				continue
			}
			d.rest = append(d.rest, d.keys[:d.pressed]...)
			if d.pressed = 0; b == d.keys[0] {
				d.pressed = 1
				continue
			}
			d.rest = append(d.rest, b)
		}
		if err != nil && len(d.rest) == 0 && !d.left {
			return 0, err
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// parseKeys reads keys in docker's notation: ctrl-p,ctrl-q, or single characters.
func parseKeys(text string) (keys []byte, err error) {
	if text == "" {
		return nil, nil
	}
	for k := range strings.SplitSeq(text, ",") {
		letter, ctrl := strings.CutPrefix(k, "ctrl-")
		switch {
		case ctrl && len(letter) == 1 && letter[0] >= '@' && letter[0] <= '_':
			keys = append(keys, letter[0]-'@')
		case ctrl && len(letter) == 1 && letter[0] >= 'a' && letter[0] <= 'z':
			keys = append(keys, letter[0]-'a'+1)
		case !ctrl && len(k) == 1:
			keys = append(keys, k[0])
		default:
			return nil, errors.New(k + " is not a key such as ctrl-p or a letter")
		}
	}
	return keys, nil
}
