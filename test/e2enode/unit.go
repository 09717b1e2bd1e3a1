package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/suite"
)

// unitName is the name under which the suite finds the agent: it looks for kubelet-*.
const unitName = "kubelet-e2enode.service"

// unitSocket is where the stand-in for systemctl asks.
const unitSocket = "/run/e2enode.sock"

// A unit is the agent as systemd would run it.
type unit struct {
	tb      *suite.TB
	mu      sync.Mutex
	process *cluster.Process
}

// newUnit serves the stand-in for systemctl.
func newUnit(tb *suite.TB, p *cluster.Process) *unit {
	u := &unit{tb: tb, process: p}
	l, err := net.Listen("unix", unitSocket)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() }) // it is in the namespace's /run
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go u.answer(c)
		}
	}()
	return u
}

func (u *unit) running() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.process.Runs()
}

// answer answers one call of systemctl: a line of arguments in, "ok" or an error and the
// output back.
func (u *unit) answer(c net.Conn) {
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return
	}
	out, err := u.systemctl(strings.Fields(line))
	if err != nil {
		fmt.Fprintln(c, "error:", err)
		return
	}
	fmt.Fprint(c, "ok\n"+out)
}

// systemctl stands in for systemctl, for the subcommands that the suite uses.
func (u *unit) systemctl(args []string) (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(args) == 0 {
		return "", errors.New("systemctl: no verb")
	}
	stop := func() error {
		if !u.process.Runs() {
			return nil
		}
		return suite.Try(func() { u.process.Terminate(u.tb) })
	}
	switch args[0] {
	case "list-units":
		state := "inactive dead"
		if u.process.Runs() {
			state = "active running"
		} else if slices.Contains(args, "--state=running") {
			return "0 loaded units listed.\n", nil
		}
		return fmt.Sprintf("  %s loaded %s the agent\n\n1 loaded units listed.\n", unitName, state), nil
	case "reset-failed", "daemon-reload", "mask":
		return "", nil
	case "kill", "stop":
		return "", stop()
	case "start", "restart":
		if args[0] == "restart" {
			if err := stop(); err != nil {
				return "", err
			}
		}
		if u.process.Runs() {
			return "", nil
		}
		return "", suite.Try(func() { u.process.Start(u.tb) })
	case "is-active":
		if u.process.Runs() {
			return "active\n", nil
		}
		return "", errors.New("inactive")
	default:
		return "", fmt.Errorf("systemctl %s: this stand-in does not know the verb", args[0])
	}
}

// standIns makes the directory of the programs that stand in for the machine's.
func standIns(dir string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	err = os.MkdirAll(filepath.Join(dir, "bin"), 0o755)
	for _, name := range []string{"sudo", "systemctl"} {
		err = errors.Join(err, os.Symlink(exe, filepath.Join(dir, "bin", name)))
	}
	return err
}

// standIn is the program under the name sudo or systemctl.
func standIn(name string, args []string) int {
	err := errors.New("no command")
	switch {
	case name == "systemctl":
		err = askUnit(args)
	case len(args) > 0: // sudo: the suite is root already
		var path string
		if path, err = exec.LookPath(args[0]); err == nil {
			err = syscall.Exec(path, args, os.Environ())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}

// askUnit passes the arguments of systemctl on, and prints the answer.
func askUnit(args []string) error {
	c, err := net.Dial("unix", unitSocket)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, strings.Join(args, " ")); err != nil {
		return err
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	status, out, _ := strings.Cut(string(answer), "\n")
	fmt.Print(out)
	if status != "ok" {
		return errors.New(status)
	}
	return nil
}
