package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// kind is one kind of queries.
type kind struct {
	name  string
	query func(i int) (name string, of dnsmessage.Type)
}

// kinds are the queries that pods send. Each one asks for several names.
func kinds(services int) []kind {
	a := func(format string, n int) func(int) (string, dnsmessage.Type) {
		return func(i int) (string, dnsmessage.Type) { return fmt.Sprintf(format, i%n), dnsmessage.TypeA }
	}
	return []kind{
		{"address of a Service", a("web-%d.default.svc.cluster.local.", services)},
		{"A and AAAA in turn, as resolvers ask", func(i int) (string, dnsmessage.Type) {
			name := fmt.Sprintf("web-%d.default.svc.cluster.local.", i/2%services)
			if i%2 == 0 {
				return name, dnsmessage.TypeA
			}
			return name, dnsmessage.TypeAAAA
		}},
		{"five addresses of a headless Service", func(int) (string, dnsmessage.Type) { return "db.default.svc.cluster.local.", dnsmessage.TypeA }},
		{"a name that does not exist", a("www-%d.example.com.default.svc.cluster.local.", 100)},
		{"a name of others, kept", a("www-%d.example.com.", 20)},
		{"a name of others, asked", func(i int) (string, dnsmessage.Type) { return fmt.Sprintf("n%d.example.com.", i), dnsmessage.TypeA }},
	}
}

// pidOf returns the process that the agent's record names.
func pidOf(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "dns.json"))
	if err != nil {
		return 0, err
	}
	var r struct{ Processes []struct{ PID int } }
	if err := json.Unmarshal(text, &r); err != nil {
		return 0, err
	}
	if len(r.Processes) != 1 {
		return 0, fmt.Errorf("%d processes are recorded, not one", len(r.Processes))
	}
	return r.Processes[0].PID, nil
}

// cpuOf returns the CPU time of all threads of a process.
func cpuOf(pid int) (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("process %d has no threads: %w", pid, errors.Join(err))
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// patience is how long an answer is waited for.
const patience = 100 * time.Millisecond

// run sends queries at a fixed rate from one thread, which blocks in system calls: the scheduler of
// Go takes no part in the latencies.
func run(ctx context.Context, pid int, k kind, rate int, long time.Duration) (r result, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return r, err
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return r, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: address.As4(), Port: 53}); err != nil {
		return r, err
	}
	n := int(long.Seconds() * float64(rate))
	queries := make([][]byte, n)
	for i := range queries {
		if queries[i], err = pack(k, i); err != nil {
			return r, err
		}
	}
	for i := range min(n, rate) { // it warms up at full speed
		if _, err := ask(fd, queries[i]); err != nil {
			return r, err
		}
	}
	before, err := cpuOf(pid)
	if err != nil {
		return r, err
	}
	start := time.Now()
	for i, q := range queries {
		due := start.Add(time.Duration(i) * time.Second / time.Duration(rate))
		begun := due
		if early := time.Until(due); early > 0 {
			if ctx.Err() != nil {
				return r, context.Cause(ctx)
			}
			rest := unix.NsecToTimespec(early.Nanoseconds())
			_ = unix.Nanosleep(&rest, nil)
			begun = time.Now()
		}
		answered, err := ask(fd, q)
		if err != nil {
			return r, err
		}
		if !answered {
			r.lost++
			continue
		}
		r.latencies = append(r.latencies, time.Since(begun))
	}
	r.took = time.Since(start)
	after, err := cpuOf(pid)
	r.cpu = after - before
	return r, err
}

// ask sends a query and waits for its answer.
func ask(fd int, query []byte) (answered bool, err error) {
	if _, err := unix.Write(fd, query); err != nil {
		return false, err
	}
	buf := make([]byte, 1500)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, err
		}
		if n >= 2 && binary.BigEndian.Uint16(buf) == binary.BigEndian.Uint16(query) {
			return true, nil
		}
	}
}

// pack returns a query as glibc sends it.
func pack(k kind, i int) ([]byte, error) {
	name, of := k.query(i)
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: uint16(i), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: of, Class: dnsmessage.ClassINET}},
	}
	return m.Pack()
}

// serveOthers answers all queries with one address, as a name server of the node does.
func serveOthers() (netip.AddrPort, error) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 53)})
	if err != nil {
		return netip.AddrPort{}, err
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 300},
				Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}},
			}}
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteToUDPAddrPort(out, from)
			}
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort(), nil
}
