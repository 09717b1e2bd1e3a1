package pod

import (
	"strings"
	"testing"
)

// TestC_1_35_2_Thresholds: values that the kubelet's flag accepts, and values that it rejects.
//
// Shows: C-1.35.2
func TestC_1_35_2_Thresholds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text     string
		capacity int64
		want     int64
		says     string
	}{
		{"memory.available<100Mi", 8 << 30, 100 << 20, ""},
		{"nodefs.available<10%", 1000, 100, ""},
		{"imagefs.inodesFree < 7.5%", 1000, 75, ""},
		{"pid.available<1k", 5000, 1000, ""},
		{"nodefs.available<10%", 270553174016, 27055317804, ""}, // as a kubelet said of a disk of this size
		{"nodefs.available<0%", 1000, 0, ""},
		{"nodefs.available<100%", 1000, 0, ""}, // as the kubelet: not looked at
		{"memory.available=100Mi", 0, 0, "not of the form"},
		{"memory.free<100Mi", 0, 0, `"memory.free" is not a signal; the signals are: memory.available`},
		{"memory.available<-1", 0, 0, "above zero"},
		{"memory.available<0", 0, 0, "above zero"},
		{"memory.available<lots", 0, 0, `"lots" is neither`},
		{"nodefs.available<101%", 0, 0, "between 0% and 100%"},
		{"nodefs.available<-1%", 0, 0, "between 0% and 100%"},
		{"nodefs.available<NaN%", 0, 0, "between 0% and 100%"},
		{"memory.available<", 0, 0, "neither"},
	} {
		got, err := ParseThreshold(c.text)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.text, err, c.says)
			}
			continue
		}
		if err != nil || got.Of(c.capacity) != c.want {
			t.Errorf("%s: %d of %d, want %d (%v)", c.text, got.Of(c.capacity), c.capacity, c.want, err)
		}
		if again, err := ParseThreshold(got.String()); err != nil || again.Of(c.capacity) != c.want {
			t.Errorf("%s: written as %q, read as %v, %v", c.text, got, again, err)
		}
	}
}

// Shows: C-1.35.2
func TestC_1_35_2_ListOfThresholds(t *testing.T) {
	t.Parallel()
	all, err := ParseThresholds([]string{"memory.available<1Gi, nodefs.available<10%", "pid.available<5%"})
	if err != nil || len(all) != 3 || all[2].Signal != SignalPIDs {
		t.Errorf("%v, %v", all, err)
	}
	if all, err := ParseThresholds(nil); err != nil || len(all) != 0 {
		t.Errorf("none: %v, %v", all, err)
	}
	if _, err := ParseThresholds([]string{"memory.available<1Gi", "memory.available<2Gi"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("twice: %v", err)
	}
}

// An amount may be nothing or all.
func TestParseAmount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want int64 // of 1000
		says string
	}{
		{"memory.available=50", 50, ""}, {"memory.available=0", 0, ""}, {"nodefs.available=100%", 1000, ""}, {"nodefs.inodesFree=7.5%", 75, ""},
		{"memory.available<50Mi", 0, "not of the form"}, {"memory=1", 0, "not a signal"}, {"memory.available=-1", 0, "neither"},
		{"memory.available=", 0, "neither"}, {"pid.available=101%", 0, "between 0% and 100%"}, {"pid.available=NaN%", 0, "between"},
	} {
		got, err := ParseAmount(c.text)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.text, err, c.says)
			}
		} else if err != nil || got.Of(1000) != c.want {
			t.Errorf("%s: %d, want %d (%v)", c.text, got.Of(1000), c.want, err)
		}
	}
}
