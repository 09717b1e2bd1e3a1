package suite

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// networkEnv names the network namespace that OwnNetwork has made.
const networkEnv = "NODECTL_TEST_NETWORK"

// OwnNetwork moves the test binary to a network namespace of its own, with a loopback device that is
// up. So tests that bind fixed addresses do not collide with another run of the same binary. It needs
// root. TestMain calls it before m.Run:
//
//	func TestMain(m *testing.M) {
//		if err := suite.OwnNetwork(); err != nil { … }
//		os.Exit(m.Run())
//	}
//
// A namespace belongs to a thread, and Go moves goroutines between threads. Therefore OwnNetwork
// executes the binary again: all threads of the new program begin in the namespace. The process ID,
// the arguments and the files stay. In the new program OwnNetwork does nothing.
func OwnNetwork() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Getenv(networkEnv) == network() {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("set up the loopback device: %w: %s", err, out)
	}
	if err := os.Setenv(networkEnv, network()); err != nil {
		return err
	}
	return fmt.Errorf("execute the test binary in its network namespace: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// network returns the name of the thread's network namespace.
func network() string {
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return err.Error()
	}
	return name
}
