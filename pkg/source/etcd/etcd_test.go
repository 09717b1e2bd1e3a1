package etcd

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

func parse(data []byte, file string) (source.File, []pod.Problem) {
	return sourcetest.Parse("etcd", "/pods")(data, file)
}

// reading returns a reader of /pods/ that has seen everything up to revision 1.
func reading(t testing.TB) *reader {
	t.Helper()
	s, err := New(Config{Endpoints: []string{"http://127.0.0.1"}, Prefix: "/pods", Parse: parse})
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(s, func(source.Snapshot, error) bool { return true })
	r.seen.cluster, r.seen.revision = 7, 1
	return r
}

func put(revision int64, key, value string) *mvccpb.Event {
	return &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: revision}}
}

func deleted(revision int64, key string) *mvccpb.Event {
	return &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}
}

// Shows: D1
func TestNewRefusesWhatCannotBeRead(t *testing.T) {
	one := []string{"http://127.0.0.1:1"}
	for want, c := range map[string]Config{
		"no endpoint": {Prefix: "/p"},
		"no prefix: every key of etcd would be read as a manifest":  {Endpoints: one},
		"an endpoint is not a URL":                                  {Prefix: "/p", Endpoints: []string{"http://u:hunter2@a%zz"}},
		"an endpoint is not an http or https URL":                   {Prefix: "/p", Endpoints: []string{"a:2379"}},
		"an endpoint is a URL without a host":                       {Prefix: "/p", Endpoints: []string{"http:///x"}},
		"endpoint 127.0.0.1:1: only scheme, host and port are used": {Prefix: "/p", Endpoints: []string{"http://u:hunter2@127.0.0.1:1/v3?token=hunter2"}},
		"a certificate needs its key, and a key its certificate":    {Prefix: "/p", Endpoints: []string{"https://a"}, CertFile: "x"},
		"a user needs a password file, and a password file a user":  {Prefix: "/p", Endpoints: one, Username: "u"},
		"certificates need an https endpoint":                       {Prefix: "/p", Endpoints: one, CAFile: "x"},
		// Others on the network could change the content (D1).
		"endpoint 10.0.0.1:1: http to another host is neither encrypted nor authenticated": {Prefix: "/p", Endpoints: []string{"https://a", "http://u:hunter2@10.0.0.1:1"}},
	} {
		if _, err := New(c); err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := New(Config{Prefix: "/p", Endpoints: []string{"http://10.0.0.1:1"}, Insecure: true}); err != nil {
		t.Errorf("where it is allowed: %v", err)
	}
}

func TestNameIsThePrefixForAnyMembers(t *testing.T) {
	for _, endpoints := range [][]string{{"http://127.0.0.1:1"}, {"https://u:p@b", "https://[::1]:4001/"}} {
		s, err := New(Config{Endpoints: endpoints, Prefix: "/pods/n1"})
		if err != nil {
			t.Fatal(err)
		}
		if s.Name() != "etcd:/pods/n1" {
			t.Errorf("name %q", s.Name())
		}
	}
	s, err := New(Config{Endpoints: []string{"https://u:p@b", "https://[::1]:4001/"}, Prefix: "p"})
	if err != nil {
		t.Fatal(err)
	}
	want := []endpoint{{"b:2379", true, true, "u", "p"}, {"[::1]:4001", true, true, "", ""}}
	if !slices.Equal(s.members, want) {
		t.Errorf("members %+v, want %+v", s.members, want)
	}
}

// A prefix is a directory: node n1 does not run the pods of n10.
func TestPrefixIsADirectory(t *testing.T) {
	for prefix, want := range map[string][2]string{
		"/nodes/n1": {"/nodes/n1/", "/nodes/n10"}, "/nodes/n1//": {"/nodes/n1/", "/nodes/n10"}, "/": {"/", "0"}, "p": {"p/", "p0"},
	} {
		s, err := New(Config{Endpoints: []string{"http://localhost"}, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]string{s.prefix, s.end}; got != want {
			t.Errorf("%q: the range is %q, want %q", prefix, got, want)
		}
	}
}

func TestKeysThatArePassedOver(t *testing.T) {
	for key, want := range map[string]string{
		"/pods/web": "", "/pods/web.yaml": "", "/pods/a/b/web": "", "/pods/a..b": "", "/pods/ü": "",
		"/pods/":             "the key names a directory",
		"/pods/a/":           "the key names a directory",
		"/pods/.web.yaml":    "hidden file",
		"/pods/a/.b/web":     "hidden directory",
		"/pods/.a/web":       "hidden directory",
		"/pods/web.yaml~":    "backup file",
		"/pods/web.yaml.bak": "backup file",
		"/pods/web.swp":      "backup file",
		"/pods/\xff":         "the key is not text",
		"/pods/a\nb":         "the key is not text",
	} {
		if got := whySkipped(key, "/pods/"); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
}

func TestSkippedKeysAreReportedAndNotRead(t *testing.T) {
	r := reading(t)
	r.apply(nil, []*mvccpb.Event{put(2, "/pods/web", "pod one x"), put(2, "/pods/.web", "]garbage["), put(2, "/pods/\xff", "")})
	var s source.Snapshot
	r.yield = func(got source.Snapshot, _ error) bool { s = got; return true }
	r.yieldSet()
	want := []pod.Problem{{File: `"/pods/\xff"`, Msg: "skipped: the key is not text"}, {File: "/pods/.web", Msg: "skipped: hidden file"}}
	if !slices.Equal(s.Skipped, want) {
		t.Errorf("skipped %+v, want %+v", s.Skipped, want)
	}
	if got := r.set.Files(); !slices.Equal(got, []string{"/pods/web"}) {
		t.Errorf("files %q", got)
	}
	r.apply(nil, []*mvccpb.Event{deleted(3, "/pods/.web"), deleted(3, "/pods/\xff")})
	r.yieldSet()
	if len(s.Skipped) != 0 {
		t.Errorf("still skipped: %+v", s.Skipped)
	}
}

// Shows: F71
func TestF71_OldAndRepeatedEventsChangeNothing(t *testing.T) {
	r := reading(t)
	r.apply(nil, []*mvccpb.Event{put(5, "/pods/a", "pod one x"), put(4, "/pods/b", "pod two x")})
	for name, batch := range map[string][]*mvccpb.Event{
		"repeated":         {put(5, "/pods/a", "pod one y")},
		"old":              {deleted(3, "/pods/a"), put(2, "/pods/c", "pod three x")},
		"without a key":    {{}, {Type: mvccpb.Event_DELETE}},
		"of another range": {put(9, "/podsx", "pod x x"), put(9, "/pods0", "pod x x"), deleted(9, "/pod")},
	} {
		r.apply(nil, batch)
		if got := r.set.Files(); !slices.Equal(got, []string{"/pods/a", "/pods/b"}) || r.seen.revision != 5 {
			t.Errorf("%s: files %q at revision %d", name, got, r.seen.revision)
		}
	}
	// Within one batch the newest revision of a key counts, in whatever order the events come.
	r.apply(nil, []*mvccpb.Event{deleted(7, "/pods/a"), put(6, "/pods/a", "pod one z"), deleted(6, "/pods/b"), put(8, "/pods/b", "pod two y")})
	if got := r.set.Files(); !slices.Equal(got, []string{"/pods/b"}) || r.seen.revision != 8 {
		t.Errorf("files %q at revision %d", got, r.seen.revision)
	}
	r.apply(&etcdserverpb.ResponseHeader{Revision: 20}, nil)
	if r.seen.revision != 20 {
		t.Errorf("after a progress notification the revision is %d", r.seen.revision)
	}
}

// Shows: F71
func TestF71_ListsThatContradict(t *testing.T) {
	seen := known{cluster: 7, revision: 10, keys: map[string]keyState{"a": {modified: 3}, "b": {modified: 8}}}
	for name, c := range map[string]struct {
		list listing
		want string
	}{
		"nothing happened":        {listing{7, 10, []listed{{"a", 3}, {"b", 8}}}, ""},
		"removed, changed, added": {listing{7, 14, []listed{{"b", 12}, {"c", 13}}}, ""},
		"all removed":             {listing{7, 14, nil}, ""},
		"another cluster":         {listing{8, 14, []listed{{"a", 3}, {"b", 8}}}, "the cluster's ID has changed"},
		"an older revision":       {listing{7, 9, []listed{{"a", 3}, {"b", 8}}}, "its revision is lower than before"},
		"restored and written to": {listing{7, 14, []listed{{"a", 3}, {"b", 6}}}, "its history differs from the one read before"},
		"a key never seen":        {listing{7, 14, []listed{{"a", 3}, {"b", 8}, {"c", 5}}}, "its history differs from the one read before"},
	} {
		if got := seen.contradicts(c.list); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := (&known{}).contradicts(listing{8, 1, nil}); got != "" {
		t.Errorf("the first list contradicts: %q", got)
	}
}

// Shows: F71
func TestF71_ADoubtfulListNeedsASecondOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := reading(t)
		r.seen.revision = 100
		r.seen.keys = map[string]keyState{"/pods/a": {modified: 3}, "/pods/b": {modified: 60}}
		judge := func(l listing) error { return r.confirm(t.Context(), nil, l, "why") }
		without := listing{7, 50, []listed{{"/pods/a", 3}}}
		for range 3 { // again at once is not later
			if judge(without) == nil {
				t.Fatal("the contradicting list was accepted at once")
			}
		}
		if pause := r.pause(time.Hour); pause != r.cfg.Confirm {
			t.Errorf("the second list comes after %v, want %v", pause, r.cfg.Confirm)
		}
		if pause := r.pause(time.Millisecond); pause > time.Millisecond {
			t.Errorf("other members are tried after %v", pause)
		}
		time.Sleep(r.cfg.Confirm)
		for name, l := range map[string]listing{
			"another cluster":                 {8, 50, []listed{{"/pods/a", 3}}},
			"an older one still":              {7, 49, []listed{{"/pods/a", 3}}},
			"a key more is missing":           {7, 51, nil},
			"a key it should have had before": {7, 51, []listed{{"/pods/a", 3}, {"/pods/c", 9}}},
		} {
			r := *r
			if err := r.confirm(t.Context(), nil, l, "why"); err == nil {
				t.Errorf("%s: accepted", name)
			}
			if r.unconfirmed.revision != l.revision || time.Since(r.unconfirmed.since) != 0 {
				t.Errorf("%s: the wait did not start again", name)
			}
		}
		if err := judge(listing{7, 55, []listed{{"/pods/a", 3}, {"/pods/c", 52}}}); err != nil {
			t.Errorf("a second list that goes on from the first: %v", err)
		}
	})
}

func TestBackOffGrowsToHalfAMinute(t *testing.T) {
	var d, all time.Duration
	for n := range 10 {
		if d = backoff.Next(d, firstRetry, lastRetry); n == 0 && d != firstRetry {
			t.Errorf("the first pause is %v", d)
		}
		all += d
	}
	if d != lastRetry || all < time.Minute {
		t.Errorf("after %v the pause is %v", all, d)
	}
}

// Shows: F70
func TestF70_NoMemberAnswers(t *testing.T) {
	const nobody = "127.0.0.1:1"
	s, err := New(Config{Endpoints: []string{"http://" + nobody}, Prefix: "/p", Parse: parse})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sourcetest.Listen(t, s).Error().Error(), nobody+": connection refused"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

func TestReasonsNameEveryMember(t *testing.T) {
	s := &Source{members: []endpoint{{address: "a:1"}, {address: "b:1"}, {address: "c:1"}}}
	for want, why := range map[string][]string{
		"a:1, b:1, c:1: timeout":       {"timeout", "timeout", "timeout"},
		"a:1: x; b:1, c:1: timeout":    {"x", "timeout", "timeout"},
		"a:1: timeout; b:1: x; c:1: y": {"timeout", "x", "y"},
	} {
		if got := s.reasons(why).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Shows: F72
func TestF72_MessagesHoldNoSecrets(t *testing.T) {
	secret := errors.New("token hunter2")
	for want, c := range map[string]struct{ cause, err error }{
		"permission denied":                                   {nil, rpctypes.ErrGRPCPermissionDenied},
		"permission denied: wrong user or password":           {nil, rpctypes.ErrGRPCAuthFailed},
		"permission denied: the member requires a user":       {nil, rpctypes.ErrGRPCUserEmpty},
		errNoLeader.Error():                                   {secret, rpctypes.ErrGRPCNoLeader},
		errCompacted.Error():                                  {nil, rpctypes.ErrGRPCCompacted},
		"timeout":                                             {nil, status.Error(codes.DeadlineExceeded, "hunter2")},
		"the server does not speak etcd v3":                   {nil, status.Error(codes.Unimplemented, "hunter2")},
		"the member returned an error: Internal":              {nil, status.Error(codes.Internal, "hunter2")},
		"an answer is larger than the limit":                  {nil, status.Error(codes.ResourceExhausted, "hunter2")},
		"connection closed; is it https?":                     {secret, status.Error(codes.Unavailable, "hunter2")},
		"connection refused":                                  {syscall.ECONNREFUSED, status.Error(codes.Unavailable, "")},
		"no such host":                                        {&net.DNSError{Name: "hunter2", IsNotFound: true}, status.Error(codes.Unavailable, "")},
		"name lookup failed":                                  {&net.DNSError{Name: "hunter2"}, status.Error(codes.Unavailable, "")},
		"its certificate is signed by an unknown authority":   {x509.UnknownAuthorityError{}, status.Error(codes.Unavailable, "")},
		"its certificate has expired or is not yet valid":     {x509.CertificateInvalidError{Reason: x509.Expired}, status.Error(codes.Unavailable, "")},
		"it refuses the TLS connection: certificate required": {&net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}, status.Error(codes.Unavailable, "")},
	} {
		m := &member{trace: &connTrace{}}
		m.trace.note(c.cause)
		m.trace.note(io.EOF) // later errors are not the reason
		if c.cause == nil {
			m.trace.cause.Store(nil)
		}
		if got := m.explain(c.err).Error(); got != want {
			t.Errorf("%v: %q, want %q", c.err, got, want)
		}
	}
	m := &member{trace: &connTrace{}}
	if got := m.refused("rpc error: code = PermissionDenied desc = etcdserver: permission denied").Error(); got != "permission denied" {
		t.Errorf("%q", got)
	}
	if got := m.refused("hunter2").Error(); strings.Contains(got, "hunter2") {
		t.Errorf("%q", got)
	}
}

func TestPasswordFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if _, err := readPassword(file); err == nil {
		t.Error("a missing file is a password")
	}
	for text, want := range map[string]string{"pa ss\r\n": "pa ss", "p\n\n": "p", "\n": ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readPassword(file); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: password %q, error %v", text, got, err)
		}
	}
}

// FuzzEtcd applies arbitrary events to the set and to a map; both must hold the
// same keys, whatever the values are.
func FuzzEtcd(f *testing.F) {
	f.Add([]byte("p/pods/a\x00pod one x\x00p/pods/b\x00\x00;d/pods/a\x00\x00"))
	f.Add([]byte("p/pods/.x\x00]\x00p/pods/\xff\x00pod a b\x00;p/podsx\x00pod a b\x00op/pods/a\x00pod one y\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := reading(t)
		model := map[string]bool{}
		revision := int64(1)
		for i, text := range bytes.SplitN(data, []byte(";"), 50) {
			var batch []*mvccpb.Event
			fields := bytes.Split(text, []byte{0})
			for j := 0; j+1 < len(fields); j += 2 {
				revision++
				e := put(revision, "", string(fields[j+1]))
				key, _ := bytes.CutPrefix(fields[j], []byte("p"))
				switch {
				case len(fields[j]) > 0 && fields[j][0] == 'd':
					key = fields[j][1:]
					e.Type = mvccpb.Event_DELETE
				case len(fields[j]) > 0 && fields[j][0] == 'o' && i > 0: // seen before this batch
					key, e.Kv.ModRevision = fields[j][1:], 1
				case len(fields[j]) > 0 && fields[j][0] == 'n':
					e = &mvccpb.Event{}
				}
				if e.Kv != nil {
					e.Kv.Key = key
					if inside := strings.HasPrefix(string(key), "/pods/"); inside && e.Kv.ModRevision > 1 {
						if model[string(key)] = true; e.Type == mvccpb.Event_DELETE {
							delete(model, string(key))
						}
					}
				}
				batch = append(batch, e)
			}
			r.apply(&etcdserverpb.ResponseHeader{Revision: revision}, batch)
			r.yieldSet()
			var want []string
			for key := range maps.Keys(model) {
				if whySkipped(key, r.prefix) == "" {
					want = append(want, key)
				}
			}
			slices.Sort(want)
			if got := r.set.Files(); !slices.Equal(got, want) {
				t.Fatalf("the set holds %q, want %q", got, want)
			}
			if len(r.seen.keys) != len(model) || len(r.skipped) != len(model)-len(want) {
				t.Fatalf("%d keys and %d skipped, want %d and %d", len(r.seen.keys), len(r.skipped), len(model), len(model)-len(want))
			}
		}
	})
}

func TestSets_NoMemberAnswers_EndsWithItsContext(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s, err := New(Config{Endpoints: []string{"http://u:hunter2@" + silent.Addr().String()}, Prefix: "/p", Parse: parse, Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	l := sourcetest.Listen(t, s)
	if got, want := l.Error().Error(), fmt.Sprintf("%s: timeout", silent.Addr()); got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	l.Leave()
	l.Ended()
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range s.Sets(done) {
		t.Errorf("the source yielded although the context was done: %v", err)
	}
}

// hostile is a member whose keys an attacker writes.
type hostile struct {
	etcdserverpb.UnimplementedKVServer
	keys, bytes int // how many there are, and how long each value is
	pages       atomic.Int64
}

func (h *hostile) Range(_ context.Context, r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	h.pages.Add(1)
	if n := len(r.Key) - 8; !r.KeysOnly && n > 0 { // a run of keys: few fit into one answer
		var first, last int
		_, err := fmt.Sscanf(string(r.Key)[n:]+" "+strings.TrimSuffix(string(r.RangeEnd)[n:], "\x00"), "%d %d", &first, &last)
		if err != nil || last-first >= 4 {
			return nil, status.Error(codes.ResourceExhausted, "too large")
		}
	}
	out := &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{ClusterId: 7, Revision: 9}}
	for i := range h.keys {
		key := fmt.Sprintf("/pods/%08d", i)
		if key < string(r.Key) || key >= string(r.RangeEnd) {
			continue
		}
		if out.More = r.Limit > 0 && int64(len(out.Kvs)) == r.Limit; out.More {
			break
		}
		kv := &mvccpb.KeyValue{Key: []byte(key), ModRevision: int64(1 + i%9)}
		if !r.KeysOnly {
			kv.Value = []byte(strings.Repeat("x", h.bytes))
		}
		out.Kvs = append(out.Kvs, kv)
	}
	return out, nil
}

// TestSets_EndlessKeys_AreNotRead: an attacker writes keys below the prefix without
// end. The source reports the reason, keeps its last good set, and reads little.
func TestSets_EndlessKeys_AreNotRead(t *testing.T) {
	t.Parallel()
	readsAtMost(t, &hostile{keys: 2 * mostKeys, bytes: 1}, 1+mostKeys/keysPage)
}

// readsAtMost fails if a source reads more than that many pages of a hostile server.
func readsAtMost(t *testing.T, h *hostile, pages int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, h)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	s, err := New(Config{Endpoints: []string{"http://" + listener.Addr().String()}, Prefix: "/pods", Parse: func(_ []byte, file string) (source.File, []pod.Problem) {
		return source.File{File: file}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	for set, err := range s.Sets(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), errTooMuch.Error()) {
			t.Errorf("%d files, %v", set.Files.Len(), err)
		}
		break
	}
	if n := h.pages.Load(); n > int64(pages) {
		t.Errorf("%d pages are read, want at most %d", n, pages)
	}
}

// TestApply_ValuesComeAndGo_AreCounted: the count of the source's content is right after every
// event.
func TestApply_ValuesComeAndGo_AreCounted(t *testing.T) {
	t.Parallel()
	r := reading(t)
	r.apply(nil, []*mvccpb.Event{put(2, "/pods/a", "pod one x"), put(2, "/pods/b", "pod two xyz")})
	r.apply(nil, []*mvccpb.Event{put(3, "/pods/a", "x"), deleted(3, "/pods/b"), deleted(3, "/pods/c")})
	if r.seen.bytes != 1 || r.seen.tooMuch() {
		t.Errorf("%d bytes", r.seen.bytes)
	}
	r.seen.bytes = mostBytes
	r.apply(nil, []*mvccpb.Event{put(4, "/pods/b", "x")})
	if !r.seen.tooMuch() {
		t.Error("more than is read is not noticed")
	}
}
