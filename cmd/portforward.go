package cmd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) portForwardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "port-forward POD [LOCAL:]REMOTE...",
		Short: "Forward local ports to a pod",
		Long: `Forward ports of this machine to ports of a pod, until ctrl-c. REMOTE is a
number, or the name of a port in the manifest. Without LOCAL, both ports are the
same; with :REMOTE, nodectl chooses a free local port.`,
		Example: `  nodectl port-forward web 8080:80
  nodectl port-forward web :http
  nodectl port-forward web 5432 --address 0.0.0.0`,
		Args: cobra.ArbitraryArgs,
	}
	namespace := addNamespace(cmd, "the namespace of the pod")
	addresses := cmd.Flags().StringSlice("address", []string{"localhost"}, "addresses to listen on: localhost, or IP addresses")
	word(cmd.Flags(), "address", "ADDRESSES")
	cmd.Flags().Lookup("address").DefValue = "localhost"
	cmd.ValidArgsFunction = p.completePods(false)
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) < 2 {
			return usage(cmd, errors.New("port-forward needs a pod and at least one port"))
		}
		p.logger(slog.LevelWarn)
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		it, err := p.findPod(cmd.Context(), c, *namespace, args[0])
		if err != nil {
			return err
		}
		ports, err := portsOf(it, args[1:])
		if err != nil {
			return usage(cmd, err)
		}
		if it.Status.Phase != v1.PodRunning {
			return failed(exitFailure, errors.New("pod "+args[0]+" is not running: it is "+ui.Clean(string(it.Status.Phase))))
		}
		err = c.Forward(cmd.Context(), it.Namespace, it.Name, *addresses, ports, p.out, cleanWriter{p.err})
		if ctx := cmd.Context(); ctx.Err() != nil {
			if stopped := (interrupted{}); errors.As(context.Cause(ctx), &stopped) {
				return nil // the user ends it with a signal
			}
		}
		return clientError(err)
	}
	return cmd
}

// cleanWriter writes lines with their control characters escaped.
type cleanWriter struct{ w io.Writer }

func (c cleanWriter) Write(b []byte) (int, error) {
	if _, err := io.WriteString(c.w, ui.Clean(strings.TrimRight(string(b), "\n"))+"\n"); err != nil {
		return 0, err
	}
	return len(b), nil
}

// portsOf reads [LOCAL:]REMOTE as kubectl does. REMOTE may be the name of a port of the pod.
func portsOf(it *v1.Pod, texts []string) (ports []string, err error) {
	for _, text := range texts {
		local, remote, both := strings.Cut(text, ":")
		if !both {
			remote = local
		}
		number, err := portNumber(it, remote)
		switch {
		case err != nil:
			return nil, err
		case !both:
			local = number
		case local == "":
			local = "0"
		default:
			if n, err := strconv.ParseUint(local, 10, 16); err != nil || n > 65535 {
				return nil, errors.New(local + " is not a local port")
			}
		}
		ports = append(ports, local+":"+number)
	}
	return ports, nil
}

func portNumber(it *v1.Pod, text string) (string, error) {
	if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
		return text, nil
	}
	var names []string
	for _, c := range slices.Concat(it.Spec.InitContainers, it.Spec.Containers) {
		for _, port := range c.Ports {
			if port.Name == text && text != "" {
				return strconv.Itoa(int(port.ContainerPort)), nil
			}
			if port.Name != "" {
				names = append(names, port.Name)
			}
		}
	}
	if len(names) == 0 {
		return "", errors.New(text + " is not a port: the pod has no named ports")
	}
	return "", errors.New(text + " is not a port; the pod's named ports are " + strings.Join(names, ", "))
}
