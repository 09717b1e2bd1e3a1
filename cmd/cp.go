package cmd

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/client"
)

func (p *program) copyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy files to and from a container",
		Long: `Copy a file or a directory from this machine to a container, or back. Write a
path in a container as POD:PATH or NAMESPACE/POD:PATH; the container needs tar.
From a container, cp copies files and directories, skips links and writes
nothing outside TO. It fails if the files together exceed --max-size.`,
		Example: `  nodectl cp web:/etc/nginx/nginx.conf nginx.conf
  nodectl cp site/ web:/usr/share/nginx/html -c nginx
  nodectl cp shop/db:/var/lib/db backup`,
		Args: cobra.ArbitraryArgs,
	}
	namespace := addNamespace(cmd, "the namespace of the pod")
	container := cmd.Flags().StringP("container", "c", "", "container of the pod")
	noPreserve := cmd.Flags().Bool("no-preserve", false, "do not preserve owner and permissions in the container")
	maxSize := cmd.Flags().String("max-size", "10Gi", "maximum total size of files from a container")
	word(cmd.Flags(), "container", "NAME")
	word(cmd.Flags(), "max-size", "SIZE")
	_ = cmd.RegisterFlagCompletionFunc("container", p.completeContainers())
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 {
			return usage(cmd, errors.New("cp needs FROM and TO"))
		}
		most, err := resource.ParseQuantity(*maxSize)
		if err != nil || most.Sign() <= 0 {
			return usage(cmd, fmt.Errorf("--max-size: %q is not a size such as 10Gi", *maxSize))
		}
		from, to := parseSide(args[0]), parseSide(args[1])
		if (from.pod == "") == (to.pod == "") {
			return usage(cmd, errors.New("exactly one of FROM and TO must be in a container: POD:PATH"))
		}
		p.logger(slog.LevelWarn)
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		remote := from
		if from.pod == "" {
			remote = to
		}
		if remote.path == "" {
			return usage(cmd, errors.New(remote.pod+": the path is empty"))
		}
		it, err := p.findPod(cmd.Context(), c, *namespace, remote.pod)
		if err != nil {
			return err
		}
		name, err := p.container(it, *container)
		if err != nil {
			return err
		}
		k := client.Copier{Client: c, Pod: it, Container: name, NoPreserve: *noPreserve, MaxSize: most.Value(), Note: func(text string) { p.say(p.err.Notice(text)) }}
		if from.pod == "" {
			err = k.Upload(cmd.Context(), from.path, to.path)
		} else {
			err = k.Download(cmd.Context(), from.path, to.path)
		}
		return notCopied(err, most.String())
	}
	return cmd
}

// copySide is FROM or TO of cp. A local path has no pod.
type copySide struct{ pod, path string }

// parseSide reads POD:PATH. A text that begins like a path, such as ./a:b, is a local path.
func parseSide(text string) copySide {
	pod, at, ok := strings.Cut(text, ":")
	if !ok || strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") || pod == "" || strings.Count(pod, "/") > 1 || filepath.VolumeName(text) != "" {
		return copySide{path: text}
	}
	return copySide{pod, at}
}

// notCopied returns the error of the command for an error of a client.Copier.
func notCopied(err error, most string) error {
	if large, ok := errors.AsType[*client.TooLargeError](err); ok {
		return failed(exitFailure, large, "--max-size allows more than "+most)
	}
	if refused, ok := errors.AsType[*client.RefusedError](err); ok {
		return failed(exitFailure, errors.New(refused.Message), "cp needs tar in the container")
	}
	if local, ok := errors.AsType[*client.LocalError](err); ok {
		return failed(exitFailure, local, readonly.AsRoot(local))
	}
	return clientError(err)
}
