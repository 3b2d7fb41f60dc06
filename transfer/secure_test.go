package transfer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/account"
	"github.com/penstock-io/penstock/transfer/address"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

func authority(t testing.TB) *identity.Authority {
	t.Helper()
	ca, err := identity.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// everyone are rules that give all rights to each node of the authority.
func everyone(t testing.TB) *identity.Rules {
	t.Helper()
	r, err := identity.ParseRules([]byte("default all\n"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// issue makes an identity on whose node everyone may do everything.
func issue(t testing.TB, ca *identity.Authority, name string) *identity.Identity {
	t.Helper()
	id, err := ca.Issue(name, identity.IssueOptions{Options: identity.Options{Rules: everyone(t)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(id.Close)
	return id
}

// policy gives rights by name, and lets a test change them.
type policy struct {
	mu sync.Mutex
	by map[string]identity.Rights
}

func (p *policy) Rights(name string) identity.Rights {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.by[name]
}

func (p *policy) set(name string, r identity.Rights) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.by[name] = r
}

const loopback = "tcp://127.0.0.1:0"

func TestSecureSession(t *testing.T) {
	ca := authority(t)
	for _, via := range paths {
		t.Run(via, func(t *testing.T) {
			peers := make(chan *Peer, 1)
			b := open(t, Options{Identity: issue(t, ca, "server"), Listen: []string{loopback}, OnPeer: func(p *Peer) {
				peers <- p
			}})
			a := open(t, Options{Identity: issue(t, ca, "client")})
			if a.Name() != "client" {
				t.Errorf("the node is named %q, not as its certificate", a.Name())
			}
			p, err := a.Dial(ctx(t), strings.Replace(b.Addrs()[0], "//", "//server@", 1))
			if err != nil {
				t.Fatal(err)
			}
			q := <-peers
			for _, x := range []struct {
				p    *Peer
				name string
			}{{p, "server"}, {q, "client"}} {
				if c, ok := x.p.Certificate(); !ok || c.Name != x.name || x.p.Security() != path.SecurityEncrypted {
					t.Errorf("%v: certificate %q, %v, security %v", x.p, c.Name, ok, x.p.Security())
				}
			}
			token := setup.Token{1}
			s1, err1 := p.secret(token)
			s2, err2 := q.secret(token)
			s3, _ := p.secret(setup.Token{2})
			if err1 != nil || err2 != nil || len(s1) != setup.SecretSize || !bytes.Equal(s1, s2) ||
				bytes.Equal(s1, s3) {
				t.Errorf("secrets of %d bytes: %v, %v; equal at both ends %v, for two paths %v", len(s1), err1, err2,
					bytes.Equal(s1, s2), bytes.Equal(s1, s3))
			}
			src, dst := region(t, 1<<20), region(t, 1<<20)
			fill(src, 3)
			export(t, b, dst, "x", path.Read|path.Write)
			rem := lookup(t, p, "x")
			x, err := p.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{via}})
			wait(t, x, err)
			if !bytes.Equal(src.All().Bytes(), dst.All().Bytes()) {
				t.Error("the bytes differ")
			}
			if e := x.Explain(); e.Security < path.SecurityHost || e.Floor != path.SecurityHost {
				t.Errorf("security %v, floor %v", e.Security, e.Floor)
			}
		})
	}
}

// TestStrangersAreRefused checks every way not to be a peer of a node with an identity.
func TestStrangersAreRefused(t *testing.T) {
	ca := authority(t)
	b := open(t, Options{Identity: issue(t, ca, "server"), Listen: []string{loopback}})
	addr := b.Addrs()[0]
	for _, c := range []struct {
		name string
		o    Options
		addr string
		want string
	}{
		{"another authority", Options{Identity: issue(t, authority(t), "client")}, addr, ""},
		{"another name", Options{Identity: issue(t, ca, "client")}, strings.Replace(addr, "//", "//other@", 1), "other"},
		{"plaintext", Options{}, addr, "penstock pair"},
		{"a name without an identity", Options{}, strings.Replace(addr, "//", "//server@", 1), "no identity"},
	} {
		p, err := open(t, c.o).Dial(ctx(t), c.addr)
		if err == nil {
			t.Errorf("%s: connected to %v", c.name, p)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v: expected %q in it", c.name, err, c.want)
		}
	}
	plain := open(t, Options{Listen: []string{loopback}})
	if _, err := open(t, Options{Identity: issue(t, ca, "client")}).Dial(ctx(t), plain.Addrs()[0]); err == nil ||
		!strings.Contains(err.Error(), "penstock pair") {
		t.Errorf("TLS with a node that speaks none: %v", err)
	}
	if n := len(b.Peers()); n != 0 {
		t.Errorf("%d peers", n)
	}
}

// TestRightsEnd takes a peer's rights away, and denies another one: their sessions end.
func TestRightsEnd(t *testing.T) {
	ca := authority(t)
	pol := &policy{by: map[string]identity.Rights{"a": identity.All}}
	id := issue(t, ca, "server")
	b := open(t, Options{Identity: id, Listen: []string{loopback}, Policy: pol})
	a, err := open(t, Options{Identity: issue(t, ca, "a")}).Dial(ctx(t), b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	pol.set("a", identity.Read)
	soon(t, a.Gone(), "the end of the session")
	if err := a.Err(); !errors.Is(err, control.Shutdown) || !strings.Contains(err.Error(), "dial again") {
		t.Errorf("it ended with %v", err)
	}
	rules, err := identity.ParseRules([]byte("deny name a\n"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := open(t, Options{Identity: issue(t, ca, "a")}).Dial(ctx(t), b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	id.SetRules(rules)
	soon(t, c.Gone(), "the end of the session")
	if err := c.Err(); !errors.Is(err, control.NotPermitted) {
		t.Errorf("it ended with %v", err)
	}
}

// TestCertificateEnds checks that a session does not outlive the certificate of the peer;
// TestRightsEnd has what follows.
func TestCertificateEnds(t *testing.T) {
	n := open(t, Options{Identity: issue(t, authority(t), "server")})
	for left, want := range map[time.Duration]error{time.Hour: nil, -time.Second: control.Shutdown} {
		p := &Peer{node: n, peerConn: peerConn{tls: &tls.ConnectionState{}},
			peerUser: peerUser{cert: identity.Peer{Name: "a", NotAfter: time.Now().Add(left)}}}
		p.rights = p.Rights()
		if err := p.holds(); !errors.Is(err, want) {
			t.Errorf("%v before the certificate ends: %v, expected %v", left, err, want)
		}
	}
}

// TestExportForOnePeer checks that an export for one peer does not exist for the others.
func TestExportForOnePeer(t *testing.T) {
	peers := make(chan *Peer, 2)
	b := open(t, Options{Listen: []string{loopback}, OnPeer: func(p *Peer) { peers <- p }})
	dial := func() (*Peer, *Peer) {
		p, err := open(t, Options{}).Dial(ctx(t), b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		return p, <-peers
	}
	own, theirs := dial()
	other, _ := dial()
	r, local := region(t, 4096), region(t, 4096)
	x, err := b.Export(r.All(), ExportOptions{Name: "x", Rights: path.Read | path.Write, Peer: theirs})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Lookup(ctx(t), "x"); !errors.Is(err, control.NotFound) {
		t.Errorf("lookup by another peer: %v", err)
	}
	if l, err := other.List(ctx(t), ""); err != nil || len(l) != 0 {
		t.Errorf("list by another peer: %v, %v", l, err)
	}
	lookup(t, own, "x")
	stolen := other.Import(x.Desc())
	for _, via := range paths {
		for _, p := range []struct {
			p    *Peer
			want error
		}{{own, nil}, {other, path.ErrKey}} {
			for _, kind := range []path.OpKind{path.Put, path.Get} {
				y, err := p.p.begin(ctx(t), kind, []path.Copy{stolen.At(0, local.All())},
					PutOptions{Paths: []string{via}})
				if err == nil {
					err = y.Wait(ctx(t))
				}
				if !errors.Is(err, p.want) {
					t.Errorf("%s over %s: %v, expected %v", account.KindName(kind), via, err, p.want)
				}
			}
		}
	}
}

// TestAddresses checks what can be said and what is permitted.
func TestAddresses(t *testing.T) {
	id := issue(t, authority(t), "a")
	for _, c := range []struct {
		addr               string
		plain, with, risky string // part of the error without identity, with one, with Insecure; "" is none
	}{
		{"tcp://127.0.0.1:1", "", "", ""},
		{"tcp://[::1]:1", "", "", ""},
		{"tcp://localhost:1", "", "", ""},
		{"unix:///x", "", "", ""},
		{"tcp://192.0.2.1:1", "penstock pair", "", ""},
		{"tcp://0.0.0.0:1", "penstock pair", "", ""},
		{"tcp://example.org:1", "penstock pair", "", ""},
		{"tcp://b@192.0.2.1:1", "no identity", "", "no identity"},
		{"tcp://b@127.0.0.1:1", "no identity", "", "no identity"},
		{"tcp://B!@127.0.0.1:1", "B!", "B!", "B!"},
		{"tcp://127.0.0.1", "port", "port", "port"},
		{"tcp://127.0.0.1:99999", "65535", "65535", "65535"},
		{"tcp://127.0.0.1:x", "number", "number", "number"},
		{"udp://127.0.0.1:1", "udp", "udp", "udp"},
		{"127.0.0.1:1", "", "", ""},
		{"tcp://:1", "penstock pair", "", ""},
		{":1", "penstock pair", "", ""},
		{"127.0.0.1", "tcp://HOST", "tcp://HOST", "tcp://HOST"},
		{"unix://", "path", "path", "path"},
		{"unix://@", "path", "path", "path"},
	} {
		for _, k := range []struct {
			o    Options
			want string
		}{{Options{}, c.plain}, {Options{Identity: id}, c.with}, {Options{Insecure: true}, c.risky}} {
			n := &Node{opts: k.o, log: slog.New(slog.DiscardHandler),
				account: account.New(nil, ErrClosed, ErrPeerLost)}
			a, err := address.Parse(c.addr)
			if err == nil {
				err = n.allows(a)
			}
			if (err == nil) != (k.want == "") || err != nil && !strings.Contains(err.Error(), k.want) {
				t.Errorf("%s (identity %v, insecure %v): %v: expected %q", c.addr, k.o.Identity != nil, k.o.Insecure,
					err, k.want)
			}
			if err == nil && strings.Contains(c.addr, "@1") && a.String() != c.addr {
				t.Errorf("%s is written as %s", c.addr, a)
			}
		}
	}
}

// TestInsecureIsAnnounced checks that a plaintext address beyond this machine is never used
// silently.
func TestInsecureIsAnnounced(t *testing.T) {
	var log lockedBuffer
	n := open(t, Options{Listen: []string{"tcp://0.0.0.0:0"}, Insecure: true,
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if s := log.String(); !strings.Contains(s, "PLAINTEXT") || !strings.Contains(s, "level=WARN") {
		t.Errorf("the log says %q", s)
	}
	if _, err := Open(ctx(t), Options{Listen: []string{"tcp://0.0.0.0:0"}}); !errors.Is(err, ErrPlaintext) {
		t.Errorf("without the permission: %v", err)
	}
	_ = n
	home := t.TempDir() // of a user who has an identity, which this node was not given
	t.Setenv("XDG_CONFIG_HOME", home)
	own := filepath.Join(home, "penstock")
	for there, want := range map[bool]string{false: `"penstock pair" makes one`, true: "identity=True in Python and " +
		"Options.Identity in Go use that of " + own} {
		if there {
			if err := errors.Join(os.Mkdir(own, 0o700), os.WriteFile(filepath.Join(own, identity.NodeFile), nil,
				0o600)); err != nil {
				t.Fatal(err)
			}
		} else {
			os.RemoveAll(own)
		}
		if _, err := open(t, Options{}).Dial(ctx(t), "tcp://192.0.2.1:1"); !errors.Is(err, ErrPlaintext) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

// TestManyStrangers floods a listener with connections that say nothing: they are bounded, and a
// peer still gets in.
func TestManyStrangers(t *testing.T) {
	ca := authority(t)
	for _, o := range []Options{{}, {Identity: issue(t, ca, "server")}} {
		ob := o
		ob.Listen = []string{loopback}
		b := open(t, ob)
		var conns []net.Conn
		for range setup.MaxPending() + 50 {
			c, err := net.Dial("tcp", strings.TrimPrefix(b.Addrs()[0], "tcp://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			conns = append(conns, c)
		}
		// The first ones have to make room.
		for _, c := range conns[:10] {
			if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, net.ErrClosed) &&
				!strings.Contains(err.Error(), "reset") {
				t.Fatal(err)
			}
		}
		if o.Identity != nil {
			o.Identity = issue(t, ca, "client")
		}
		p, err := open(t, o).Dial(ctx(t), b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		b.mu.Lock()
		n := b.handshaking.Len()
		b.mu.Unlock()
		if n > setup.MaxPending() {
			t.Errorf("%d handshaking are kept", n)
		}
	}
}

// TestSecurityFloor checks that a transfer takes no path below the security that it asks for, and
// that failover does not either.
func TestSecurityFloor(t *testing.T) {
	s := newTwoPaths(t, 64<<10)
	put := func(level path.Security) error {
		x, err := s.p.Put(ctx(t), []path.Copy{s.rem.At(0, s.src.All())}, PutOptions{Security: level})
		if err != nil {
			return err
		}
		return x.Wait(ctx(t))
	}
	if err := put(path.SecurityHost); err != nil {
		t.Errorf("on this host: %v", err)
	}
	if err := put(path.SecurityEncrypted); !errors.Is(err, ErrSecurity) || !errors.Is(err, path.ErrUnavailable) {
		t.Errorf("encrypted, where nothing is: %v", err)
	}
	if _, err := s.p.OpenQueue(ctx(t), QueueOptions{Security: path.SecurityEncrypted}); err == nil {
		t.Error("a queue below the floor")
	}
}

// TestFloorInFailover takes the only path that encrypts down under a transfer that asks for that:
// it fails, although there is another path.
func TestFloorInFailover(t *testing.T) {
	ca := authority(t)
	encrypted, host := path.SecurityEncrypted, path.SecurityHost
	var drivers [2][]setup.Driver
	var gone atomic.Bool
	for i := range drivers {
		alpha, beta := over("alpha"), over("beta")
		alpha.level, beta.level = &encrypted, &host
		alpha.dial = func(context.Context) error {
			if gone.Load() {
				return errCut
			}
			return nil
		}
		alpha.post = func(p path.Path, ops []path.Op) (int, error) {
			if gone.Load() && ops[0].Kind == path.Put {
				p.Close()
			}
			return p.Post(ops)
		}
		drivers[i] = []setup.Driver{alpha, beta}
	}
	b := open(t, Options{Identity: issue(t, ca, "b"), Listen: []string{loopback}, Paths: drivers[0]})
	a := open(t, Options{Identity: issue(t, ca, "a"), Paths: drivers[1]})
	p, err := a.Dial(ctx(t), b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	r, src := region(t, 4096), region(t, 4096)
	export(t, b, r, "x", path.Write)
	rem := lookup(t, p, "x")
	put := func(o PutOptions) (Explanation, error) {
		x, err := p.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, o)
		if err != nil {
			return Explanation{}, err
		}
		err = x.Wait(ctx(t))
		return x.Explain(), err
	}
	if e, err := put(PutOptions{Security: path.SecurityEncrypted}); err != nil || e.Path != "alpha" {
		t.Fatalf("%v\n%v", err, e)
	}
	gone.Store(true)
	if e, err := put(PutOptions{Security: path.SecurityEncrypted}); !errors.Is(err, ErrSecurity) ||
		len(e.Failovers) != 1 || e.Moved != 0 {
		t.Errorf("%v\n%v", err, e)
	}
	if e, err := put(PutOptions{}); err != nil || e.Path != "beta" {
		t.Errorf("without the floor: %v\n%v", err, e)
	}
}

// TestRightsEndBetweenHeartbeats takes rights away from a peer of a node that seldom has a reason
// to wake up.
func TestRightsEndBetweenHeartbeats(t *testing.T) {
	ca := authority(t)
	pol := &policy{by: map[string]identity.Rights{"a": identity.All}}
	seldom := func(o Options) Options {
		o.HeartbeatEvery, o.DeadAfter = 30*time.Second, 90*time.Second
		return o
	}
	b := open(t, seldom(Options{Identity: issue(t, ca, "server"), Listen: []string{loopback}, Policy: pol}))
	a, err := open(t, seldom(Options{Identity: issue(t, ca, "a")})).Dial(ctx(t), b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	pol.set("a", identity.Read)
	soon(t, a.Gone(), "the end of the session")
}
