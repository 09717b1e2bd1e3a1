//go:build !full

package tier

const isFull = false
