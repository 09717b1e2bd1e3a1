//go:build !cgo

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// servingEnv makes this test's program behave as a server under the control of a query.
const servingEnv = "NODECTL_TEST_SERVING"

// servingUser is a user that no file of this machine belongs to.
const servingUser = 61053

func init() {
	mode := os.Getenv(servingEnv)
	if mode == "" {
		return
	}
	dir, allowed, other, datagrams := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	listener, err := net.Listen("tcp", "127.0.0.1:0") // also makes package net detect the machine's address families
	if err == nil && mode == "after" {
		_, port, _ := net.SplitHostPort(allowed)
		number, _ := strconv.Atoi(port)
		err = Serving(servingUser, uint16(number))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	dial := func(network, to string) error {
		c, err := net.Dial(network, to)
		if err == nil {
			c.Close()
		}
		return err
	}
	for _, try := range []struct {
		what string
		do   func() error
	}{
		{"read", func() error { _, err := os.ReadFile(filepath.Join(dir, "open")); return err }},
		{"list", func() error { _, err := os.ReadDir(dir); return err }},
		{"create", func() error { return os.WriteFile(filepath.Join(dir, "new"), nil, 0o600) }},
		{"remove", func() error { return os.Remove(filepath.Join(dir, "open")) }},
		{"execute", func() error { return exec.Command("/bin/true").Run() }},
		{"root", func() error { return syscall.Setuid(0) }},
		{"signal", func() error { return unix.Kill(os.Getppid(), 0) }},
		{"bind", func() error { _, err := net.ListenPacket("udp", "127.0.0.1:0"); return err }},
		{"listen", func() error { _, err := net.Listen("tcp", "127.0.0.1:0"); return err }},
		{"connect", func() error { return dial("tcp", other) }},
		{"unix", func() error { return dial("unix", filepath.Join(dir, "socket")) }},
		{"netlink", func() error { _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0); return err }},
		{"upstream", func() error { return dial("tcp", allowed) }},
		{"datagram", func() error { return dial("udp", datagrams) }},
		{"accept", func() error {
			_ = listener.(*net.TCPListener).SetDeadline(time.Unix(1, 0))
			_, err := listener.Accept()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return err
		}},
	} {
		verdict := "allowed"
		switch err := try.do(); {
		case errors.Is(err, fs.ErrPermission):
			verdict = "refused"
		case err != nil:
			verdict = err.Error()
		}
		fmt.Println(try.what, verdict)
	}
	os.Exit(0)
}

// A query that exploits the server's parser gains no file, program, process or user, and no
// connection but those to name servers.
//
// Shows: D1
func TestServing_ProcessIsTakenOver_ReachesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the test needs root, to give it up")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "open"), []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, l := range [][2]string{{"tcp", "127.0.0.1:0"}, {"tcp", "127.0.0.1:0"}, {"unix", filepath.Join(dir, "socket")}} {
		one, err := net.Listen(l[0], l[1])
		if err != nil {
			t.Fatal(err)
		}
		defer one.Close()
		addresses = append(addresses, one.Addr().String())
	}
	addresses[2] = addresses[0]
	if err := os.Chmod(filepath.Join(dir, "socket"), 0o777); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/"; d = filepath.Dir(d) { // so that only the confinement refuses
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(d) == os.TempDir() {
			break
		}
	}
	const rights = "read, list, create, remove, execute, root, signal, bind, listen, connect, unix, netlink"
	const uses = "upstream, datagram, accept"
	for mode, refused := range map[string]string{"before": "", "after": rights} {
		cmd := exec.Command("/proc/self/exe", append([]string{dir}, addresses...)...)
		cmd.Env = []string{servingEnv + "=" + mode}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", mode, err, out)
		}
		want := ""
		for what := range strings.SplitSeq(rights+", "+uses, ", ") {
			verdict := "allowed"
			if strings.Contains(", "+refused+",", ", "+what+",") {
				verdict = "refused"
			}
			want += what + " " + verdict + "\n"
		}
		if string(out) != want {
			t.Errorf("%s: got\n%swant\n%s", mode, out, want)
		}
		if err := os.WriteFile(filepath.Join(dir, "open"), []byte("x"), 0o666); err != nil { // removed by the first
			t.Fatal(err)
		}
	}
}
