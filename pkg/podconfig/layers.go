package podconfig

// Layers returns the layers in order, as they are before their sources are read.
func (c *PodConfig) Layers() []LayerState {
	states := make([]LayerState, 0, len(c.layers))
	for _, l := range c.layers {
		states = append(states, l.State())
	}
	return states
}
