package cmd

import (
	"errors"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) createCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "create",
		Short:   "Start a job of a cronjob now",
		Args:    cobra.ArbitraryArgs,
		Example: "  nodectl create job backup-now --from=cronjob/backup",
		RunE:    needsSubcommand,
	}
	cmd.AddCommand(p.createJobCommand())
	return cmd
}

func (p *program) createJobCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "job NAME --from=cronjob/NAME",
		Short: "Start a job of a cronjob now",
		Long: `Start a job of a cronjob now, beside those of its schedule. The cronjob keeps
and removes it like its other jobs.`,
		Args:    cobra.ArbitraryArgs,
		Example: "  nodectl create job backup-now --from=cronjob/backup",
	}
	from := cmd.Flags().String("from", "", "the cronjob, such as cronjob/backup")
	word(cmd.Flags(), "from", "CRONJOB")
	namespace := addNamespace(cmd, "the namespace of the cronjob")
	endpoint := p.addEndpoint(cmd)
	_ = cmd.RegisterFlagCompletionFunc("from", p.completeWorkloads(pod.KindCronJob))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) != 1:
			return usage(cmd, errors.New("create job needs one name"))
		case *from == "":
			return usage(cmd, errors.New("--from is required, such as --from=cronjob/backup"))
		case !strings.Contains(*from, "/"):
			return usage(cmd, errors.New("--from: "+*from+" has no kind: give cronjob/"+*from))
		}
		refs, err := workloadRefs([]string{*from}, pod.KindCronJob)
		if err != nil {
			return usage(cmd, errors.New("--from: "+err.Error()))
		}
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		w, err := p.workloadNamed(cmd.Context(), c, refs[0].workloadKind, *namespace, refs[0].name)
		if err != nil {
			return err
		}
		if _, err := c.ChangeWorkload(cmd.Context(), w.Kind, w.Object.GetNamespace(), w.Object.GetName(), "create-job", url.Values{"job": {args[0]}}); err != nil {
			return p.notChanged(err, refs[0], w)
		}
		return p.out.print(ui.WorkloadRef(pod.KindJob, args[0]) + " created\n")
	}
	return cmd
}
