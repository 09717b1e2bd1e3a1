package critest

import (
	"path"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// uncaughtTerm is the exit code of a process that SIGTERM kills.
const uncaughtTerm = 143

// Behaviour is the behaviour of a container. It is parsed from the command and arguments, or,
// without any, from the last part of the image's name with "-" for blanks:
//
//	exit 1              ends at once with code 1
//	exit 1 after 5s     ends after five seconds with code 1
//	sleep 5             ends after five seconds with code 0
//	ignore term         does not end on SIGTERM
//	slow term 3s        ends three seconds after SIGTERM with code 0
//	no such command     cannot be started
//	sh -c 'sleep 2; exit 3', with trap '' TERM, and echo why > /dev/termination-log
//
// Any other command runs until it gets the stop signal, and then exits at once with 128
// plus the signal's number, 143.
type Behaviour struct {
	StartError string        // the error of StartContainer
	Ends       bool          // exits by itself
	After      time.Duration // that long after its start
	Code       int32         // its exit code when it ends by itself
	IgnoreTerm bool          // only SIGKILL ends it
	TermDelay  time.Duration // how long it takes to end on the stop signal
	TermCode   int32         // its exit code then
	Output     string        // its log output at its start, or the output of ExecSync
	Message    string        // the content of its termination message file at its end
}

func (rt *Runtime) behaviourOf(c *runtimeapi.ContainerConfig) Behaviour {
	if rt.behave != nil {
		if b, ok := rt.behave(c); ok {
			return b
		}
	}
	words := append(append([]string(nil), c.GetCommand()...), c.GetArgs()...)
	if len(words) == 0 {
		name, _, _ := strings.Cut(path.Base(c.GetImage().GetUserSpecifiedImage()), ":")
		return parse(strings.Split(name, "-"))
	}
	words[0] = path.Base(words[0])
	if (words[0] == "sh" || words[0] == "ash" || words[0] == "bash") && len(words) > 2 && words[1] == "-c" {
		return script(words[2])
	}
	return parse(strings.Fields(strings.ReplaceAll(strings.Join(words, " "), "-", " ")))
}

// parse reads one command.
func parse(w []string) Behaviour {
	b := Behaviour{TermCode: uncaughtTerm}
	word := func(i int) string {
		if i < len(w) {
			return w[i]
		}
		return ""
	}
	switch {
	case word(0) == "exit":
		code, err := strconv.Atoi(word(1))
		b.Ends, b.Code = err == nil, int32(code)
		if word(2) == "after" {
			b.After, _ = time.ParseDuration(word(3))
		}
	case word(0) == "sleep":
		b.After, b.Ends = duration(word(1))
	case word(0) == "ignore" && word(1) == "term":
		b.IgnoreTerm = true
	case word(0) == "slow" && word(1) == "term":
		b.TermCode = 0
		b.TermDelay, _ = time.ParseDuration(word(2))
	case word(0) == "no" && word(1) == "such":
		name := strings.Join(w, "-")
		b.StartError = `failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: ` +
			`unable to start container process: error during container init: exec: "` + name + `": executable file not found in $PATH: unknown`
	}
	return b
}

// script reads the few shell commands that tests use: sleep, exit and a trap of TERM, one
// after the other.
func script(text string) Behaviour {
	b := Behaviour{Ends: true, TermCode: uncaughtTerm}
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == '\n' || r == '&' }) {
		w := strings.Fields(line)
		if len(w) > 0 && w[0] == "exec" {
			w = w[1:]
		}
		if len(w) == 0 {
			continue
		}
		switch w[0] {
		case "trap":
			b.IgnoreTerm = len(w) > 1 && (w[1] == "''" || w[1] == `""`)
		case "sleep":
			d, ends := duration(strings.Join(w[1:], ""))
			if !ends {
				b.Ends = false
				return b
			}
			b.After += d
		case "exit":
			if len(w) > 1 {
				code, _ := strconv.Atoi(w[1])
				b.Code = int32(code)
			}
			return b
		case "while":
			b.Ends = false
			return b
		case "echo":
			text, file, redirected := strings.Cut(strings.Join(w[1:], " "), ">")
			switch text = strings.TrimSpace(text); {
			case !redirected:
				b.Output += text + "\n"
			case strings.TrimSpace(file) == "/dev/termination-log":
				b.Message = text + "\n"
			}
		}
	}
	return b
}

// duration reads sleep's argument: seconds, or a duration; ok is false for other words,
// which mean no end.
func duration(s string) (d time.Duration, ok bool) {
	if n, err := strconv.ParseFloat(s, 64); err == nil && n < 1e8 {
		return time.Duration(n * float64(time.Second)), true
	}
	d, err := time.ParseDuration(s)
	return d, err == nil
}
