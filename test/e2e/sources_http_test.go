package e2e

// oftenAsked makes an agent poll its URLs without delay.
var oftenAsked = []string{"--http-check-frequency", "100ms"}
