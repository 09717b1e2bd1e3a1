package volume

import "context"

// image is a volume that the runtime mounts from an image: the agent makes no files for it.
type image struct{}

func (image) traits() traits                                { return traits{readOnly: true} }
func (image) path(string) string                            { return "" }
func (image) setUp(context.Context, placed, *setting) error { return nil }
