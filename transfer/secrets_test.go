package transfer

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/shm"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// everything is a log handler that keeps all it gets, in several notations.
type everything struct {
	*transcript
	attrs []slog.Attr
}

// transcript is all text that a session let out.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (x *transcript) add(v any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	fmt.Fprintf(&x.text, "%v\n%+v\n%#v\n", v, v, v)
}

func (x *transcript) json(t *testing.T, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	x.add(string(b))
}

func (h everything) Enabled(context.Context, slog.Level) bool { return true }
func (h everything) Handle(_ context.Context, r slog.Record) error {
	h.add(r.Message)
	for _, a := range h.attrs {
		h.add(a.String())
	}
	r.Attrs(func(a slog.Attr) bool {
		h.add(a.String())
		h.mu.Lock()
		fmt.Fprintf(&h.text, "%+v\n", a.Value.Any())
		h.mu.Unlock()
		return true
	})
	return nil
}
func (h everything) WithAttrs(as []slog.Attr) slog.Handler {
	return everything{h.transcript, append(h.attrs[:len(h.attrs):len(h.attrs)], as...)}
}
func (h everything) WithGroup(string) slog.Handler { return h }

// secrets collects what must not be let out, with its name.
type secrets struct {
	mu  sync.Mutex
	all map[string][]byte
}

func (s *secrets) add(what string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[fmt.Sprintf("%s %d", what, len(s.all))] = bytes.Clone(b)
}

func (s *secrets) key(what string, k path.Key) {
	s.add(what, binary.BigEndian.AppendUint64(nil, k.Secret))
}

// forms are the notations in which a secret could show.
func forms(b []byte) []string {
	out := []string{string(b), hex.EncodeToString(b), fmt.Sprint(b), fmt.Sprintf("%#v", b),
		base64.StdEncoding.EncodeToString(b), base64.URLEncoding.EncodeToString(b),
		strings.TrimRight(base64.StdEncoding.EncodeToString(b), "="), strings.Trim(strconv.Quote(string(b)), `"`)}
	if len(b) == 8 {
		n := binary.BigEndian.Uint64(b)
		out = append(out, strconv.FormatUint(n, 10), strconv.FormatUint(n, 16), strconv.FormatInt(int64(n), 10),
			fmt.Sprintf("%g", float64(n)))
	}
	return out
}

// find looks for secrets in a text.
func (s *secrets) find(text string) (found []string) {
	lower := strings.ToLower(text)
	for what, b := range s.all {
		for _, f := range forms(b) {
			if strings.Contains(text, f) || strings.Contains(lower, strings.ToLower(f)) && len(f) > 8 {
				found = append(found, fmt.Sprintf("%s as %q", what, f))
			}
		}
	}
	return found
}

// spy is a driver that notes the tokens and secrets of the paths that are set up with it.
type spy struct {
	setup.ListenDriver
	s *secrets
}

func (d spy) note(token setup.Token, cfg *setup.Config) {
	d.s.add("token of a path", token[:])
	if cfg.Secret != nil {
		d.s.add("secret of a path", cfg.Secret)
	}
}

func (d spy) Dial(ctx context.Context, o setup.Offer, cfg setup.Config) (path.Path, error) {
	d.note(o.Token, &cfg)
	return d.ListenDriver.Dial(ctx, o, cfg)
}

func (d spy) Listen() (setup.Listener, error) {
	l, err := d.ListenDriver.Listen()
	return spyListener{l, d}, err
}

type spyListener struct {
	setup.Listener
	d spy
}

func (l spyListener) Accept(ctx context.Context, token setup.Token, cfg setup.Config) (path.Path, error) {
	l.d.note(token, &cfg)
	return l.Listener.Accept(ctx, token, cfg)
}

// A whole session lets no secret out: not in logs, events, snapshots, metrics, explanations, errors
// or the status that a peer gets.
func TestNoSecretsGetOut(t *testing.T) {
	t.Run("plain", func(t *testing.T) { noSecretsGetOut(t, Options{}, Options{}, &secrets{all: map[string][]byte{}}) })
	t.Run("secure", func(t *testing.T) {
		s := &secrets{all: map[string][]byte{}}
		ca := authority(t)
		with := func(name string) Options {
			c, err := ca.Credentials(name, identity.IssueOptions{})
			if err != nil {
				t.Fatal(err)
			}
			der, err := x509.MarshalPKCS8PrivateKey(c.Certificate.PrivateKey)
			if err != nil {
				t.Fatal(err)
			}
			s.add("private key", der)
			if k, ok := c.Certificate.PrivateKey.(*ecdsa.PrivateKey); ok {
				der, err = k.Bytes()
			} else {
				t.Fatalf("a private key of type %T: tell this test what of it is secret", c.Certificate.PrivateKey)
			}
			if err != nil {
				t.Fatal(err)
			}
			s.add("private scalar", der)
			id, err := identity.New(c, identity.Options{Rules: everyone(t)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(id.Close)
			return Options{Identity: id}
		}
		noSecretsGetOut(t, with("client"), with("server"), s)
		kinds := map[string]int{}
		for what := range s.all {
			kinds[strings.TrimRight(what, " 0123456789")]++
		}
		if kinds["secret of a path"] == 0 {
			t.Errorf("no path had a secret: %v", kinds)
		}
	})
}

func noSecretsGetOut(t *testing.T, oa, ob Options, s *secrets) {
	var out transcript
	var events sync.WaitGroup
	collect := func(n *Node) {
		sub := n.Events(t.Context(), 4096)
		events.Go(func() {
			for e := range sub.C() {
				out.add(e)
				out.json(t, e)
			}
			if m := sub.Missed(); len(m) > 0 {
				t.Errorf("missed %v", m)
			}
		})
	}
	for _, o := range []*Options{&oa, &ob} {
		o.Logger, o.Paths = slog.New(everything{transcript: &out}),
			[]setup.Driver{spy{shm.Driver{}, s}, spy{tcp.New(tcp.Options{}), s}}
	}
	p := &pair{heard: make(chan Incoming, 1)}
	peers := make(chan *Peer, 1)
	ob.Listen, ob.OnPeer, ob.OnTransfer = []string{loopback}, func(x *Peer) {
		peers <- x
	}, func(i Incoming) { p.heard <- i }
	p.a, p.b = open(t, oa), open(t, ob)
	p.ignore(t)
	collect(p.a)
	collect(p.b)
	var err error
	if p.ab, err = p.a.Dial(ctx(t), p.b.Addrs()[0]); err != nil {
		t.Fatal(err)
	}
	p.ba = <-peers
	fail := func(err error) {
		if err == nil {
			t.Error("expected an error")
			return
		}
		out.add(err)
		out.add(err.Error())
	}

	s.add("session", p.ab.id[:])
	x := export(t, p.b, region(t, 1<<16), "weights", path.Read|path.Write)
	ro := export(t, p.b, region(t, 4096), "read only", path.Read)
	hidden := export(t, p.b, region(t, 4096), "", path.Read|path.Write)
	for _, e := range []*Export{x, ro, hidden} {
		s.key("key of an export", e.Key())
	}
	all, err := p.ab.List(ctx(t), "")
	if err != nil || len(all) != 2 {
		t.Fatal(err)
	}
	rem, src := lookup(t, p.ab, "weights"), region(t, 1<<16)
	if rem.Desc.Key.Secret != x.Key().Secret {
		t.Fatal("the test does not know the keys")
	}
	_, err = p.ab.Lookup(ctx(t), "nothing")
	fail(err)
	snapshots := func() {
		for _, n := range []*Node{p.a, p.b} {
			snap := n.Snapshot()
			out.add(snap)
			out.json(t, snap)
			for _, f := range n.Metrics() {
				out.add(f.Name)
				for _, m := range f.Samples {
					out.add(m.Values)
					out.add(m.Value)
				}
			}
		}
	}
	for _, name := range paths {
		only := PutOptions{Paths: []string{name}, Msg: []byte("message")}
		for _, do := range []func(context.Context, []path.Copy, PutOptions) (*Transfer, error){p.ab.Put, p.ab.Get} {
			y, err := do(ctx(t), []path.Copy{rem.At(0, src.All())}, only)
			wait(t, y, err)
			e := y.Explain()
			out.add(e)
			out.add(e.String())
			out.json(t, e)
		}
		// A forged key, as a peer could present one: past the checks of this side, so that the
		// other side refuses it.
		forged := rem.Desc
		forged.Key.Secret ^= 1 << 40
		s.key("forged key", forged.Key)
		y, err := p.ab.Put(ctx(t), []path.Copy{p.ab.Import(forged).At(0, src.All())}, only)
		if err == nil {
			<-y.Done()
			err = y.Err()
			out.add(y.Explain().String())
		}
		fail(err)
		small, _ := src.Span(0, 4096)
		_, err = p.ab.Put(ctx(t), []path.Copy{lookup(t, p.ab, "read only").At(0, small)}, only)
		fail(err)
		_, err = p.ab.Put(ctx(t), []path.Copy{rem.At(1<<20, small)}, only)
		fail(err)
	}
	_, err = p.ab.Put(ctx(t), []path.Copy{{Local: src.All(), Key: path.Key{Index: 99, Secret: 0x1122334455667788}}},
		PutOptions{})
	s.key("unknown key", path.Key{Secret: 0x1122334455667788})
	fail(err)
	snapshots()
	st, err := p.ab.Status(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	out.add(st)
	out.json(t, st)

	// A pushed tensor has an export of its own.
	got := make(chan *Received, 1)
	go func() {
		r, err := p.b.Receive(ctx(t), "tensor")
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	y, err := p.ab.SendTensor(ctx(t), "tensor", tensor.Desc{DType: tensor.U8, Shape: []int64{1 << 16}}, src.All(),
		PutOptions{})
	wait(t, y, err)
	if r := <-got; r != nil {
		r.Release()
	}
	p.ab.mu.Lock()
	for k := range p.ab.remotes {
		s.key("key that was told", k)
	}
	p.ab.mu.Unlock()
	out.add(y.Explain().String())

	if err := x.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	y, err = p.ab.Put(ctx(t), []path.Copy{p.ab.Import(rem.Desc).At(0, src.All())}, PutOptions{})
	if err == nil {
		<-y.Done()
		err = y.Err()
	}
	fail(err)
	snapshots()
	p.ab.Close()
	fail(p.ab.Err())
	<-p.ba.Gone()
	fail(p.ba.Err())
	p.a.Close()
	p.b.Close()
	events.Wait()
	snapshots()

	text := out.text.String()
	if found := s.find(text); len(found) > 0 {
		t.Errorf("these got out: %q", found)
	}
	// The test sees: everything it looks into is there, and a secret would be found in each
	// notation.
	for _, want := range []string{"peer connected", "path up", "request refused", "path_up", "transfer_ended",
		"export_revoked", "weights", "penstock_peers", "lowest expected time", "unknown export"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the text", want)
		}
	}
	if len(s.all) < 12 {
		t.Errorf("only %d secrets", len(s.all))
	}
	for what, b := range s.all {
		for _, f := range forms(b) {
			one := secrets{all: map[string][]byte{what: b}}
			if len(one.find("before "+f+" after")) == 0 {
				t.Errorf("%s is not found as %q", what, f)
			}
		}
	}
}
