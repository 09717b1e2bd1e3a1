package e2e

import (
	"context"
	"net"
	"path/filepath"

	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/test/wait"
)

// dial connects to the agent's socket; the end of the test closes the connection.
func (s *stage) dial() net.Conn {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	c, err := server.Dial(ctx, filepath.Join(s.root, "nodectl.sock"))
	s.must(err)
	s.Cleanup(func() { _ = c.Close() })
	return c
}
