package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	keysPage   = 5000
	valuesPage = 200
	// messageLimit limits one answer, in bytes; a value within ValueLimit fits.
	messageLimit = ValueLimit + 6<<20
	// passwordLimit limits the size of a password file.
	passwordLimit = 64 << 10
)

// member is one connection to one member of the cluster, for one session.
type member struct {
	endpoint
	*Source
	conn  *grpc.ClientConn
	trace *connTrace
	token string
}

// dial prepares a connection. The first request makes it.
func (s *Source) dial(e endpoint, answered bool) (*member, error) {
	m := &member{endpoint: e, Source: s, trace: &connTrace{secure: e.secure, answered: answered}}
	creds := insecure.NewCredentials()
	if e.secure {
		config, err := s.tls()
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(config)
	}
	dialer := &net.Dialer{Timeout: 3 * time.Second}
	conn, err := grpc.NewClient("passthrough:///"+e.address,
		grpc.WithTransportCredentials(&tracedCreds{creds, m.trace}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, "tcp", address)
			m.trace.note(err)
			return c, err
		}),
		grpc.WithNoProxy(),
		grpc.WithUserAgent(s.cfg.UserAgent),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageLimit)),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, errors.New("not a valid address")
	}
	m.conn = conn
	return m, nil
}

func (m *member) close() { _ = m.conn.Close() } // fails only if it is closed already

// tls reads the files of certificates and keys again (F72).
func (s *Source) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.cfg.CAFile != "" {
		text, err := os.ReadFile(s.cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the CA certificates: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s holds no CA certificate", s.cfg.CAFile)
		}
	}
	if s.cfg.CertFile != "" {
		cert, err := os.ReadFile(s.cfg.CertFile)
		key := cert
		if err == nil && s.cfg.KeyFile != s.cfg.CertFile { // a file with both is read once, since it may be replaced meanwhile
			key, err = os.ReadFile(s.cfg.KeyFile)
		}
		var pair tls.Certificate
		if err == nil {
			pair, err = tls.X509KeyPair(cert, key)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// login gets the token for the following requests, if a user is configured.
func (m *member) login(ctx context.Context) error {
	user, password := m.user, m.password
	if m.cfg.Username != "" {
		user = m.cfg.Username
		text, err := readPassword(m.cfg.PasswordFile)
		if err != nil {
			return err
		}
		password = text
	}
	if user == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.with(ctx), m.cfg.Timeout)
	defer cancel()
	answer, err := etcdserverpb.NewAuthClient(m.conn).Authenticate(ctx, &etcdserverpb.AuthenticateRequest{Name: user, Password: password})
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled):
		return nil // as etcd's clients do: without authentication, every user may read
	case err != nil:
		return m.explain(err)
	}
	m.token = answer.GetToken()
	return nil
}

func readPassword(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("cannot read the password: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, passwordLimit))
	if err != nil {
		return "", fmt.Errorf("cannot read the password: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("the password file %s is empty", file)
	}
	return password, nil
}

// with returns ctx with the metadata of every request: the token of the user, and the requirement that the
// member has a leader.
func (m *member) with(ctx context.Context) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
	if m.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, m.token)
	}
	return ctx
}

// read reads a range of keys with a linearizable request. Callers convert its error with explain.
func (m *member) read(ctx context.Context, q *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	ctx, cancel := context.WithTimeout(m.with(ctx), m.cfg.Timeout)
	defer cancel()
	answer, err := etcdserverpb.NewKVClient(m.conn).Range(ctx, q)
	m.trace.answered = m.trace.answered || err == nil
	return answer, err
}

// keys lists the keys of [from, end) at a revision, page by page; 0 is the newest revision.
func (m *member) keys(ctx context.Context, from, end string, revision int64) (listing, error) {
	l := listing{revision: revision}
	for {
		page, err := m.read(ctx, &etcdserverpb.RangeRequest{
			Key: []byte(from), RangeEnd: []byte(end), Limit: keysPage, Revision: l.revision, KeysOnly: true,
		})
		if err != nil {
			return listing{}, m.explain(err)
		}
		h := page.GetHeader()
		if l.cluster == 0 {
			l.cluster = h.GetClusterId()
		}
		if l.revision == 0 {
			l.revision = h.GetRevision()
		}
		if h.GetClusterId() != l.cluster || l.revision <= 0 {
			return listing{}, errConfused
		}
		for _, kv := range page.Kvs {
			key := string(kv.Key)
			if key < from || key >= end {
				return listing{}, errConfused
			}
			l.keys = append(l.keys, listed{key, kv.ModRevision})
			from = key + "\x00"
		}
		switch {
		case len(l.keys) > mostKeys:
			return listing{}, errTooMuch
		case !page.More:
			return l, nil
		}
		if len(page.Kvs) == 0 {
			return listing{}, errConfused
		}
	}
}

// values reads the values of keys of l at the revision of l, and calls take for each. want has the indexes
// of the keys, sorted.
func (m *member) values(ctx context.Context, l listing, want []int, take func(change)) error {
	for len(want) > 0 {
		n := 1 // one request reads consecutive keys
		for n < len(want) && n < valuesPage && want[n] == want[n-1]+1 {
			n++
		}
		if err := m.run(ctx, l.revision, l.keys[want[0]:want[n-1]+1], take); err != nil {
			return err
		}
		want = want[n:]
	}
	return nil
}

// run reads the values of consecutive keys. It halves a range that does not fit into one answer.
func (m *member) run(ctx context.Context, revision int64, keys []listed, take func(change)) error {
	answer, err := m.read(ctx, &etcdserverpb.RangeRequest{
		Key: []byte(keys[0].key), RangeEnd: []byte(keys[len(keys)-1].key + "\x00"), Revision: revision,
	})
	switch {
	case status.Code(err) == codes.ResourceExhausted && len(keys) > 1:
		half := len(keys) / 2
		if err := m.run(ctx, revision, keys[:half], take); err != nil {
			return err
		}
		return m.run(ctx, revision, keys[half:], take)
	case status.Code(err) == codes.ResourceExhausted && !isServers(err):
		take(change{key: keys[0].key, modified: keys[0].modified, tooLarge: true})
		return nil
	case err != nil:
		return m.explain(err)
	case len(answer.Kvs) != len(keys):
		return errConfused
	}
	for i, kv := range answer.Kvs {
		if string(kv.Key) != keys[i].key || kv.ModRevision != keys[i].modified {
			return errConfused
		}
		take(change{key: keys[i].key, modified: kv.ModRevision, value: kv.Value})
	}
	return nil
}

// watcher is one running watch.
type watcher struct {
	*member
	stream etcdserverpb.Watch_WatchClient
	cancel context.CancelFunc
}

// watch begins a watch of [from, end) at revision.
func (m *member) watch(ctx context.Context, from, end string, revision int64) (*watcher, error) {
	ctx, cancel := context.WithCancel(m.with(ctx))
	slow := time.AfterFunc(m.cfg.Timeout, cancel) // limits only the wait for the first answer
	defer slow.Stop()
	w := &watcher{member: m, cancel: cancel}
	err := func() error {
		var err error
		if w.stream, err = etcdserverpb.NewWatchClient(m.conn).Watch(ctx); err != nil {
			return m.explain(err)
		}
		request := &etcdserverpb.WatchCreateRequest{
			Key: []byte(from), RangeEnd: []byte(end), StartRevision: revision, ProgressNotify: true, Fragment: true,
		}
		// An error of Send is io.EOF; Recv returns the reason.
		_ = w.stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: request}})
		answer, err := w.receive()
		if err == nil && !answer.Created {
			err = errConfused
		}
		return err
	}()
	if err != nil {
		cancel()
		return nil, err
	}
	return w, nil
}

func (w *watcher) close() { w.cancel() }

// next waits for the next batch of events, and joins the parts of a batch. An empty batch is a progress
// notification: the header has the member's revision.
func (w *watcher) next() (*etcdserverpb.ResponseHeader, []*mvccpb.Event, error) {
	var batch []*mvccpb.Event
	size := 0
	for {
		answer, err := w.receive()
		if err != nil {
			return nil, nil, err
		}
		for _, e := range answer.Events {
			size += len(e.GetKv().GetKey()) + len(e.GetKv().GetValue())
		}
		batch = append(batch, answer.Events...)
		switch {
		case size > 4*messageLimit:
			return nil, nil, errors.New("too many changes at once; listing all keys again")
		case !answer.Fragment:
			return answer.GetHeader(), batch, nil
		}
	}
}

// receive waits for one answer. If the answer ends the watch, it returns the reason as an error.
func (w *watcher) receive() (*etcdserverpb.WatchResponse, error) {
	answer, err := w.stream.Recv()
	switch {
	case err != nil:
		return nil, w.explain(err)
	case answer.CompactRevision != 0:
		return nil, errCompacted
	case answer.Canceled:
		return nil, w.refused(answer.CancelReason)
	}
	return answer, nil
}
