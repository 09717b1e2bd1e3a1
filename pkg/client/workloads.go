package client

import (
	"context"
	"net/url"
)

// Workloads reads the workloads of a kind ("Deployment"), all for "", into the answer's document.
// history adds the versions of their pod templates.
func (c *Client) Workloads(ctx context.Context, kind string, history bool, into any) error {
	q := url.Values{}
	if kind != "" {
		q.Set("kind", kind)
	}
	if history {
		q.Set("history", "true")
	}
	return c.onlyAgents(c.Document(ctx, "/v1/workloads", q, into), "workloads")
}

// ChangeWorkload changes a workload, and returns the result for a person: "scaled".
func (c *Client) ChangeWorkload(ctx context.Context, kind, namespace, name, verb string, q url.Values) (string, error) {
	var answer struct {
		Result string `json:"result"`
	}
	err := c.PostDocument(ctx, "/v1/workloads/"+kind+"/"+namespace+"/"+name+"/"+verb, q, &answer)
	return answer.Result, c.onlyAgents(err, "changes of workloads")
}
