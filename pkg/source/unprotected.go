package source

import (
	"errors"
	"net"
	"net/url"
)

// ErrUnprotected says that a source is rejected because other hosts on the network can read and
// change its content.
var ErrUnprotected = errors.New("http to another host is neither encrypted nor authenticated")

// Unprotected reports whether other hosts on the network can read and change the content of u: u is not
// https, and its host is not this one.
func IsUnprotected(u *url.URL) bool {
	host := u.Hostname()
	return u.Scheme != "https" && host != "localhost" && !net.ParseIP(host).IsLoopback()
}
