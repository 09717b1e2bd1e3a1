//go:build full

package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/wait"
)

// TestWholeCluster: controllers act, service accounts get tokens, kubectl works, and the
// audit log records requests.
func TestWholeCluster(t *testing.T) {
	t.Parallel()
	c := Start(t, Whole("127.0.0.1"))
	if out, err := c.Kubectl(t, "create", "deployment", "web", "--image=none").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wait.NoError(t, func() error {
		out, err := c.Kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].status.conditions[0].reason}").CombinedOutput()
		if err == nil && string(out) != "Unschedulable" {
			err = errors.New(string(out))
		}
		return err
	})
	file := c.BootstrapKubeconfig(t)
	wait.NoError(t, func() error { // the API server reads a new token with a delay
		out, err := c.KubectlAs(t, file, "auth", "whoami").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "system:bootstrap:abcdef") {
			return fmt.Errorf("a new node is %s: %v", out, err)
		}
		return nil
	})
}
