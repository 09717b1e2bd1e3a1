package cri

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const moment = "2026-01-02T03:04:05.678901234Z"

// numbered returns the lines from to to-1 of a log, and their text.
func numbered(from, to int) (log, text string) {
	var l, x strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&l, "%s stdout F line %d\n", moment, i)
		fmt.Fprintf(&x, "line %d\n", i)
	}
	return l.String(), x.String()
}

// Shows: C-1.26.11
func TestC_1_26_11_LastLinesOfALog(t *testing.T) {
	hundred, _ := numbered(0, 100)
	_, lastEighty := numbered(20, 100)
	long := strings.Repeat("y", 3000)
	for name, c := range map[string]struct{ log, want string }{
		"nothing":             {"", ""},
		"both streams":        {moment + " stdout F out\n" + moment + " stderr F err\n", "out\nerr\n"},
		"a line in pieces":    {moment + " stdout P one \n" + moment + " stdout P line \n" + moment + " stdout F only\n" + moment + " stdout F next\n", "one line only\nnext\n"},
		"it ended in a line":  {moment + " stdout F done\n" + moment + " stdout P and th\n", "done\nand th"},
		"tags":                {moment + " stdout P:x:y a\n" + moment + " stdout F:z b\n", "ab\n"},
		"empty lines":         {moment + " stdout F \n" + moment + " stdout F x\n" + moment + " stdout F \n", "\nx\n\n"},
		"blanks are kept":     {moment + " stdout F   two  words \n", "  two  words \n"},
		"another format":      {"just text\n", "just text\n"},
		"cut at the end":      {moment + " stdout F whole\n" + moment + " stdout F ha", "whole\nha"},
		"80 of 100 lines":     {hundred, lastEighty},
		"2048 of 3000 bytes":  {moment + " stdout F before\n" + moment + " stdout F " + long + "\n", long[:2047] + "\n"},
		"2048 bytes in lines": {moment + " stdout F " + long[:1500] + "\n" + moment + " stdout F " + long[:1500] + "\n", long[:546] + "\n" + long[:1500] + "\n"},
		"no line at all":      {long, long[:2048]},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, lastLines([]byte(c.log))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzLastLines(f *testing.F) {
	f.Add(moment + " stdout P one \n" + moment + " stdout F two\n")
	f.Add("\n\n a b c\n")
	f.Fuzz(func(t *testing.T, log string) {
		got := lastLines([]byte(log))
		if len(got) > maxTailBytes || strings.Count(got, "\n") > maxTailLines || len(got) > len(log) {
			t.Errorf("%d bytes, %d lines of %d", len(got), strings.Count(got, "\n"), len(log))
		}
	})
}
