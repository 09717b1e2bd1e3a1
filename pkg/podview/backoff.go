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

// A failed pull is retried after firstPullDelay, which doubles with each failure in a row up
// to maxPullDelay (C-1.39). A first failure shows its own reason for pullErrorShown: by then
// the kubelet has synced again, and shows the back-off.
const (
	firstPullDelay = 10 * time.Second
	maxPullDelay   = 5 * time.Minute
	pullErrorShown = time.Second
)

// ImagePullBackOff is the waiting reason of a container whose image is tried again later.
const ImagePullBackOff = "ImagePullBackOff"

// PullDelay returns how long a pull waits after a number of failures in a row.
func PullDelay(failures int) time.Duration {
	return min(firstPullDelay<<min(failures-1, 10), maxPullDelay)
}

// PullBackOffFrom returns when the first failure of a pull is shown as a back-off; zero for
// later failures, which are shown so at once.
func PullBackOffFrom(t pod.Failure) time.Time {
	if t.Count != 1 || t.Until.IsZero() {
		return time.Time{}
	}
	return t.Until.Add(pullErrorShown - firstPullDelay)
}

// InPullBackOff reports whether a failed pull is shown as a back-off.
func InPullBackOff(t pod.Failure, now time.Time) bool {
	return t.Count > 1 || !t.Until.IsZero() && t.Until.Sub(now) <= firstPullDelay-pullErrorShown
}

// IsPullError reports whether a reason is that of a failed pull. During the back-off, the
// container shows ImagePullBackOff instead of that reason.
func IsPullError(reason string) bool {
	switch reason {
	case "ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed":
		return true
	}
	return false
}

// IsNeverPulled reports whether a reason is that of an image for which no pull is tried. The
// container shows that reason also during the back-off, and no event reports a back-off. All
// other reasons that are not IsPullError are shown in the same way, but with that event.
func IsNeverPulled(reason string) bool {
	switch reason {
	case "InvalidImageName", "ImageInspectError", "ErrImageNeverPull":
		return true
	}
	return false
}
