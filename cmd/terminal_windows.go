package cmd

// resized calls f now: a console does not say that it gets another size.
func resized(f func()) (stop func()) {
	f()
	return func() {}
}
