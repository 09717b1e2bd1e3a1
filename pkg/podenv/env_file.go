package podenv

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// parseEnvFile returns the value of key in a file of NAME='value' lines (C-1.38.4), ""
// when it has none. A value is literal text in single quotes, over several lines if
// need be; empty lines and lines that begin with # are ignored. A syntax error before
// the key is an error, which names the line and not its content.
func parseEnvFile(text []byte, key string) (string, error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	number := 0
	next := func() bool { number++; return lines.Scan() }
	for next() {
		line := strings.TrimLeft(lines.Text(), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, assigns := strings.Cut(line, "=")
		switch {
		case !assigns:
			return "", fmt.Errorf("line %d: no =", number)
		case name == "":
			return "", fmt.Errorf("line %d: no name before the =", number)
		case strings.TrimRight(name, " \t") != name:
			return "", fmt.Errorf("line %d: white space before the =", number)
		case value != "" && (value[0] == ' ' || value[0] == '\t'): // an empty value to a shell, and a command behind it
			if name == key {
				return "", nil
			}
			continue
		case !strings.HasPrefix(value, "'"):
			return "", fmt.Errorf("line %d: the value is not in single quotes", number)
		}
		first := number
		inside, after, closed := strings.Cut(value[1:], "'")
		var whole strings.Builder
		for whole.WriteString(inside); !closed; whole.WriteString("\n" + inside) {
			if !next() {
				return "", fmt.Errorf("line %d: the quote is not closed", first)
			}
			inside, after, closed = strings.Cut(lines.Text(), "'")
		}
		if after = strings.TrimLeft(after, " \t"); after != "" && after[0] != '#' {
			return "", fmt.Errorf("line %d: text after the closing quote", number)
		}
		if name == key {
			return whole.String(), nil
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return "", fmt.Errorf("line %d: longer than %d bytes", number, bufio.MaxScanTokenSize)
	}
	return "", lines.Err()
}
