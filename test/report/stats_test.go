package report

import "testing"

func TestQuantile(t *testing.T) {
	for _, tt := range []struct {
		samples []float64
		q, want float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.9, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{0, 10}, 0.9, 9},
		{[]float64{5, 1}, 1, 5},
	} {
		if got := Quantile(tt.samples, tt.q); got != tt.want {
			t.Errorf("Quantile(%v, %v) = %v, want %v", tt.samples, tt.q, got, tt.want)
		}
	}
}

func TestRatioCI(t *testing.T) {
	a, b := []float64{20, 22, 21, 23, 19}, []float64{10, 11, 9, 10, 12}
	ci := RatioCI(a, b)
	if value := Quantile(a, 0.5) / Quantile(b, 0.5); !(ci[0] < value && value < ci[1]) {
		t.Errorf("the interval %v does not hold the ratio %v", ci, value)
	}
	if again := RatioCI(a, b); again != ci {
		t.Errorf("the same samples give %v, then %v", ci, again)
	}
	if got := RatioCI(nil, b); got != [2]float64{} {
		t.Errorf("no samples give %v", got)
	}
}
