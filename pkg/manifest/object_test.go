package manifest

import "testing"

// TestObjectHashesCoverWhatCounts: an edit that only makes an object immutable is
// another reading of it; comments and the order of keys are not.
func TestObjectHashesCoverWhatCounts(t *testing.T) {
	t.Parallel()
	hash := func(text string) string {
		f, _ := Parse([]byte(text), options("o.yaml"))
		if len(f.Objects) != 1 || len(f.Problems) > 0 {
			t.Fatalf("%s: %+v", text, f)
		}
		return f.Objects[0].Hash
	}
	claim := "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: d}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}"
	for name, c := range map[string]struct {
		a, b string
		same bool
	}{
		"a ConfigMap, immutable":            {"{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {k: v}}", "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {k: v}, immutable: true}", false},
		"a Secret, immutable":               {"{apiVersion: v1, kind: Secret, metadata: {name: c}, data: {k: dg==}}", "{apiVersion: v1, kind: Secret, metadata: {name: c}, data: {k: dg==}, immutable: true}", false},
		"a ConfigMap, not immutable":        {"{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {k: v}}", "{apiVersion: v1, kind: ConfigMap, immutable: false, metadata: {name: c}, data: {k: v}} # said", true},
		"a claim, of another size":          {claim + "}", claim[:len(claim)-5] + "2Gi}}}", false},
		"a claim, and what a server writes": {claim + "}", claim + "}\nstatus: {phase: Bound}", true},
	} {
		if a, b := hash(c.a), hash(c.b); (a == b) != c.same {
			t.Errorf("%s: %s and %s", name, a, b)
		}
	}
}
