package cmd

// resized calls f once: a console does not report a new size.
func resized(f func()) (stop func()) {
	f()
	return func() {}
}
