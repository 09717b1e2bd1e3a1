package cmd

import (
	"context"
	"errors"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
)

// defaultContainer is the annotation with the default container of a command; kubectl
// reads it too.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// onePod returns the pod with this name; more than one is an error.
func onePod(c client.Name, all []v1.Pod) (*v1.Pod, error) {
	found := c.Find(all)
	switch {
	case c.Name == "":
		return nil, failed(exitUsage, errors.New("the name of a pod is empty"))
	case len(found) == 0 && c.Namespace != "":
		return nil, failed(exitFailure, errors.New("pod "+c.Name+" not found in namespace "+c.Namespace), "nodectl get pods -n "+c.Namespace+" lists them")
	case len(found) == 0:
		return nil, failed(exitFailure, errors.New("pod "+c.Name+" not found"), "nodectl get pods lists them")
	case len(found) > 1:
		var names []string
		for _, it := range found {
			names = append(names, pod.KeyOf(it).String())
		}
		return nil, failed(exitFailure, errors.New("pod "+c.Name+" is ambiguous: "+strings.Join(names, ", ")), "choose one with -n NAMESPACE")
	}
	return found[0], nil
}

// findPod reads the agent's pods and returns the one with this name, or one of the workload with
// this name.
func (p *program) findPod(ctx context.Context, c *client.Client, namespace, name string) (*v1.Pod, error) {
	if it, ok, err := p.workloadPod(ctx, c, namespace, name); ok || err != nil {
		return it, err
	}
	parsed, err := client.ParseName(name, namespace)
	if err != nil {
		return nil, failed(exitUsage, err)
	}
	all, err := c.Pods(ctx)
	if err != nil {
		return nil, clientError(err)
	}
	return onePod(parsed, all)
}

// containers returns the names of the containers of a pod.
func containers(it *v1.Pod) (regular, init, ephemeral []string) {
	for i := range it.Spec.Containers {
		regular = append(regular, it.Spec.Containers[i].Name)
	}
	for i := range it.Spec.InitContainers {
		init = append(init, it.Spec.InitContainers[i].Name)
	}
	for i := range it.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, it.Spec.EphemeralContainers[i].Name)
	}
	return regular, init, ephemeral
}

// container returns the named container. Without a name it returns that of the annotation, or
// else the first one, and then prints a notice if the pod has others.
func (p *program) container(it *v1.Pod, name string) (string, error) {
	regular, init, ephemeral := containers(it)
	all := slices.Concat(regular, init, ephemeral)
	if name != "" {
		if slices.Contains(all, name) {
			return name, nil
		}
		return "", failed(exitFailure, errors.New("pod "+pod.KeyOf(it).String()+" has no container "+name), "it has "+strings.Join(all, ", "))
	}
	if marked := it.Annotations[defaultContainer]; slices.Contains(all, marked) {
		return marked, nil
	}
	if len(regular) == 0 {
		return "", failed(exitFailure, errors.New("pod "+pod.KeyOf(it).String()+" has no container"))
	}
	if len(all) > 1 {
		words := slices.Clone(regular)
		for _, n := range init {
			words = append(words, n+" (init)")
		}
		for _, n := range ephemeral {
			words = append(words, n+" (ephem)")
		}
		p.say(p.err.Notice("using container " + regular[0] + " out of " + strings.Join(words, ", ") + "; -c selects another one"))
	}
	return regular[0], nil
}
