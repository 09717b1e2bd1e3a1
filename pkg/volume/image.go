package volume

import "context"

// image is a volume that the runtime brings from an image: nothing of it is on the
// node's disk for us to make.
type image struct{}

func (image) traits() traits                              { return traits{readOnly: true} }
func (image) path(string) string                          { return "" }
func (image) put(context.Context, placed, *setting) error { return nil }
