// Command stamp is the program in the containers of the tests. Its arguments are verbs, carried out
// one after the other; after the last one it exits 0:
//
//	print TEXT         a line on standard output
//	count N DURATION   N lines "line 1", "line 2" and so on, so far apart
//	append FILE        one line "unix-nanoseconds hostname" at the file's end, written at once
//	write FILE TEXT    the file with this line
//	cat FILE           the file on standard output; exits 1 when it is not there
//	show FILE          the same where the file is there, else nothing
//	env NAME           the variable's value on standard output
//	exists FILE        exits 1 when the file is not there
//	wait FILE          returns when the file is there
//	ready DURATION     from then on GET /ready is 200, 503 before; without it always 200
//	serve ADDRESS      serves HTTP from now on: / tells the host name, /ready as above
//	unready FILE       while the file is there, GET /ready is 503
//	health ADDRESS     serves the gRPC health service from now on, for the service
//	                   stamp and as a whole, with what /ready says
//	swap PATH TARGET   returns never: PATH is a directory, then a link to TARGET, then
//	                   a directory again, as fast as it can be
//	mount DIR          a tmpfs over the directory
//	sleep DURATION
//	alloc MIB          touches that much memory and keeps it
//	ignore             from now on a signal does nothing but a line
//	term CODE          from now on a signal exits with CODE, not with 0
//	crash FILE CODE    exits with CODE if the file is not there yet, and makes it
//	exit CODE
//	forever            returns never
//
// The signals are SIGTERM, SIGINT, SIGQUIT and SIGUSR1.
package main

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// A run is one execution of the program.
type run struct {
	args    []string
	onTerm  atomic.Int64 // exit code; -1 ignores the signal
	readyAt atomic.Int64 // unix nanoseconds
	unready atomic.Value // path
	memory  [][]byte
}

func main() {
	r := &run{args: os.Args[1:]}
	r.unready.Store("")
	term := make(chan os.Signal, 1)
	names := map[os.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT", syscall.SIGUSR1: "SIGUSR1"}
	signal.Notify(term, slices.Collect(maps.Keys(names))...)
	go func() {
		for s := range term {
			code := r.onTerm.Load()
			fmt.Println(names[s], time.Now().UnixNano())
			if code >= 0 {
				os.Exit(int(code))
			}
		}
	}()
	fmt.Println("started", time.Now().UnixNano())
	for len(r.args) > 0 {
		r.do(r.word())
	}
}

func (r *run) word() string {
	if len(r.args) == 0 {
		fail("a verb lacks its argument")
	}
	w := r.args[0]
	r.args = r.args[1:]
	return w
}

func (r *run) number() int {
	n, err := strconv.Atoi(r.word())
	check(err)
	return n
}

func (r *run) duration() time.Duration {
	d, err := time.ParseDuration(r.word())
	check(err)
	return d
}

func (r *run) do(verb string) {
	switch verb {
	case "print":
		fmt.Println(r.word())
	case "count":
		n, pause := r.number(), r.duration()
		for i := range n {
			fmt.Println("line", i+1)
			time.Sleep(pause)
		}
	case "append":
		host, err := os.Hostname()
		check(err)
		f, err := os.OpenFile(r.word(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		check(err)
		_, err = fmt.Fprintln(f, time.Now().UnixNano(), host)
		check(err)
		check(f.Close())
	case "write":
		name := r.word()
		check(os.WriteFile(name, []byte(r.word()+"\n"), 0o644))
	case "cat":
		text, err := os.ReadFile(r.word())
		check(err)
		_, err = os.Stdout.Write(text)
		check(err)
	case "show":
		if text, err := os.ReadFile(r.word()); err == nil {
			_, err = os.Stdout.Write(text)
			check(err)
		}
	case "swap":
		swap(r.word(), r.word())
	case "mount":
		check(syscall.Mount("tmpfs", r.word(), "tmpfs", 0, ""))
	case "env":
		fmt.Println(os.Getenv(r.word()))
	case "exists":
		_, err := os.Stat(r.word())
		check(err)
	case "wait":
		for name := r.word(); !exists(name); {
			time.Sleep(10 * time.Millisecond)
		}
	case "ready":
		r.readyAt.Store(time.Now().Add(r.duration()).UnixNano())
	case "unready":
		r.unready.Store(r.word())
	case "serve":
		r.serve(r.word())
	case "health":
		r.health(r.word())
	case "sleep":
		time.Sleep(r.duration())
	case "alloc":
		b := make([]byte, r.number()<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		r.memory = append(r.memory, b)
	case "ignore":
		r.onTerm.Store(-1)
	case "term":
		r.onTerm.Store(int64(r.number()))
	case "crash":
		name, code := r.word(), r.number()
		if !exists(name) {
			check(os.WriteFile(name, nil, 0o644))
			os.Exit(code)
		}
	case "exit":
		os.Exit(r.number())
	case "forever":
		select {}
	default:
		fail("unknown verb " + verb)
	}
}

func (r *run) serve(address string) {
	l, err := net.Listen("tcp", address)
	check(err)
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		host, _ := os.Hostname()
		fmt.Fprintln(w, host)
	})
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if !r.isReady() {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	go func() { check(http.Serve(l, mux)) }()
}

func (r *run) isReady() bool {
	return time.Now().UnixNano() >= r.readyAt.Load() && !exists(r.unready.Load().(string))
}

// health serves grpc.health.v1.Health/Check: HTTP/2, one message in a frame of
// five bytes, and the call's status in the trailer.
func (r *run) health(address string) {
	l, err := net.Listen("tcp", address)
	check(err)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /grpc.health.v1.Health/Check", func(w http.ResponseWriter, q *http.Request) {
		asked, _ := io.ReadAll(q.Body)
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		// Empty, or field 1 with the service's name.
		if len(asked) > 7 && string(asked[7:]) != "stamp" {
			w.Header().Set("Grpc-Status", "5") // not found
			return
		}
		state := byte(2) // not serving
		if r.isReady() {
			state = 1
		}
		_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, state})
		w.Header().Set("Grpc-Status", "0")
	})
	s := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	go func() { check(s.Serve(l)) }()
}

// swap replaces a directory by a link and back, forever; it moves aside anything that others put in
// its place.
func swap(path, target string) {
	dir, link := path+".dir", path+".link"
	for n := 0; ; n++ {
		_, _ = os.Mkdir(dir, 0o777), os.Symlink(target, link) // mostly they exist
		for _, it := range []string{dir, link} {
			if os.Rename(it, path) != nil || os.Rename(path, it) != nil {
				_ = os.Rename(path, fmt.Sprint(path, ".", n))
			}
		}
	}
}

func exists(name string) bool {
	if name == "" {
		return false
	}
	_, err := os.Stat(name)
	return err == nil
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(msg string) {
	fmt.Fprintln(os.Stderr, "stamp:", msg)
	os.Exit(1)
}
