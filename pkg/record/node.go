package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// NodeError says that a root directory belongs to another node: its pods carry that node's
// name, and this node would ignore them.
type NodeError struct {
	Root string
	Have string // the name in the root
	Want string // the requested name
}

func (e *NodeError) Error() string {
	return fmt.Sprintf("%s belongs to node %s, not to %s", e.Root, e.Have, e.Want)
}

// Hint is the remedy.
func (e *NodeError) Hint() string {
	return fmt.Sprintf("use --node-name %s, or another --root-dir", e.Have)
}

// Node records name as the node that root belongs to. If root belongs to another node, it
// changes nothing and returns a *NodeError.
func Node(root, name string) error {
	path := filepath.Join(root, "node-name")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read node name: %w", err)
	}
	switch have := strings.TrimSpace(string(text)); have {
	case name:
		return nil
	case "": // never written, or lost in a power failure
	default:
		return &NodeError{Root: root, Have: have, Want: name}
	}
	if err := makeDir(root); err != nil {
		return fmt.Errorf("write node name: %w", err)
	}
	if err := replace(path, []byte(name+"\n")); err != nil {
		return fmt.Errorf("write node name: %w", err)
	}
	return nil
}
