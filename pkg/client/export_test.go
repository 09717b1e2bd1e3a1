package client

// PackFrom is Pack after its look at the source.
var PackFrom = packFrom
