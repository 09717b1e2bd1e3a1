package pod

import "strings"

// Expand replaces each $(NAME) of text by vars[NAME] (C-1.38.1). "$$" stands
// for one "$" and ends a reference's meaning, so that "$$(NAME)" is the text
// "$(NAME)". A name that vars does not have, a reference without its closing
// parenthesis and every other "$" stay as they are written.
func Expand(text string, vars map[string]string) string {
	var b strings.Builder
	for {
		at := strings.IndexByte(text, '$')
		if at < 0 || at == len(text)-1 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:at])
		text = text[at:]
		end := strings.IndexByte(text, ')')
		switch {
		case text[1] == '$':
			b.WriteByte('$')
			text = text[2:]
		case text[1] == '(' && end > 0:
			if value, ok := vars[text[2:end]]; ok {
				b.WriteString(value)
			} else {
				b.WriteString(text[:end+1])
			}
			text = text[end+1:]
		case text[1] == '(':
			// Without a ")" the two characters are text; what follows may still
			// hold an escape.
			b.WriteString(text[:2])
			text = text[2:]
		default:
			b.WriteString(text[:2])
			text = text[2:]
		}
	}
}

// ExpandAll is Expand for every text of a list; nil stays nil.
func ExpandAll(texts []string, vars map[string]string) []string {
	if texts == nil {
		return nil
	}
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = Expand(t, vars)
	}
	return out
}
