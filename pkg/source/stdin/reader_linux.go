package stdin

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// reader returns a reader of in whose reads end with ctx, and a function that releases it.
func reader(ctx context.Context, in io.Reader) (io.Reader, func(), error) {
	f, ok := in.(*os.File)
	if !ok {
		return &ctxReader{ctx: ctx, in: in}, func() {}, nil
	}
	wake, err := newAlarm(ctx)
	if err != nil {
		return nil, nil, err
	}
	return &watched{ctxReader: ctxReader{ctx: ctx, in: f}, file: f, wake: wake}, wake.close, nil
}

// watched reads a file. It waits for input before each read, so that ctx can end the wait.
type watched struct {
	ctxReader
	file *os.File
	wake *alarm
}

func (w *watched) Read(b []byte) (int, error) {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var polled error
	if err := conn.Control(func(fd uintptr) { polled = w.wake.wait(fd) }); err != nil {
		return 0, err
	}
	if polled != nil {
		return 0, polled
	}
	return w.ctxReader.Read(b)
}

// alarm is a descriptor that becomes readable when ctx is done.
type alarm struct {
	fd   int
	stop func() bool
	rang chan struct{} // capacity 0, closed after the alarm rang
}

func newAlarm(ctx context.Context) (*alarm, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	a := &alarm{fd: fd, rang: make(chan struct{})}
	a.stop = context.AfterFunc(ctx, func() {
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		close(a.rang)
	})
	return a, nil
}

// wait returns when fd can be read without waiting, or the alarm rings.
func (a *alarm) wait(fd uintptr) error {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(a.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (a *alarm) close() {
	if !a.stop() {
		<-a.rang
	}
	_ = unix.Close(a.fd)
}
