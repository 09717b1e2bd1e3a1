package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/test/bench/lab"
	"github.com/nodectl/nodectl/test/node"
)

// nodectl is the agent under test.
type nodectl struct {
	*lab.Nodectl
	node *node.Node
}

func (nodectl) name() string { return "nodectl" }

func (n nodectl) start(d lab.Dirs, endpoint string) (*lab.Process, error) {
	return n.Serve(d, endpoint)
}

func (n nodectl) ready(ctx context.Context, p *lab.Process) error {
	_, err := p.Await(ctx, "Container runtime is ready")
	return err
}

// reported waits for the agent's log line, and checks it with get pods.
func (n nodectl) reported(ctx context.Context, p *lab.Process, d lab.Dirs, pods int) (time.Time, int, error) {
	l, err := p.Await(ctx, "All pods reported", fmt.Sprintf("pods=%d", pods))
	if err != nil {
		return time.Time{}, 0, err
	}
	out, _, err := n.Run(ctx, n.Args(d, n.node.Endpoint, "get", "pods", "-o", "json")...)
	if err != nil {
		return time.Time{}, 0, err
	}
	var list podList
	if err := json.Unmarshal(out, &list); err != nil {
		return time.Time{}, 0, fmt.Errorf("get pods -o json: %w", err)
	}
	if n := list.running(); n != pods || len(list.Items) != pods {
		return time.Time{}, 0, fmt.Errorf("get pods shows %d pods, %d of them Running, right after all were reported; want %d", len(list.Items), n, pods)
	}
	flips, err := journalFlips(filepath.Join(d.Root, "journal.jsonl"), p.Exec)
	return l.At, flips, err
}

// journalFlips counts the pods that the journal shows as not Ready since begin.
func journalFlips(name string, begin time.Time) (int, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	flipped := map[string]bool{}
	for line := range bytes.Lines(text) {
		var entry struct {
			Time time.Time
			Pod  podItem
		}
		if json.Unmarshal(line, &entry) == nil && entry.Time.After(begin) && entry.Pod.unready() {
			flipped[entry.Pod.Metadata.Name] = true
		}
	}
	return len(flipped), nil
}

func (n nodectl) logsDir(lab.Dirs) string { return n.node.LogsDir }

// podList is what both agents report about pods, as far as it is compared.
type podList struct{ Items []podItem }

type podItem struct {
	Metadata struct{ Name string }
	Status   struct {
		Phase      string
		Conditions []struct{ Type, Status string }
	}
}

func (l podList) running() int {
	n := 0
	for _, p := range l.Items {
		if p.Status.Phase == "Running" {
			n++
		}
	}
	return n
}

// unready reports whether the pod has a Ready condition that is False; a missing condition
// does not count.
func (p podItem) unready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" && c.Status == "False" {
			return true
		}
	}
	return false
}
