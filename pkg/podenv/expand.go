package podenv

import (
	"fmt"
	"strings"
)

// The kernel's limits for a new program, in bytes: one argument or variable
// (MAX_ARG_STRLEN), and all of them (three quarters of the largest stack).
const (
	maxArgument  = 128<<10 - 1
	maxArguments = 6 << 20
)

// Expand replaces each $(NAME) of text by vars[NAME] (C-1.38.1). "$$" stands for one
// "$" and ends a reference's meaning, so that "$$(NAME)" is the text "$(NAME)". A name
// that vars does not have, a reference without its closing parenthesis and every other
// "$" stay as they are written. A result longer than the kernel's limit is an error,
// which does not contain it.
func Expand(text string, vars map[string]string) (string, error) {
	var b strings.Builder
	open := strings.LastIndexByte(text, ')') // after it no reference ends
	for b.Len() <= maxArgument {
		at := strings.IndexByte(text, '$')
		if at < 0 || at == len(text)-1 {
			b.WriteString(text)
			if b.Len() > maxArgument {
				break
			}
			return b.String(), nil
		}
		b.WriteString(text[:at])
		text, open = text[at:], open-at
		end := -1
		if text[1] == '(' && open > 0 {
			end = strings.IndexByte(text, ')')
		}
		n := 2
		switch {
		case text[1] == '$':
			b.WriteByte('$')
		case end > 0:
			n = end + 1
			value, ok := vars[text[2:end]]
			if !ok {
				value = text[:n]
			}
			b.WriteString(value)
		default:
			// Without a ")" the two characters are text; the rest may still contain an escape.
			b.WriteString(text[:2])
		}
		text, open = text[n:], open-n
	}
	return "", fmt.Errorf("longer than %d bytes after its variables are expanded", maxArgument)
}

// ExpandAll is Expand for every text of a list; nil stays nil.
func ExpandAll(texts []string, vars map[string]string) ([]string, error) {
	if texts == nil {
		return nil, nil
	}
	out := make([]string, len(texts))
	total := 0
	for i, t := range texts {
		var err error
		if out[i], err = Expand(t, vars); err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		if total += len(out[i]); total > maxArguments {
			return nil, fmt.Errorf("longer than %d bytes in total after their variables are expanded", maxArguments)
		}
	}
	return out, nil
}
