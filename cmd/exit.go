package cmd

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/suggest"
)

// Exit codes of all commands.
const (
	exitOK       = 0
	exitChanges  = 1 // merge --dry-run: changes pending
	exitFailure  = 1 // any other failure
	exitUsage    = 2
	exitRejected = 3 // a manifest was rejected
	exitTimeout  = 4
	exitSource   = 5 // a source could not be read
	exitRuntime  = 6 // the container runtime
	exitMerge    = 7 // any other failure of merge, whose 1 is exitChanges
	exitPod      = 9 // runonce: a pod failed
)

// exit is the error with which a command ends. Without err, end prints nothing.
type exit struct {
	code  int
	err   error
	hints []string
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// failed returns err with the exit code and the hints of the command; nil stays nil.
func failed(code int, err error, hints ...string) error {
	if err == nil {
		return nil
	}
	return &exit{code: code, err: err, hints: hints}
}

// ended returns an error with an exit code and no text; nil for exitOK.
func ended(code int) error {
	if code == exitOK {
		return nil
	}
	return &exit{code: code}
}

// worst returns the exit code of a command to which several apply.
func worst(codes ...int) int {
	for _, c := range []int{exitRuntime, exitSource, exitRejected, exitPod, exitTimeout, exitChanges} {
		if slices.Contains(codes, c) {
			return c
		}
	}
	return exitOK
}

// end prints err with its hints, and returns the exit code.
func (p *program) end(ctx context.Context, cmd *cobra.Command, err error) int {
	var e *exit
	var stopped interrupted
	var setting *config.Error
	var found *readonly.Error
	switch {
	case err == nil, errors.Is(err, errClosed):
		return exitOK
	case cmd != nil && waits(cmd) && errors.As(context.Cause(ctx), &stopped):
		return stopped.code()
	case errors.As(err, &e):
		if e.err != nil {
			p.say(p.err.Error(e.err.Error(), e.hints...))
		}
		return e.code
	case errors.As(err, &found):
		for _, problem := range found.Problems {
			p.say(p.err.Problem(problem))
		}
		if found.Err != nil {
			p.say(p.err.Error(found.Err.Error(), found.Hints...))
		}
		switch found.Kind {
		case readonly.Usage:
			return exitUsage
		case readonly.Runtime:
			return exitRuntime
		}
		return otherFailure(cmd)
	case errors.As(err, &setting):
		p.say(p.err.Error(err.Error()))
		return exitUsage
	case errors.As(err, &stopped):
		return stopped.code()
	case errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &stopped):
		return stopped.code()
	}
	p.say(p.err.Error(err.Error()))
	return otherFailure(cmd)
}

// otherFailure returns the exit code of an error that sets no code.
func otherFailure(cmd *cobra.Command) int {
	if cmd != nil && cmd.Name() == "merge" {
		return exitMerge
	}
	return exitFailure
}

// waits reports whether a signal decides the exit code of a command, whatever error the command
// returns. These commands wait for a container or an agent.
func waits(cmd *cobra.Command) bool {
	return slices.Contains([]string{"attach", "cp", "delete", "exec", "restart", "wait"}, cmd.Name())
}

// usage returns an error of the command line, with the hint to read the help.
func usage(cmd *cobra.Command, err error) error {
	return failed(exitUsage, err, "see '"+cmd.CommandPath()+" --help'")
}

// flagError explains an error of pflag.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				known = append(known, f.Name)
			}
		})
		text := err.Error()
		if given := cmd.Flags().Args(); cmd.HasAvailableSubCommands() && len(given) > 0 {
			return unknownCommand(cmd, given[0]) // the flag may belong to the command that the user meant
		}
		if unknown.GetSpecifiedShortnames() == "" {
			text = "unknown flag --" + unknown.GetSpecifiedName()
			if cmd.Name() == "serve" && slices.Contains(config.KubeletGoneFlags(), unknown.GetSpecifiedName()) {
				return failed(exitUsage, errors.New("--"+unknown.GetSpecifiedName()+" was a flag of old kubelets and has no effect"), "the container runtime finds CNI configuration and plugins itself")
			}
			if cmd.Name() == "runonce" && slices.Contains(clusterSettings(), unknown.GetSpecifiedName()) {
				return usage(cmd, errors.New("--"+unknown.GetSpecifiedName()+": runonce reads only files, URLs and standard input; serve reads an API server or etcd"))
			}
			if like := suggest.Similar(unknown.GetSpecifiedName(), known); like != "" {
				text += ` (did you mean "--` + like + `"?)`
			}
		}
		return usage(cmd, errors.New(text))
	case errors.As(err, &invalid):
		return usage(cmd, errors.New("--"+invalid.GetFlag().Name+": "+invalidValue(invalid)))
	}
	return usage(cmd, err)
}

// invalidValue explains why a flag does not accept a value.
func invalidValue(e *pflag.InvalidValueError) string {
	value := `"` + e.GetValue() + `"`
	switch e.GetFlag().Value.Type() {
	case "duration":
		return value + " is not a duration such as 20s or 5m"
	case "int", "int32", "int64":
		return value + " is not a whole number"
	case "bool":
		return value + " is neither true nor false"
	}
	if text := e.Unwrap().Error(); strings.HasPrefix(text, "not one of ") {
		return value + " is " + text
	}
	return value + ": " + e.Unwrap().Error()
}

// unknownCommand returns the error for an unknown command. It suggests a similar one.
func unknownCommand(cmd *cobra.Command, name string) error {
	var known []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			known = append(append(known, c.Name()), c.Aliases...)
		}
	}
	text := `unknown command "` + name + `"`
	if like := suggest.Similar(name, known); like != "" {
		text += ` (did you mean "` + like + `"?)`
	}
	return usage(cmd, errors.New(text))
}

// noArgs rejects arguments that are not flags, with a hint.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := cmd.CommandPath() + ` takes no argument: "` + args[0] + `"`
	if cmd.Flags().Lookup("filename") != nil {
		text += ` (did you mean "-f ` + args[0] + `"?)`
	}
	return usage(cmd, errors.New(text))
}
