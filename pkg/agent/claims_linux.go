package agent

import (
	"context"
	"os"
	"path/filepath"

	"github.com/nodectl/nodectl/pkg/dra"
	"github.com/nodectl/nodectl/pkg/engine"
)

// newClaims returns the DRA drivers of this node. It returns nil without an API server, which has the
// claims. It also returns nil if the agent is not root: only root may give devices to containers.
func (a *Agent) newClaims() *dra.Claims {
	if a.api == nil || os.Geteuid() != 0 {
		return nil
	}
	c := dra.New(dra.Config{
		Dir: filepath.Join(a.cfg.RootDir, "resource-claims"), Log: a.cfg.Log,
		Handled: a.metrics.ClaimsHandled, Called: a.metrics.ClaimDriverCalled,
	})
	a.metrics.Claims(c.InUse)
	return c
}

// engineClaims returns the DRA drivers for the engine, nil for none.
func (a *Agent) engineClaims() engine.Claims {
	if a.claims == nil {
		return nil
	}
	return a.claims
}

// serveClaims maintains ResourceSlices, and unprepares claims that no pod uses, until ctx ends.
func (a *Agent) serveClaims(ctx context.Context) {
	if a.claims != nil {
		a.claims.Run(a.board.Context(ctx))
	}
}
