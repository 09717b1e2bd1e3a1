package cmd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

// topInterval is the time between two readings; top shows the usage in between.
const topInterval = time.Second

func (p *program) topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show CPU and memory usage of pods and the node",
		Args:  cobra.ArbitraryArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(p.topPodsCommand(), p.topNodesCommand())
	return cmd
}

// topFlags are the flags of top pods and top nodes.
type topFlags struct {
	endpoint   *endpoint
	columns    ui.Columns
	sortBy     *choice
	namespace  *string
	selector   string
	containers bool
	sum        bool
}

func (p *program) topPodsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pods [NAME...]",
		Aliases: []string{"pod", "po"},
		Short:   "Show CPU and memory usage of pods",
		Long: `Show the usage of pods: CPU over one second, in thousandths of a core, and
memory that the kernel cannot reclaim at once (the working set).`,
		Example: `  nodectl top pods --sort-by memory
  nodectl top pod web --containers`,
	}
	var f topFlags
	f.namespace = addNamespace(cmd, "only pods of this namespace")
	addAll(cmd)
	cmd.Flags().StringVarP(&f.selector, "selector", "l", "", "only pods with these labels, such as app=web")
	word(cmd.Flags(), "selector", "LABELS")
	cmd.Flags().BoolVar(&f.containers, "containers", false, "show each container")
	cmd.Flags().BoolVar(&f.sum, "sum", false, "add a line of sums")
	p.addTop(cmd, &f)
	cmd.ValidArgsFunction = p.completePods(true)
	cmd.RunE = func(cmd *cobra.Command, names []string) error { return p.topPods(cmd, f, names) }
	return cmd
}

func (p *program) topNodesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "nodes",
		Aliases: []string{"node", "no"},
		Short:   "Show CPU and memory usage of the node",
		Args:    noArgs,
		Example: `  nodectl top nodes`,
	}
	var f topFlags
	p.addTop(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.topNodes(cmd, f) }
	return cmd
}

func (p *program) addTop(cmd *cobra.Command, f *topFlags) {
	cmd.Flags().BoolVar(&f.columns.NoHeaders, "no-headers", false, "print no column headers")
	f.sortBy = addChoice(cmd, "sort-by", "", "cpu or memory, highest first (default: by name)", "", "cpu", "memory")
	word(cmd.Flags(), "sort-by", "WHAT")
	f.endpoint = p.addEndpoint(cmd)
}

// readTwice reads the usage twice, topInterval apart.
func readTwice(ctx context.Context, c *client.Client) (before, now *stats.Summary, err error) {
	if before, err = c.Summary(ctx); err != nil {
		return nil, nil, clientError(err)
	}
	select {
	case <-time.After(topInterval):
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	if now, err = c.Summary(ctx); err != nil {
		return nil, nil, clientError(err)
	}
	return before, now, nil
}

func (p *program) topPods(cmd *cobra.Command, f topFlags, names []string) error {
	pick, err := client.NewPodSelector(*f.namespace, f.selector, "", names)
	if err != nil {
		return usage(cmd, err)
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	all, err := c.Pods(cmd.Context())
	if err != nil {
		return clientError(err)
	}
	pods, missing := pick.Select(all)
	for _, name := range missing {
		return failed(exitFailure, errors.New("pod "+name+" not found"))
	}
	if len(pods) == 0 {
		p.say(p.err.Notice("no pods on this node"))
		return nil
	}
	before, now, err := readTwice(cmd.Context(), c)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for i := range pods {
		wanted[pods[i].Namespace+"/"+pods[i].Name] = true
	}
	rows := podUsage(before, now, func(s stats.PodStats) bool { return wanted[s.PodRef.Namespace+"/"+s.PodRef.Name] }, f.containers)
	f.sort(rows)
	return p.out.print(p.out.Grid(ui.UsageGrid(rows, f.containers, f.sum), f.columns))
}

func (f topFlags) sort(rows []ui.Usage) {
	slices.SortStableFunc(rows, func(a, b ui.Usage) int {
		most := 0
		switch f.sortBy.value {
		case "cpu":
			most = cmp.Compare(b.Nanocores, a.Nanocores)
		case "memory":
			most = cmp.Compare(b.Bytes, a.Bytes)
		}
		return cmp.Or(most, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
}

// podUsage returns the usage of pods, or of their containers, between two readings.
func podUsage(before, now *stats.Summary, want func(stats.PodStats) bool, containers bool) (rows []ui.Usage) {
	type key struct{ uid, container string }
	old := map[key]*stats.CPUStats{}
	for _, s := range before.Pods {
		for _, c := range s.Containers {
			old[key{s.PodRef.UID, c.Name}] = c.CPU
		}
	}
	for _, s := range now.Pods {
		if !want(s) {
			continue
		}
		whole := ui.Usage{Namespace: s.PodRef.Namespace, Pod: s.PodRef.Name}
		for _, c := range s.Containers {
			one := whole
			one.Container, one.Nanocores, one.Bytes = c.Name, nanocores(old[key{s.PodRef.UID, c.Name}], c.CPU), workingSet(c.Memory)
			if containers {
				rows = append(rows, one)
				continue
			}
			whole.Nanocores += one.Nanocores
			whole.Bytes += one.Bytes
		}
		if !containers {
			rows = append(rows, whole)
		}
	}
	return rows
}

// nanocores returns the CPU usage between two readings; 1e9 is one core. If the container
// restarted in between, it returns the usage that the node has measured.
func nanocores(before, now *stats.CPUStats) uint64 {
	switch {
	case now == nil:
		return 0
	case before != nil && before.UsageCoreNanoSeconds != nil && now.UsageCoreNanoSeconds != nil &&
		now.Time.After(before.Time.Time) && *now.UsageCoreNanoSeconds >= *before.UsageCoreNanoSeconds:
		return uint64(float64(*now.UsageCoreNanoSeconds-*before.UsageCoreNanoSeconds) / now.Time.Sub(before.Time.Time).Seconds())
	case now.UsageNanoCores != nil:
		return *now.UsageNanoCores
	}
	return 0
}

func workingSet(m *stats.MemoryStats) uint64 {
	if m == nil || m.WorkingSetBytes == nil {
		return 0
	}
	return *m.WorkingSetBytes
}

func (p *program) topNodes(cmd *cobra.Command, f topFlags) error {
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	before, now, err := readTwice(cmd.Context(), c)
	if err != nil {
		return err
	}
	u := ui.NodeUsage{Name: now.Node.NodeName, Nanocores: nanocores(before.Node.CPU, now.Node.CPU), Bytes: workingSet(now.Node.Memory)}
	if node, err := c.Node(cmd.Context()); err == nil { // a kubelet does not serve its Node
		cpu, memory := node.Status.Allocatable[v1.ResourceCPU], node.Status.Allocatable[v1.ResourceMemory]
		u.MilliCPU, u.Memory = cpu.MilliValue(), memory.Value()
	}
	return p.out.print(p.out.Grid(ui.NodeUsageGrid([]ui.NodeUsage{u}), f.columns))
}
