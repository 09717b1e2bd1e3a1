package confine

// oldCalls are the calls of deniedCalls' kind that newer architectures lack: all of them.
var oldCalls []uint32
