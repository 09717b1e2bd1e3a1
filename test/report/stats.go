package report

import (
	"math/rand/v2"
	"slices"
)

// Quantile returns the q-quantile, interpolated between two samples; 0 without samples.
func Quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(samples))
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 == len(s) {
		return s[i]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}

// RatioCI is the 95 % bootstrap interval of the ratio of two medians. The same samples give
// the same interval.
func RatioCI(a, b []float64) [2]float64 {
	if len(a) == 0 || len(b) == 0 {
		return [2]float64{}
	}
	const resamples = 2000
	r := rand.New(rand.NewPCG(1, 1))
	pick := func(from []float64) float64 {
		s := make([]float64, len(from))
		for i := range s {
			s[i] = from[r.IntN(len(from))]
		}
		return Quantile(s, 0.5)
	}
	ratios := make([]float64, resamples)
	for i := range ratios {
		ratios[i] = pick(a) / pick(b)
	}
	return [2]float64{Quantile(ratios, 0.025), Quantile(ratios, 0.975)}
}
