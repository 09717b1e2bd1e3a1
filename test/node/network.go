package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/wait"
)

// PlainNetwork configures a pod network without masquerading and without host ports: its
// plugins run no iptables. It returns once the runtime has read the configuration.
func (n *Node) PlainNetwork(ctx context.Context) error {
	found, err := filepath.Glob(filepath.Join(n.RootDir, "*/cni/*.conflist"))
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("configurations of the pod network: %v", found)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	var list map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("%s: %w", found[0], err)
	}
	list["plugins"] = slices.DeleteFunc(list["plugins"].([]any), func(p any) bool {
		delete(p.(map[string]any), "ipMasq")
		return p.(map[string]any)["type"] == "portmap"
	})
	if text, err = json.Marshal(list); err != nil {
		return err
	}
	if err := os.WriteFile(found[0], text, 0o600); err != nil {
		return err
	}
	return wait.Try(func() error {
		status, err := n.Runtime.Status(ctx, &cri.StatusRequest{Verbose: true})
		if err != nil {
			return err
		}
		if in := status.GetInfo()["cniconfig"]; !strings.Contains(in, n.Bridge) || strings.Contains(in, "portmap") {
			return fmt.Errorf("the pod network of the runtime is %s", in)
		}
		return nil
	})
}
