package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/nodectl/nodectl/pkg/ui"
)

// followed follows the agent. The sequence ends when the agent leaves, or has
// sent as many as were asked for, or with ctx; an error is the last word.
func (p *program) followed(ctx context.Context, s selection) iter.Seq2[ui.PodUpdate, error] {
	return func(yield func(ui.PodUpdate, error) bool) {
		for line, err := range p.agent().Lines(ctx, "/v1/updates", s.query()) {
			var d ui.PodUpdate
			if err == nil {
				if err = json.Unmarshal(line, &d); err != nil {
					err = fmt.Errorf("the agent sent a line that is no update: %w", err)
				}
			}
			if err != nil {
				yield(d, unanswered(err))
				return
			}
			if !yield(d, nil) {
				return
			}
		}
	}
}
