package record

import (
	"fmt"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
)

// For pods with ever new names no keys are kept: other code removes their records.
func TestRecords_PodsThatAreGone_LeaveNoKey(t *testing.T) {
	t.Parallel()
	r := New(t.TempDir())
	if _, err := r.All(); err != nil {
		t.Fatal(err)
	}
	save := func(name string) {
		t.Helper()
		if err := r.Save(pod.Record{Key: pod.Key{Namespace: "default", Name: name}, UID: "uid-" + name, Instance: 1}); err != nil {
			t.Fatal(err)
		}
	}
	save("stays")
	for i := range 10 * fewUIDs { // like Save, without a file for each
		name := fmt.Sprintf("job-%d", i)
		r.mu.Lock()
		r.uids[pod.Key{Namespace: "default", Name: name}] = "uid-" + name
		r.mu.Unlock()
		if i%fewUIDs == 0 {
			save("stays-too")
			save("stays")
		}
	}
	save("last")
	if n := len(r.uids); n > 2*fewUIDs {
		t.Errorf("%d keys of 3 records", n)
	}
	if _, ok, err := r.Load(pod.Key{Namespace: "default", Name: "stays"}, ""); !ok || err != nil {
		t.Errorf("a record is lost: %v", err)
	}
}
