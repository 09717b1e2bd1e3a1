package cmd

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

// completionTime is how long completion waits for the agent. Without an answer it
// completes nothing and reports no error.
var completionTime = 150 * time.Millisecond

type completer = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective)

// podsNow returns the agent's pods, or none if it does not answer in time.
func (p *program) podsNow(cmd *cobra.Command) []v1.Pod {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	if cfg, _, err := p.load(); err == nil { // completion reads no configuration otherwise
		p.cfg = cfg
	}
	if flag := cmd.Flag("server"); flag != nil && flag.Changed {
		return nil // another machine may not answer within completionTime
	}
	pods, err := p.agent().Pods(ctx)
	if err != nil {
		return nil
	}
	if flag := cmd.Flag("namespace"); flag != nil && flag.Changed {
		pods = slices.DeleteFunc(pods, func(it v1.Pod) bool { return it.Namespace != flag.Value.String() })
	}
	return pods
}

// completePods completes one name of a pod, or several.
func (p *program) completePods(several bool) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !several {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return podWordsFor(p.podsNow(cmd), args, word), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeImages completes names of images that the agent of this machine lists.
func (p *program) completeImages(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	if cfg, _, err := p.load(); err == nil { // completion reads no configuration otherwise
		p.cfg = cfg
	}
	var answer struct {
		Images []ui.ImageItem `json:"images"`
	}
	if p.agent().Document(ctx, "/v1/images", nil, &answer) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return imageWordsFor(answer.Images, args, word), cobra.ShellCompDirectiveNoFileComp
}

// imageWordsFor returns the names of images that complete word and are not in args yet. A name
// with a digest completes only a word with one.
func imageWordsFor(images []ui.ImageItem, args []string, word string) (words []string) {
	for _, i := range images {
		for _, name := range i.Names {
			if strings.Contains(name, "@") && !strings.Contains(word, "@") {
				continue
			}
			if strings.HasPrefix(name, word) && !slices.Contains(args, name) && ui.Clean(name) == name {
				words = append(words, name)
			}
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// podWordsFor returns the pods that complete word and are not in args yet.
func podWordsFor(pods []v1.Pod, args []string, word string) (words []string) {
	kind, rest, slash := strings.Cut(word, "/")
	prefix := ""
	if slash && slices.Contains(client.PodPrefixes(), kind) {
		prefix, word = kind+"/", rest
	}
	for i := range pods {
		name := pods[i].Name
		if strings.HasPrefix(name, word) && !slices.Contains(args, prefix+name) && ui.Clean(name) == name {
			words = append(words, prefix+name+"\t"+string(pods[i].Status.Phase)+" in "+pods[i].Namespace)
		}
	}
	slices.Sort(words)
	return words
}

// completePodThenContainer completes a pod, then one of its containers.
func (p *program) completePodThenContainer() completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return podWordsFor(p.podsNow(cmd), nil, word), cobra.ShellCompDirectiveNoFileComp
		case 1:
			return containerWords(p.podsNow(cmd), args[0], word), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeContainers completes containers of the pod in the arguments, or of every
// pod if there is none.
func (p *program) completeContainers() completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		name := ""
		if len(args) > 0 {
			name, _, _ = strings.Cut(args[0], ":") // cp's POD:PATH
		}
		return containerWords(p.podsNow(cmd), name, word), cobra.ShellCompDirectiveNoFileComp
	}
}

func containerWords(pods []v1.Pod, name, word string) (words []string) {
	var some []*v1.Pod
	if parsed, err := client.ParseName(name, ""); name != "" && err == nil {
		some = parsed.Find(pods)
	} else {
		for i := range pods {
			some = append(some, &pods[i])
		}
	}
	for _, it := range some {
		regular, init, ephemeral := containers(it)
		for _, c := range slices.Concat(regular, init, ephemeral) {
			if strings.HasPrefix(c, word) && ui.Clean(c) == c && !slices.Contains(words, c) {
				words = append(words, c)
			}
		}
	}
	slices.Sort(words)
	return words
}

// completeKinds completes pod/NAME.
func (p *program) completeKinds() completer {
	return func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		if !strings.Contains(word, "/") {
			return []string{"pod/", "node/"}, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
		}
		return podWordsFor(p.podsNow(cmd), nil, word), cobra.ShellCompDirectiveNoFileComp
	}
}
