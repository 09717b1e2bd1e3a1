//go:build full && !race

package manifest

import "testing"

// smaller is how much smaller the largest documents of the tests are than those of people.
const smaller = 1

// TestF46_BombsOfTheLargestSize_AreRefusedInLittle is TestF46_BombsAreRefusedQuicklyAndInLittle for
// files as large as they may be.
//
// Shows: F46
func TestF46_BombsOfTheLargestSize_AreRefusedInLittle(t *testing.T) { bombsAreRefused(t) }

// TestF46_MistakesInTheLargestFile_CostNoMoreThanTheirNumber is
// TestF46_MistakesCostNoMoreThanTheirNumber for files as large as they may be.
//
// Shows: F46
func TestF46_MistakesInTheLargestFile_CostNoMoreThanTheirNumber(t *testing.T) { mistakesCostLittle(t) }
