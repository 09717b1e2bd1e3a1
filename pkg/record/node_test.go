package record_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/record"
)

// Shows: F16
func TestNodeNameIsRemembered(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	for range 2 {
		if err := record.Node(root, "n1"); err != nil {
			t.Fatal(err)
		}
	}
	err := record.Node(root, "n2")
	var other *record.NodeError
	if !errors.As(err, &other) || other.Have != "n1" || other.Want != "n2" || !strings.Contains(other.Hint(), "--node-name n1") {
		t.Errorf("another name: %v", err)
	}
	if err.Error() != root+" belongs to node n1, not to n2" {
		t.Errorf("it says %q", err)
	}
	if err := record.Node(root, "n1"); err != nil {
		t.Errorf("the first name afterwards: %v", err)
	}
	// A file that lost its content in a power failure is written again.
	if err := os.Truncate(filepath.Join(root, "node-name"), 0); err != nil {
		t.Fatal(err)
	}
	if err := record.Node(root, "n3"); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile(filepath.Join(root, "node-name")); string(text) != "n3\n" {
		t.Errorf("file holds %q", text)
	}
}
