package cmd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

// TestObjectWatch_ObjectsChange_EachChangeIsPrintedOnce: with kubectl's types of changes. The watch
// ends when the agent does, and fails at once for a name that no object has.
func TestObjectWatch_ObjectsChange_EachChangeIsPrintedOnce(t *testing.T) {
	t.Parallel()
	service := func(name, address string) v1.Service {
		return v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: address}}
	}
	answers := [][]v1.Service{
		{service("web", "10.0.0.1")},
		{service("web", "10.0.0.1"), service("db", "10.0.0.2")},
		{service("web", "10.0.0.3"), service("db", "10.0.0.2")},
		{service("web", "10.0.0.3")},
	}
	for name, c := range map[string]struct {
		flags   followFlags
		format  ui.Format
		missing []error
		want    string
		err     string
	}{
		"names":        {followFlags{watch: true}, ui.Format{Kind: "name"}, nil, "service/web\nservice/db\nservice/web\nservice/db\n", ""},
		"only changes": {followFlags{watchOnly: true}, ui.Format{Kind: "name"}, nil, "service/db\nservice/web\nservice/db\n", ""},
		"types": {followFlags{watch: true, watchTypes: true}, ui.Format{Kind: "text"}, nil, `EVENT   NAMESPACE   NAME   TYPE        CLUSTER-IP   EXTERNAL-IP   PORT(S)   AGE
ADDED   default     web    ClusterIP   10.0.0.1     <none>        <none>    <unknown>
ADDED   default     db     ClusterIP   10.0.0.2     <none>        <none>    <unknown>
MODIFIED   default     web    ClusterIP   10.0.0.3     <none>        <none>    <unknown>
DELETED   default     db     ClusterIP   10.0.0.2     <none>        <none>    <unknown>
`, ""},
		"no such name": {followFlags{watch: true}, ui.Format{Kind: "name"}, []error{errors.New("service wbe not found")}, "", "service wbe not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := os.Create(filepath.Join(t.TempDir(), "out"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			asked := 0
			w := objectWatch[v1.Service]{
				listing: &listing{format: c.format}, followFlags: c.flags, names: ui.ServiceNames, object: func(s v1.Service) metav1.Object { return &s },
				grid: func(all []v1.Service) ui.Grid { return ui.ServiceGrid(all, ui.Columns{}, time.Time{}) },
				list: func(context.Context) ([]v1.Service, []error, error) {
					if asked++; asked > len(answers) {
						return nil, nil, &client.AbsentError{Local: true}
					}
					return answers[asked-1], c.missing, nil
				},
			}
			err = w.follow(t.Context(), newProgram(os.Stdin, out, out, func(string) string { return "" }))
			if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Fatalf("the error is %v, want %q", err, c.err)
			}
			text, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			want := c.want
			if c.err == "" {
				want += "notice: the agent has stopped; its pods keep running\n"
			}
			if string(text) != want {
				t.Errorf("it prints\n%s\nwant\n%s", text, want)
			}
		})
	}
}
