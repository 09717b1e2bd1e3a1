package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/agent/look"
	"github.com/nodectl/nodectl/pkg/client"
)

func (p *program) copyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy files to and from a container",
		Long: `Copy a file or a directory from this machine to a container, or back. What is
in a container is named POD:PATH or NAMESPACE/POD:PATH. It needs tar there.
From a container come files and directories; links are left out, and nothing is
written anywhere but to TO. Files of more than --max-size together are refused.`,
		Example: `  nodectl cp web:/etc/nginx/nginx.conf nginx.conf
  nodectl cp site/ web:/usr/share/nginx/html -c nginx
  nodectl cp shop/db:/var/lib/db backup`,
		Args: cobra.ArbitraryArgs,
	}
	namespace := addNamespace(cmd, "the namespace of the pod")
	container := cmd.Flags().StringP("container", "c", "", "in this container")
	noPreserve := cmd.Flags().Bool("no-preserve", false, "leave owner and permissions to the container")
	maxSize := cmd.Flags().String("max-size", "10Gi", "the most that files from a container may have together")
	word(cmd.Flags(), "container", "NAME")
	word(cmd.Flags(), "max-size", "SIZE")
	_ = cmd.RegisterFlagCompletionFunc("container", p.completeContainers())
	reach := p.addReach(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 {
			return usage(cmd, errors.New("cp takes what to copy and where to"))
		}
		most, err := resource.ParseQuantity(*maxSize)
		if err != nil || most.Sign() <= 0 {
			return usage(cmd, fmt.Errorf("--max-size: %q is not a size, as 10Gi", *maxSize))
		}
		from, to := placeOf(args[0]), placeOf(args[1])
		if (from.pod == "") == (to.pod == "") {
			return usage(cmd, errors.New("one of the two is in a container: POD:PATH"))
		}
		p.logger(slog.LevelWarn)
		c, err := reach.client()
		if err != nil {
			return err
		}
		there := from
		if from.pod == "" {
			there = to
		}
		if there.path == "" {
			return usage(cmd, errors.New(there.pod+": has no path"))
		}
		it, err := findPod(cmd.Context(), c, *namespace, there.pod)
		if err != nil {
			return err
		}
		name, err := p.container(it, *container)
		if err != nil {
			return err
		}
		k := copying{p: p, client: c, pod: it, container: name, noPreserve: *noPreserve, maxSize: most}
		if from.pod == "" {
			return k.up(cmd.Context(), from.path, to.path)
		}
		return k.down(cmd.Context(), from.path, to.path)
	}
	return cmd
}

// place is one side of cp.
type place struct{ pod, path string }

// placeOf reads POD:PATH. Text that begins like a path is a local path, as ./a:b.
func placeOf(text string) place {
	pod, at, ok := strings.Cut(text, ":")
	if !ok || strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") || pod == "" || strings.Count(pod, "/") > 1 || filepath.VolumeName(text) != "" {
		return place{path: text}
	}
	return place{pod, at}
}

// copying is one call of cp.
type copying struct {
	p          *program
	client     *client.Client
	pod        *v1.Pod
	container  string
	noPreserve bool
	maxSize    resource.Quantity
}

func (k copying) note(text string) { k.p.say(k.p.err.Notice(text)) }

// run runs a command in the container; the command's standard error is the error's text.
func (k copying) run(ctx context.Context, in io.Reader, out io.Writer, command ...string) error {
	var said firstBytes
	err := k.client.Exec(ctx, k.pod.Namespace, k.pod.Name, k.container, command, client.Streams{Stdin: in, Stdout: out, Stderr: &said})
	if ended, ok := errors.AsType[*client.Exited](err); ok {
		text := strings.TrimSpace(string(said.kept))
		if text == "" {
			text = fmt.Sprintf("%s in the container ended with %d", command[0], ended.Code)
		}
		return failed(exitFailure, &inContainer{text, ended})
	}
	if no, ok := errors.AsType[*client.Refused](err); ok {
		return failed(exitFailure, errors.New(no.Message), "cp needs tar in the container")
	}
	return unanswered(err)
}

// inContainer is the failure of a command, with its standard error as the message.
type inContainer struct {
	text string
	end  *client.Exited
}

func (e *inContainer) Error() string { return e.text }
func (e *inContainer) Unwrap() error { return e.end }

// firstBytes keeps the beginning of what is written.
type firstBytes struct{ kept []byte }

func (f *firstBytes) Write(b []byte) (int, error) {
	f.kept = append(f.kept, b[:min(len(b), max(0, 4096-len(f.kept)))]...)
	return len(b), nil
}

// up copies to the container.
func (k copying) up(ctx context.Context, from, to string) error {
	info, err := os.Lstat(from)
	if err == nil && info.Mode()&os.ModeSymlink != 0 { // follow a link that is named itself
		if from, err = filepath.EvalSymlinks(from); err == nil {
			info, err = os.Lstat(from)
		}
	}
	if err != nil {
		return failed(exitFailure, err, look.AsRoot(err))
	}
	target := path.Clean(to)
	if err := k.run(ctx, nil, io.Discard, "test", "-d", target); err == nil {
		target = path.Join(target, filepath.Base(absolutePath(from)))
	} else if ctx.Err() != nil || client.IsAbsent(err) {
		return err
	} else if strings.HasSuffix(to, "/") && !info.IsDir() {
		return failed(exitFailure, errors.New(to+" is no directory of the container"))
	}
	command := []string{"tar", "-xmf", "-", "-C", path.Dir(target)}
	if k.noPreserve {
		command = []string{"tar", "--no-same-permissions", "--no-same-owner", "-xmf", "-", "-C", path.Dir(target)}
	}
	r, w := io.Pipe()
	var wg sync.WaitGroup
	var packed error
	wg.Go(func() {
		packed = client.Pack(w, from, path.Base(target), k.note)
		_ = w.CloseWithError(packed)
	})
	err = k.run(ctx, r, io.Discard, command...)
	_ = r.Close() // so that packing ends where tar did
	wg.Wait()
	if packed != nil && !errors.Is(packed, io.ErrClosedPipe) {
		return failed(exitFailure, packed, look.AsRoot(packed))
	}
	return err
}

// down copies from the container.
func (k copying) down(ctx context.Context, from, to string) error {
	dir, base := path.Split(path.Clean(from))
	if base == "" || base == "." || base == ".." {
		dir, base = path.Clean(from), "."
	}
	target := to
	if info, err := os.Stat(to); err == nil && info.IsDir() || strings.HasSuffix(to, "/") {
		target = filepath.Join(to, filepath.FromSlash(base))
	}
	if base == "." && filepath.Base(target) == ".." {
		target = absolutePath(target)
	}
	command := []string{"tar", "cf", "-", "-C", dir, "./" + base}
	if dir == "" {
		command = []string{"tar", "cf", "-", "./" + base}
	}
	r, w := io.Pipe()
	var wg sync.WaitGroup
	var unpacked error
	wg.Go(func() {
		unpacked = client.Unpack(r, base, absolutePath(target), k.maxSize.Value(), k.note)
		_ = r.CloseWithError(unpacked)
	})
	err := k.run(ctx, nil, w, command...)
	_ = w.CloseWithError(err) // nil is the end
	wg.Wait()
	if large, ok := errors.AsType[*client.TooLargeError](unpacked); ok { // and not that the stream was cut
		return failed(exitFailure, large, "--max-size allows more than "+k.maxSize.String())
	}
	if err != nil {
		return err
	}
	return failed(exitFailure, unpacked)
}

func absolutePath(at string) string {
	if abs, err := filepath.Abs(at); err == nil {
		return abs
	}
	return at
}
