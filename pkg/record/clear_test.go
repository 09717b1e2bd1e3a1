package record

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
)

// SaveClear writes a file of a set as nodectl did before it encrypted Secrets.
func SaveClear(t testing.TB, root, layer string, s pod.LastGoodSet) {
	t.Helper()
	out := storedFileSet{Layer: layer, File: s.File}
	for _, p := range s.Pods {
		out.Pods = append(out.Pods, storeSpec(p))
	}
	for _, o := range s.Objects {
		content, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		out.Objects = append(out.Objects, storedObject{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Origin: storedOrigin(o.Origin), Hash: o.Hash, Object: content})
	}
	payload, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "sources", hashedName(layer))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, hashedName(s.File)+setSuffix), frameOf(fileSetFrame, plainVersion, payload), 0o600); err != nil {
		t.Fatal(err)
	}
}
