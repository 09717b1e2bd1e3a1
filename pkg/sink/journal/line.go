package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// fullLine is one line of a journal.
type fullLine struct {
	Time   time.Time `json:"time"`
	Origin origin    `json:"origin"`
	Gone   bool      `json:"gone"`
	Pod    *v1.Pod   `json:"pod"`
}

type origin struct {
	Source   string `json:"source"`
	Location string `json:"location"`
	File     string `json:"file"`
	Line     int    `json:"line"`
}

// shortLine has the fields of a line that identify its pod.
type shortLine struct {
	Gone bool `json:"gone"`
	Pod  *struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	} `json:"pod"`
}

func (l shortLine) key() pod.Key {
	return pod.Key{Namespace: l.Pod.Metadata.Namespace, Name: l.Pod.Metadata.Name}
}

var errNoLine = errors.New("not a line of a journal")

// decodeLine reads the fields that identify the pod of a line.
func decodeLine(line []byte) (shortLine, error) {
	var l shortLine
	if json.Unmarshal(line, &l) != nil || l.Pod == nil || l.Pod.Metadata.Name == "" {
		return shortLine{}, errNoLine
	}
	return l, nil
}

// encode returns the line, with the newline at its end.
func encode(p *v1.Pod, o pod.Origin, gone bool, at time.Time) ([]byte, error) {
	line, err := json.Marshal(fullLine{Time: at.UTC(), Origin: origin(o), Gone: gone, Pod: p})
	return append(line, '\n'), err
}

// sumOf returns the checksum of a line's content, without the time.
func sumOf(line []byte) [sha256.Size]byte {
	_, content, _ := bytes.Cut(line, []byte(`,"origin":`))
	return sha256.Sum256(content)
}

// ending is how a journal ends.
type ending struct {
	size int64
	torn bool // its last line has no newline
}

// scan calls each with every complete line and its offset. The line is valid only during the call.
func scan(r io.Reader, each func(off int64, line []byte)) (ending, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	var end ending
	for {
		line, err := in.ReadBytes('\n')
		if err == nil {
			each(end.size, line)
		}
		end.size += int64(len(line))
		if errors.Is(err, io.EOF) {
			end.torn = len(line) > 0
			return end, nil
		}
		if err != nil {
			return end, err
		}
	}
}

// inOrder returns the keys of lines in the order of the lines in the file.
func inOrder(lines map[pod.Key]place) []pod.Key {
	return slices.SortedFunc(maps.Keys(lines), func(a, b pod.Key) int { return cmp.Compare(lines[a].off, lines[b].off) })
}
