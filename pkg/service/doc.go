// Package service decides which cluster IPs and node ports the Services of one node have, and which
// pods are their endpoints.
//
// It has no I/O, no clock and no lock. The same Services, pods and earlier allocations always give
// the same result.
package service
