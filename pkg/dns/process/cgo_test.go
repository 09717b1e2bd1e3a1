//go:build linux && cgo

package process

const withCgo = true
