// Package service decides what the Services of one node are: which cluster IPs and node ports they
// have, and which pods are their endpoints.
//
// The one rule: no I/O, no clock, no lock. The same Services, pods and earlier allocations always
// give the same result.
package service
