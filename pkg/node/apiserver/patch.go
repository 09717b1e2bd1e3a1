package apiserver

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// difference returns the strategic merge patch that makes before's status, labels and
// annotations those of after. The spec is not the node's to write. It replaces all
// addresses: merged by their type, the second of one type would be lost.
func difference(before, after *v1.Node) ([]byte, error) {
	want := after.DeepCopy()
	want.Spec = before.Spec
	want.Status.Addresses = before.Status.Addresses
	was, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("write node %s: %w", before.Name, err)
	}
	is, err := json.Marshal(want)
	if err != nil {
		return nil, fmt.Errorf("write node %s: %w", before.Name, err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(was, is, v1.Node{})
	if err != nil || equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses) {
		return patch, err
	}
	var tree map[string]any
	if err := json.Unmarshal(patch, &tree); err != nil {
		return nil, fmt.Errorf("read the patch of node %s: %w", before.Name, err)
	}
	status, ok := tree["status"].(map[string]any)
	if !ok {
		status = map[string]any{}
		tree["status"] = status
	}
	all := []any{map[string]string{"$patch": "replace"}}
	for _, a := range after.Status.Addresses {
		all = append(all, a)
	}
	status["addresses"] = all
	return json.Marshal(tree)
}
