package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// question is a candidate that a test is asked about.
type question struct {
	Candidate
	ctx    context.Context
	answer chan<- bool
}

// asking are options whose questions a test answers, and where they and the refusals arrive.
func asking(o PairingOptions) (PairingOptions, <-chan question, <-chan string) {
	questions, refusals := make(chan question, 8), make(chan string, 8)
	o.Confirm = func(ctx context.Context, c Candidate) (bool, error) {
		answer := make(chan bool, 1)
		questions <- question{c, ctx, answer}
		select {
		case ok := <-answer:
			return ok, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	o.Refused = func(c Candidate, why string) { refusals <- c.Name + ": " + why }
	return o, questions, refusals
}

// joined is how a Join ended.
type joined struct {
	c           Contents
	fingerprint string
	err         error
}

func joinAs(t *testing.T, v Invitation, dir, name string) <-chan joined {
	t.Helper()
	done := make(chan joined, 1)
	go func() {
		var j joined
		j.c, j.err = Join(t.Context(), v, dir, name, JoinOptions{Waiting: func(f string) { j.fingerprint = f }})
		done <- j
	}()
	return done
}

// A joiner with the code gets nothing before the host has confirmed its key: both sides see the
// same fingerprint, the host confirms one machine at a time, and one that is refused or hangs up
// leaves the code to the right one.
func TestConfirm(t *testing.T) {
	ca := authority(t)
	o, questions, refusals := asking(PairingOptions{Self: "a"})
	v, done, _ := host(t, ca, o)
	thief := joinAs(t, v, newDir(t), "thief")
	q := <-questions
	if q.Name != "thief" || !strings.HasPrefix(q.Address, "127.0.0.1:") {
		t.Errorf("%+v", q.Candidate)
	}
	if issued, _ := ca.Issued(); len(issued) != 0 {
		t.Errorf("a certificate before the confirmation: %+v", issued)
	}
	if j := <-joinAs(t, v, newDir(t), "b"); !errors.Is(j.err, ErrNotConfirmed) {
		t.Errorf("while another is asked about: %v", j.err)
	}
	if r := <-refusals; r != "b: another machine that knows the code is being confirmed" {
		t.Error(r)
	}
	q.answer <- false
	if j := <-thief; !errors.Is(j.err, ErrNotConfirmed) || j.fingerprint != q.Fingerprint || len(q.Fingerprint) != 64 {
		t.Errorf("thief: %+v; asked about %+v", j, q.Candidate)
	}
	if r := <-refusals; r != "thief: its key was not confirmed" {
		t.Error(r)
	}
	// One that hangs up while it is asked about: the question ends, and the next one is asked
	// about.
	c := dialPair(t, v.Address)
	asked := request(t, p256(t), x509.CertificateRequest{}, "b")
	m := join{request: asked}
	var err error
	if m.proof, err = v.proof(c.ConnectionState(), "join", asked); err != nil {
		t.Fatal(err)
	}
	c.Write(appendMessage(nil, messageJoin, m.encode()))
	q = <-questions
	c.Close()
	<-q.ctx.Done()
	// Its turn ends a moment after its question.
	var b joined
	for {
		next := joinAs(t, v, newDir(t), "b")
		select {
		case q = <-questions:
		case b = <-next:
			if !errors.Is(b.err, ErrNotConfirmed) {
				t.Fatal(b.err)
			}
			<-refusals
			continue
		}
		q.answer <- true
		b = <-next
		break
	}
	if b.err != nil || b.fingerprint != q.Fingerprint {
		t.Errorf("b: %+v", b)
	}
	if o := <-done; o.err != nil || o.peer != b.c.Self {
		t.Errorf("%+v", o)
	}
	if issued, _ := ca.Issued(); len(issued) != 1 || issued[0].Name != "b" {
		t.Errorf("issued: %+v", issued)
	}
}

// An error of Confirm ends the pairing, and the joiner gets the reason. The end of the pairing
// during Confirm fails the join too.
func TestConfirmEnds(t *testing.T) {
	no := errors.New("no")
	v, done, _ := host(t, authority(t), PairingOptions{Confirm: func(context.Context, Candidate) (bool, error) {
		return true, no
	}})
	if j := <-joinAs(t, v, newDir(t), "b"); !errors.Is(j.err, ErrNotConfirmed) {
		t.Error(j.err)
	}
	if o := <-done; !errors.Is(o.err, no) || o.peer != (Peer{}) {
		t.Errorf("%+v", o)
	}
	o, questions, _ := asking(PairingOptions{})
	ca := authority(t)
	v, done, cancel := host(t, ca, o)
	b := joinAs(t, v, newDir(t), "b")
	<-questions
	cancel()
	if o := <-done; !errors.Is(o.err, context.Canceled) {
		t.Errorf("%+v", o)
	}
	if j := <-b; j.err == nil {
		t.Error("joined a pairing that was ended")
	}
	if issued, _ := ca.Issued(); len(issued) != 0 {
		t.Errorf("issued: %+v", issued)
	}
	if _, err := ca.NewPairing(PairingOptions{Self: "a"}); !errors.Is(err, ErrNotConfirmed) {
		t.Errorf("a pairing that asks nobody: %v", err)
	}
}

// Neither side says that it is paired before the other one has kept what it needs.
func TestJoinedOnBothSides(t *testing.T) {
	var order []string
	told := func(s string) { order = append(order, s) } // each before the message on which the next one waits
	ca := authority(t)
	v, done, _ := host(t, ca, PairingOptions{Self: "a", Joined: func(c Candidate, p Peer) error {
		told("host keeps " + c.Name + p.Name)
		return nil
	}})
	dir := newDir(t)
	_, err := Join(t.Context(), v, dir, "b", JoinOptions{Joined: func(host string) error {
		if have, _ := exists(filepath.Join(dir, NodeFile)); have {
			t.Error("the certificate was written first")
		}
		told("joiner keeps " + host)
		return nil
	}})
	if o := <-done; err != nil || o.err != nil || strings.Join(order, ", ") != "joiner keeps a, host keeps bb" {
		t.Errorf("%v, %v, %q", err, o.err, order)
	}
	fails := errors.New("no room")
	v, done, _ = host(t, ca, PairingOptions{Self: "a", Joined: func(Candidate, Peer) error { return fails }})
	if _, err := Join(t.Context(), v, newDir(t), "c", JoinOptions{}); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("a host that could not keep: %v", err)
	}
	if o := <-done; !errors.Is(o.err, fails) || o.peer.Name != "c" {
		t.Errorf("%+v", o)
	}
	dir = newDir(t)
	v, done, _ = host(t, ca, PairingOptions{Self: "a", Joined: func(Candidate, Peer) error {
		t.Error("joined")
		return nil
	}})
	if _, err := Join(t.Context(), v, dir, "d", JoinOptions{Joined: func(string) error {
		return fails
	}}); !errors.Is(err, fails) {
		t.Errorf("a joiner that could not keep: %v", err)
	}
	if o := <-done; !errors.Is(o.err, ErrUnconfirmed) || o.peer.Name != "d" ||
		!strings.Contains(o.err.Error(), o.peer.Serial) {
		t.Errorf("%+v", o)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// A key that was made beforehand is the one that a certificate is asked for, once.
func TestNewKey(t *testing.T) {
	dir := newDir(t)
	first, err := NewKey(dir)
	again, err2 := NewKey(dir)
	if err != nil || err2 != nil || first != again || len(first) != 64 {
		t.Fatalf("%q, %q, %v, %v", first, again, err, err2)
	}
	path := filepath.Join(dir, PendingFile)
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	o, questions, _ := asking(PairingOptions{Self: "a"})
	v, done, _ := host(t, authority(t), o)
	b := joinAs(t, v, dir, "b")
	q := <-questions
	q.answer <- true
	if j := <-b; j.err != nil || q.Fingerprint != first {
		t.Errorf("%+v, %v", q.Candidate, j.err)
	}
	<-done
	if have, err := exists(path); have || err != nil {
		t.Errorf("the key is still there: %v", err)
	}
	if next, err := NewKey(dir); err != nil || next == first {
		t.Errorf("a key was used twice: %v", err)
	}
	for what, b := range map[string][]byte{"no PEM": []byte("x"),
		"a certificate": encodeCertificates(authority(t).cert)} {
		write(t, dir, PendingFile, b, 0o600)
		if _, err := NewKey(dir); !errors.Is(err, ErrCredentials) {
			t.Errorf("%s: %v", what, err)
		}
	}
	write(t, dir, PendingFile, nil, 0o644)
	if _, err := NewKey(dir); !errors.Is(err, ErrPermissions) {
		t.Errorf("a key for all to read: %v", err)
	}
}

// pausing is a connection that waits before its first read.
type pausing struct {
	net.Conn
	pause <-chan struct{}
}

func (p pausing) Read(b []byte) (int, error) { <-p.pause; return p.Conn.Read(b) }

// A flood of connections from the joiner's own address does not end the joiner's: its first bytes
// show that it knows the code.
func TestFloodDoesNotStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := authority(t).NewPairing(filled(PairingOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		q := newQueue()
		done := make(chan outcome, 1)
		go func() {
			peer, err := p.Serve(t.Context(), q)
			done <- outcome{peer, err}
		}()
		pause := make(chan struct{})
		c := pausing{q.dial(), pause}
		result := make(chan error, 1)
		go func() {
			result <- p.Invitation("pipe:1").join(c, p256(t), "b",
				joining{wait: func(time.Duration) {}, keep: func(string, Credentials) error {
					return nil
				}})
		}()
		synctest.Wait() // its first message was read
		for range 4 * pairConns {
			c := q.dial()
			go io.Copy(io.Discard, c)
		}
		synctest.Wait()
		close(pause)
		if err := <-result; err != nil {
			t.Errorf("the right one: %v", err)
		}
		if o := <-done; o.err != nil || o.peer.Name != "b" {
			t.Errorf("%+v", o)
		}
	})
}

// from is a connection of an address that notes its end.
type from struct {
	net.Conn
	addr  net.Addr
	ended *string
}

func (c from) RemoteAddr() net.Addr { return c.addr }
func (c from) Close() error         { *c.ended = c.addr.String(); return nil }

// One connection too many costs the caller with the most; a network of IPv6 is one caller; joiners
// with the code lose none.
func TestRoomForOthers(t *testing.T) {
	p := &Pairing{}
	ended := ""
	add := func(ip string, port int) *pairConn {
		ended = ""
		return p.add(from{addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: port}, ended: &ended})
	}
	honest := add("192.0.2.1", 1)
	for k := range pairConns - 1 {
		add(fmt.Sprintf("2001:db8::%x", k+1), k+1)
	}
	if ended != "" || len(p.conns) != pairConns {
		t.Fatalf("%q ended of %d", ended, len(p.conns))
	}
	for k := range 2 * pairConns {
		add("198.51.100.1", 1000+k)
		if ended == "" || strings.HasPrefix(ended, "192.0.2.1:") || len(p.conns) != pairConns {
			t.Fatalf("connection %d ended %q; %d", k, ended, len(p.conns))
		}
	}
	load := 0
	for _, j := range p.conns {
		if j.source.Addr().Is4() {
			load++
		}
	}
	if load < pairConns/2-1 || load > pairConns/2+2 {
		t.Errorf("%d of %d connections are left to one of two callers", load, pairConns)
	}
	// From very many addresses: those that knocked stay.
	p.knocked(honest.raw)
	for k := range 2 * pairConns {
		add(fmt.Sprintf("10.0.%d.%d", k/250, k%250), 1)
	}
	if !p.prove(honest) {
		t.Error("the one that knocked was ended")
	}
	for _, j := range p.conns {
		p.prove(j)
	}
	if j := add("192.0.2.9", 1); j != nil || ended != "" {
		t.Errorf("%+v in the place of %q, which knows the code", j, ended)
	}
}
