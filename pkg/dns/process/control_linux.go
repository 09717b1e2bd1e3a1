package process

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/nodectl/nodectl/pkg/dns/server"
)

// Operations of the control socket. A process may serve an agent of a later version, so operations
// keep their names and meanings.
const (
	opState   = "state"   // replaces the state of the server
	opChange  = "change"  // makes the next state from the current one
	opStatus  = "status"  // returns the status
	opSockets = "sockets" // returns the sockets of the DNS server
	opStop    = "stop"    // stops the process once open queries are answered
)

// maxFrame is the size of the largest message on the control socket.
const maxFrame = 64 << 20

// changeFormat is the version of the fields and the meaning of a change. A new version of the program
// has another format if it makes other records from the same Services, or another zone from the same
// records. An agent sends changes only to a process with its own format, and a process rejects
// changes of other formats. All versions read and send whole states.
const changeFormat = 1

// change makes the next state from the state that has the number After.
type change struct {
	Format int    `json:"format"`
	After  uint64 `json:"after"`
	server.Change
}

// request is one message to the process; response is its answer.
type request struct {
	Op     string        `json:"op"`
	State  *server.State `json:"state,omitempty"`
	Change *change       `json:"change,omitempty"`
}

type response struct {
	Error string `json:"error,omitempty"`
	// Rejected means that the process needs the whole state instead of a change. Its state is the
	// one before.
	Rejected bool    `json:"rejected,omitempty"`
	Status   *Status `json:"status,omitempty"`
	Sockets  int     `json:"sockets,omitempty"`
}

// Status is the status of the process.
type Status struct {
	// Known means that the process knows all Services of the node.
	Known  bool          `json:"known"`
	Counts server.Counts `json:"counts"`
	// Format is the changeFormat of the process, 0 if it reads only whole states. Number is the
	// number of its state: each state or change adds one to it, whichever agent has sent it. A
	// process without a state has the number 0.
	Format int    `json:"format,omitempty"`
	Number uint64 `json:"number,omitempty"`
}

// write writes one message after its length.
func write(to io.Writer, message any) error {
	frame, err := encode(message)
	if err != nil {
		return err
	}
	_, err = to.Write(frame)
	return err
}

// errTooLong is the error of a message that does not fit into a frame.
var errTooLong = errors.New("message does not fit into a frame")

// encode returns a frame: the length of a message, and the message.
func encode(message any) ([]byte, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	if len(body) > maxFrame {
		return nil, fmt.Errorf("%w: %d bytes, of at most %d", errTooLong, len(body), maxFrame)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...), nil
}

// read reads one message.
func read(from io.Reader, message any) error {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return errors.New("message is too long")
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(from, body); err != nil {
		return err
	}
	return json.Unmarshal(body, message)
}
