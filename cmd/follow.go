package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/nodectl/nodectl/pkg/ui"
)

// followed yields the agent's updates. The sequence ends when the agent ends, after s.Max
// updates, or with ctx. An error is the last element.
func (p *program) followed(ctx context.Context, s ui.Selection) iter.Seq2[ui.PodUpdate, error] {
	return func(yield func(ui.PodUpdate, error) bool) {
		for line, err := range p.agent().Lines(ctx, "/v1/updates", s.Query()) {
			var d ui.PodUpdate
			if err == nil {
				if err = json.Unmarshal(line, &d); err != nil {
					err = fmt.Errorf("decode an update of the agent: %w", err)
				}
			}
			if err != nil {
				yield(d, clientError(err))
				return
			}
			if !yield(d, nil) {
				return
			}
		}
	}
}
