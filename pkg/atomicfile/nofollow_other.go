//go:build !unix

package atomicfile

const noFollow = 0
