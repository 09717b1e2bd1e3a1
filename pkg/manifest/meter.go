package manifest

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// The limits of one document, in which an alias counts as its expansion, and of one file. A document or a
// file that exceeds a limit is one problem (F46).
const (
	maxBytes     = 10 << 20
	maxDepth     = 200
	maxNodes     = 100_000
	maxFileNodes = 300_000
	maxDocuments = 10_000
)

// splitHint is the hint of every limit of a document.
const splitHint = "split it into several documents"

// size is the size of a value, or the limit of a size.
type size struct{ nodes, bytes, height int }

// documentLimit has the limits of one document.
var documentLimit = size{nodes: maxNodes, bytes: maxBytes, height: maxDepth}

// exceeded names the limit that s exceeds, "" for none.
func (limit size) exceeded(s size) string {
	switch {
	case s.height > limit.height:
		return fmt.Sprintf("nested more than %d levels deep", maxDepth)
	case s.nodes > limit.nodes:
		return fmt.Sprintf("more than %d values after aliases are expanded", maxNodes)
	case s.bytes > limit.bytes:
		return fmt.Sprintf("more than %d MiB after aliases are expanded", maxBytes>>20)
	}
	return ""
}

// meter measures documents. An alias counts as its expansion, but meter does not expand it.
type meter struct {
	known map[*yaml.Node]size // the sizes of anchored nodes; a height of -1 says that measure has not finished
}

func (m *meter) measure(n *yaml.Node) (size, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Anchor != "" {
		if s, ok := m.known[n]; ok {
			if s.height < 0 {
				return s, fmt.Errorf("anchor %q is used in its own value", n.Anchor)
			}
			return s, nil
		}
		m.known[n] = size{height: -1}
	}
	s := size{nodes: 1, bytes: len(n.Value)}
	for _, c := range n.Content {
		in, err := m.measure(c)
		if err != nil {
			return s, err
		}
		s.nodes = min(s.nodes+in.nodes, 1<<40)
		s.bytes = min(s.bytes+in.bytes, 1<<40)
		s.height = max(s.height, in.height)
	}
	if len(n.Content) > 0 {
		s.height++
	}
	if n.Anchor != "" {
		m.known[n] = s
	}
	return s, nil
}

// over returns the node at which a measured document exceeds its limits: an alias or a value.
func (m *meter) over(n *yaml.Node) *yaml.Node {
	left := documentLimit
	for n.Kind != yaml.AliasNode {
		left.nodes--
		left.height--
		next := n
		for _, c := range n.Content {
			s, err := m.measure(c)
			if err != nil || left.exceeded(s) != "" {
				next = c
				break
			}
			left.nodes -= s.nodes
			left.bytes -= s.bytes
		}
		if next == n {
			break
		}
		n = next
	}
	return n
}
