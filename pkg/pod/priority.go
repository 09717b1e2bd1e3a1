package pod

// Priorities of the two classes that exist without an API server (C-1.4.2).
const (
	PriorityNodeCritical    = 2000001000
	PriorityClusterCritical = 2000000000
)

// PriorityOf returns the priority of a built-in priority class; ok is false
// for any other.
func PriorityOf(class string) (priority int32, ok bool) {
	switch class {
	case "system-node-critical":
		return PriorityNodeCritical, true
	case "system-cluster-critical":
		return PriorityClusterCritical, true
	}
	return 0, false
}
