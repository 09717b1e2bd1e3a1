package podview

import (
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Backoff is one crash back-off: the delay and its end.
type Backoff struct {
	Delay time.Duration
	Until time.Time
}

// A pull that failed is tried again after firstPullDelay, which doubles with each failure
// in a row up to maxPullDelay (C-1.39). A first failure shows its own reason for
// pullErrorShown: by then the kubelet has looked again, and shows the back-off.
const (
	firstPullDelay = 10 * time.Second
	maxPullDelay   = 5 * time.Minute
	pullErrorShown = time.Second
)

// ImagePullBackOff is the waiting reason of a container whose image is tried again later.
const ImagePullBackOff = "ImagePullBackOff"

// PullDelay returns how long a pull waits after so many failures in a row.
func PullDelay(failures int) time.Duration {
	return min(firstPullDelay<<min(failures-1, 10), maxPullDelay)
}

// PullBackOffFrom returns when a pull that failed for the first time is shown as one that
// backs off; zero after later failures: those are shown so at once.
func PullBackOffFrom(t pod.Trouble) time.Time {
	if t.Count != 1 || t.Until.IsZero() {
		return time.Time{}
	}
	return t.Until.Add(pullErrorShown - firstPullDelay)
}

// InPullBackOff reports whether a pull that failed is shown as one that backs off.
func InPullBackOff(t pod.Trouble, now time.Time) bool {
	return t.Count > 1 || !t.Until.IsZero() && t.Until.Sub(now) <= firstPullDelay-pullErrorShown
}

// IsPullError reports whether a reason is that of an image that could not be pulled: a
// container that waits for it shows ImagePullBackOff in its stead.
func IsPullError(reason string) bool {
	switch reason {
	case "ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed":
		return true
	}
	return false
}

// IsNeverPulled reports whether a reason is that of an image that no pull is tried for.
// It is shown as it is, and no event says that a pull backs off. A failure of a pull that
// has neither kind of reason keeps its reason and has the event.
func IsNeverPulled(reason string) bool {
	switch reason {
	case "InvalidImageName", "ImageInspectError", "ErrImageNeverPull":
		return true
	}
	return false
}
