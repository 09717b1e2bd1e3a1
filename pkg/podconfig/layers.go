package podconfig

// Layers returns the states of the layers in their order, before any source is read.
func (c *PodConfig) Layers() []LayerState {
	states := make([]LayerState, 0, len(c.layers))
	for _, l := range c.layers {
		states = append(states, l.State())
	}
	return states
}
