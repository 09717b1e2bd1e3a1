package report

import "testing"

func TestCalls(t *testing.T) {
	before := Calls{"Version": 1, "Status": 4}
	made := Calls{"Version": 3, "Status": 4, "GetContainerEvents": 1}.Since(before)
	if got, want := made.String(), "GetContainerEvents 1, Version 2"; got != want || made.Total() != 3 {
		t.Errorf("made %s (%d), want %s", got, made.Total(), want)
	}
	if got := (Calls{}).String(); got != "none" {
		t.Errorf("no calls are %q", got)
	}
}
