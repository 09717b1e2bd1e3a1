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

// podWords are the prefixes of a pod's name, as in pod/web.
func podWords() []string { return []string{"pod", "pods", "po"} }

// called is the name of a pod on the command line: web, web-n1, pod/web, default/web.
type called struct{ namespace, name string }

// callsPod reads the name of a pod. namespace is that of -n.
func callsPod(text, namespace string) (called, error) {
	before, name, slash := strings.Cut(text, "/")
	switch {
	case !slash:
		return called{namespace, text}, nil
	case slices.Contains(podWords(), before):
		return called{namespace, name}, nil
	case namespace != "" && namespace != before:
		return called{}, errors.New(text + " is not in the namespace of -n " + namespace)
	}
	return called{before, name}, nil
}

// find returns the pods with exactly this name, else those whose name is this plus the
// node's suffix.
func (c called) find(all []v1.Pod) []*v1.Pod {
	var exact, suffixed []*v1.Pod
	for i := range all {
		it := &all[i]
		switch {
		case c.namespace != "" && it.Namespace != c.namespace:
		case it.Name == c.name:
			exact = append(exact, it)
		case it.Spec.NodeName != "" && it.Name == c.name+"-"+strings.ToLower(it.Spec.NodeName):
			suffixed = append(suffixed, it)
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return suffixed
}

// one returns the pod with this name; more than one is an error.
func (c called) one(all []v1.Pod) (*v1.Pod, error) {
	found := c.find(all)
	switch {
	case c.name == "":
		return nil, failed(exitUsage, errors.New("a pod's name is empty"))
	case len(found) == 0 && c.namespace != "":
		return nil, failed(exitFailure, errors.New("pod "+c.name+" not found in namespace "+c.namespace), "nodectl get pods -n "+c.namespace+" lists them")
	case len(found) == 0:
		return nil, failed(exitFailure, errors.New("pod "+c.name+" not found"), "nodectl get pods lists them")
	case len(found) > 1:
		var names []string
		for _, it := range found {
			names = append(names, pod.KeyOf(it).String())
		}
		return nil, failed(exitFailure, errors.New("pod "+c.name+" may be any of "+strings.Join(names, ", ")), "say which with -n NAMESPACE")
	}
	return found[0], nil
}

// findPod reads the agent's pods and returns the one with this name.
func findPod(ctx context.Context, c *client.Client, namespace, name string) (*v1.Pod, error) {
	who, err := callsPod(name, namespace)
	if err != nil {
		return nil, failed(exitUsage, err)
	}
	all, err := c.Pods(ctx)
	if err != nil {
		return nil, unanswered(err)
	}
	return who.one(all)
}

// containers names the containers of a pod: regular ones, then init and ephemeral
// ones.
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

// container returns the named container, else the one of the annotation, else the
// first; it prints a notice if there are others.
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
		p.say(p.err.Notice("container " + regular[0] + " out of " + strings.Join(words, ", ") + "; -c names another one"))
	}
	return regular[0], nil
}
