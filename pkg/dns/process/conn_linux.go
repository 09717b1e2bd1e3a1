package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/bootid"
	"github.com/nodectl/nodectl/pkg/dns/server"
)

// conn is the agent's connection to the process.
type conn struct {
	control *net.UnixConn
	watched *net.UnixConn // transfers no data; it ends with the process
	ended   chan struct{}

	watching sync.WaitGroup
	pid      int
	handle   *os.Process   // a pidfd, opened before the process was identified
	sent     *server.State // the last state that this agent sent; nil: the state of the process is unknown
	number   uint64        // of that state in the process; 0: the next state is sent as a whole
	outdated bool          // the process runs another program than this agent
	known    bool          // the process had names when it was identified
	nameless bool          // the process has no names from an earlier agent
	dir      string        // of the control socket
	missed   int           // consecutive answers that did not come in time
	lost     bool          // an old answer may still come, so the next request needs another control connection
	limit    time.Duration // of one answer
}

// watch closes ended once the process has ended.
func (c *conn) watch() {
	defer close(c.ended)
	_, _ = c.watched.Read(make([]byte, 1))
}

// close closes the connections; the process continues.
func (c *conn) close() {
	for _, one := range []*net.UnixConn{c.control, c.watched} {
		if one != nil {
			_ = one.Close()
		}
	}
	c.watching.Wait()
	if c.handle != nil {
		_ = c.handle.Release()
	}
}

// collect kills a process that has closed its connections, if it still runs. If the process is a
// child of this agent, collect also reaps it.
func (c *conn) collect() {
	if c.handle != nil {
		_ = c.handle.Kill()
		_, _ = c.handle.Wait()
	}
}

// call sends one request and reads its answer.
func (c *conn) call(q request) (Status, error) {
	frame, err := encode(q)
	if err != nil {
		return Status{}, err
	}
	if err := c.ready(); err != nil {
		return Status{}, err
	}
	_ = c.control.SetDeadline(time.Now().Add(c.limitOf(len(frame))))
	c.lost = true
	if _, err := c.control.Write(frame); err != nil {
		return Status{}, err
	}
	var a response
	if err := read(c.control, &a); err != nil {
		return Status{}, err
	}
	c.lost, c.missed = false, 0
	switch {
	case a.Rejected:
		return Status{}, fmt.Errorf("%w: %s", errRejected, a.Error)
	case a.Error != "":
		return Status{}, errors.New(a.Error)
	}
	if a.Status == nil {
		return Status{}, errors.New("DNS server answered without a status")
	}
	return *a.Status, nil
}

// errRejected is the error of a change that the process has not applied. It needs the whole state.
var errRejected = errors.New("DNS server rejects the change")

// send sends a state: its difference from the last one if the process has that one, else all of it.
// After a failure, the process may have either state, so the next state is sent as a whole.
func (c *conn) send(newest *server.State, log *slog.Logger) error {
	last, number := c.sent, c.number
	c.sent, c.number = nil, 0
	if number > 0 {
		if d, ok := server.Difference(last, newest); ok {
			now, err := c.call(request{Op: opChange, Change: &change{changeFormat, number, d}})
			if err == nil {
				log.Debug("Changed the records of the DNS server", "pid", c.pid, "records", d.Records.Len(), "number", now.Number)
				c.sent, c.number = newest, now.Number
				return nil
			}
			if !errors.Is(err, errRejected) {
				return err
			}
			log.Warn("Sending the DNS server all Services again", "pid", c.pid, "error", err)
		}
	}
	now, err := c.call(request{Op: opState, State: newest})
	if err != nil {
		return err
	}
	log.Debug("Sent the DNS server all Services", "pid", c.pid, "services", len(newest.Services), "number", now.Number)
	c.sent = newest
	if now.Format == changeFormat {
		c.number = now.Number
	}
	return nil
}

// checkNumber reports whether the process has another state than the one that this agent sent. The next
// state is then sent as a whole.
func (c *conn) checkNumber(now Status) (differs bool) {
	if c.number == 0 || now.Number == c.number {
		return false
	}
	c.sent, c.number = nil, 0
	return true
}

// limitOf returns the time limit of a request of this size. The process needs time to decode the
// state, and to make a zone.
func (c *conn) limitOf(size int) time.Duration {
	return c.limit + time.Duration(size)*time.Second/(1<<20)
}

// ready opens another control connection to the same process if the current one is lost.
func (c *conn) ready() error {
	if !c.lost {
		return nil
	}
	dir, err := os.Open(c.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	d := net.Dialer{Timeout: c.limit}
	one, err := d.Dial("unix", shortPath(dir))
	if err != nil {
		return err
	}
	_ = c.control.Close()
	c.control = one.(*net.UnixConn)
	pid, _, err := c.sender()
	if err == nil && pid != c.pid {
		err = fmt.Errorf("process %d answers instead of the DNS server, process %d", pid, c.pid)
	}
	c.lost = err != nil
	return err
}

func (c *conn) status() (Status, error) { return c.call(request{Op: opStatus}) }

// identify sets the process at the other end: the kernel names the sender of an answer. Its ID could
// pass to another process before identify opens a handle. So identify asks again after that: a second
// answer of the same process shows that the handle is the right one.
func (c *conn) identify() error {
	pid, known, err := c.sender()
	if err != nil {
		return err
	}
	handle, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	again, _, err := c.sender()
	if err != nil || again != pid {
		_ = handle.Release()
		return errors.Join(errors.New("DNS server was replaced meanwhile"), err)
	}
	c.pid, c.handle, c.known = pid, handle, known
	return nil
}

// sender asks for the status, and returns the process that answered and whether it has names.
func (c *conn) sender() (pid int, known bool, err error) {
	raw, err := c.control.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	set := func(on int) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, on) }), err)
	}
	if err := set(1); err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, set(0)) }()
	_ = c.control.SetDeadline(time.Now().Add(c.limit))
	if err := write(c.control, request{Op: opStatus}); err != nil {
		return 0, false, err
	}
	// The credentials come with the first byte.
	first, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, _, _, err := c.control.ReadMsgUnix(first, oob)
	if err != nil || n != 1 {
		return 0, false, errors.Join(errors.New("no answer"), err)
	}
	var a response
	if err := read(&prefixed{first, c.control}, &a); err != nil {
		return 0, false, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) == 0 {
		return 0, false, errors.Join(errors.New("the kernel does not name the DNS server's process"), err)
	}
	cred, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return 0, false, err
	}
	if cred.Pid <= 0 {
		return 0, false, errors.New("the DNS server is in another PID namespace")
	}
	return int(cred.Pid), a.Status != nil && a.Status.Known, nil
}

// prefixed is a reader that returns already read bytes before the rest.
type prefixed struct {
	first []byte
	rest  *net.UnixConn
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.first) > 0 {
		n := copy(b, p.first)
		p.first = p.first[n:]
		return n, nil
	}
	return p.rest.Read(b)
}

// isProgram reports whether the process runs this program.
func (c *conn) isProgram(path string) bool {
	own, err := fileAt(path)
	its, err2 := fileAt(fmt.Sprintf("/proc/%d/exe", c.pid))
	return err == nil && err2 == nil && own == its
}

// kill kills the process and waits for its end.
func (c *conn) kill() {
	if c.handle == nil {
		return
	}
	_ = c.handle.Kill()
	c.waitEnd(endLimit)
}

// waitEnd waits until the process has ended.
func (c *conn) waitEnd(limit time.Duration) bool {
	select {
	case <-c.ended:
		c.collect()
		return true
	case <-time.After(limit):
		return false
	}
}

// sockets gets the sockets of the process, and checks that they are bound to this address.
func (c *conn) sockets(address netip.Addr) (fds []int, err error) {
	if err := c.ready(); err != nil {
		return nil, err
	}
	_ = c.control.SetDeadline(time.Now().Add(c.limit))
	if err := write(c.control, request{Op: opSockets}); err != nil {
		return nil, err
	}
	var a response
	if err := read(c.control, &a); err != nil {
		return nil, err
	}
	oob := make([]byte, unix.CmsgSpace(4*2))
	_, oobn, _, _, err := c.control.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, err
	}
	for i := range messages {
		more, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		fds = append(fds, more...)
	}
	if len(fds) != 2 {
		closeAll(fds)
		return nil, fmt.Errorf("DNS server has sent %d sockets, not 2", len(fds))
	}
	to := netip.AddrPortFrom(address, 53)
	for i, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
		unix.CloseOnExec(fds[i])
		if err := checkBound(fds[i], kind, to); err != nil {
			closeAll(fds)
			return nil, err
		}
	}
	return fds, nil
}

// adopt connects to the process of a directory, or returns nil if none runs. It kills all other
// processes in the record: they do not answer, or an agent died while it replaced them.
func adopt(dir string) (*conn, error) {
	r, recorded := load(dir)
	c, err := dial(context.Background(), dir, callLimit)
	if err == nil {
		if err = c.identify(); err != nil {
			c.close()
			c = nil
		}
	}
	if err != nil && !recorded && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("connect to the running DNS server: %w", err)
	}
	for _, p := range r.Processes {
		if c != nil && p.PID == c.pid {
			continue
		}
		if err := p.end(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// fileID identifies a file by device and inode.
type fileID struct{ Dev, Ino uint64 }

func fileAt(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, err
	}
	return fileID{st.Dev, st.Ino}, nil
}

// record identifies the process for the next agent. It is valid until the machine reboots.
type record struct {
	Boot      string       `json:"boot"`
	Processes []started    `json:"processes,omitempty"`
	Addresses []netip.Addr `json:"addresses"` // added to the loopback interface
}

// started identifies a process by its ID and its start.
type started struct {
	PID     int    `json:"pid"`
	At      string `json:"at"` // in clock ticks since the machine booted
	Program fileID `json:"program"`
}

func recordFile(dir string) string { return filepath.Join(dir, "dns.json") }

// save records processes. The ID of an own child is certain until this agent reaps it. The ID of
// another process may belong to a third one by now; the recorded one has then ended.
func save(cfg Config, pids ...int) error {
	boot, err := bootid.Read()
	if err != nil {
		return err
	}
	r := record{Boot: boot, Addresses: []netip.Addr{cfg.Address}}
	for _, pid := range pids {
		at, err := startOf(pid)
		if err != nil {
			return err
		}
		program, _ := fileAt(fmt.Sprintf("/proc/%d/exe", pid)) // on an error, the start time still identifies the process
		r.Processes = append(r.Processes, started{pid, at, program})
	}
	js, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(recordFile(cfg.Dir), js, atomicfile.Options{Temp: ".tmp"})
}

// load returns the record of this boot; ok is false if there is none.
func load(dir string) (r record, ok bool) {
	js, err := os.ReadFile(recordFile(dir))
	if err != nil || json.Unmarshal(js, &r) != nil {
		return record{}, false
	}
	boot, err := bootid.Read()
	return r, err == nil && r.Boot == boot
}

// forget removes the files of a process that has ended.
func forget(dir string) error {
	var errs []error
	for _, name := range []string{recordFile(dir), filepath.Join(dir, socketName)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// startOf returns the start time of a process, which identifies it together with its ID.
func startOf(pid int) (string, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	// The name, in parentheses, may contain any character. The start time is the 20th field after
	// it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("read the start of process %d: %d fields", pid, len(fields))
	}
	return fields[19], nil
}

// end kills a recorded process, if it still runs, and waits for its end.
func (p started) end() error {
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	defer func() { _ = handle.Release() }()
	if !p.runs() {
		return nil
	}
	if err := handle.Kill(); err != nil {
		return nil //nolint:nilerr // it has ended in between
	}
	for deadline := time.Now().Add(endLimit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if !p.runs() {
			return nil
		}
	}
	return fmt.Errorf("kill the DNS server, process %d: it does not end", p.PID)
}

// runs reports whether the process with the ID is the recorded one and has not ended.
func (p started) runs() bool {
	if p.PID <= 0 {
		return false
	}
	if at, err := startOf(p.PID); err != nil || at != p.At || isZombie(p.PID) {
		return false
	}
	program, err := fileAt(fmt.Sprintf("/proc/%d/exe", p.PID))
	return err != nil || p.Program == (fileID{}) || program == p.Program
}

// isZombie reports whether a process has ended and its parent has not reaped it.
func isZombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	after := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return len(after) > 0 && after[0] == "Z"
}
