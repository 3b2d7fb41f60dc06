package transfer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/account"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// TestRights asks a node for everything that a peer can ask for, with each set of rights, and
// checks that exactly what the rights allow is granted. The node dials the peer: then there is a
// session also where the peer has no rights at all. The peer has the keys of all exports, and the
// node has opened paths that the peer can use. docs/security.md has the same table.
func TestRights(t *testing.T) {
	for rights := range identity.All + 1 {
		t.Run(rights.String(), func(t *testing.T) { tryRights(t, rights) })
	}
}

func tryRights(t *testing.T, rights identity.Rights) {
	const size = 4096
	card := newFakeDevice(t, "card")
	ca := authority(t)
	met := make(chan *Peer, 1)
	attacker := open(t, Options{Identity: issue(t, ca, "attacker"), Listen: []string{loopback}, OnPeer: func(p *Peer) {
		met <- p
	}})
	victim := open(t, Options{Identity: issue(t, ca, "victim"), Policy: identity.Everyone(rights)})
	near, err := victim.Dial(ctx(t), attacker.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	p := <-met

	far, _ := card.region(size)
	descs := map[string]path.Desc{}
	for name, may := range map[string]path.Rights{"rw": path.Read | path.Write, "ro": path.Read, "wo": path.Write} {
		descs[name] = export(t, victim, region(t, size), name, may).Desc()
	}
	descs["dev"] = export(t, victim, far, "dev", path.Read|path.Write).Desc()
	victim.AcceptQueues("q")
	if _, err := victim.Handle("echo", func(_ context.Context, _ *Peer, b []byte) ([]byte, error) {
		return b, nil
	}); err != nil {
		t.Fatal(err)
	}
	receiving, stop := context.WithCancel(ctx(t))
	got := receive(receiving, victim, "w")
	defer func() {
		stop()
		arrived(t, got)
	}()

	const read, write, list, status = identity.Read, identity.Write, identity.List, identity.Status
	has := func(any identity.Rights) bool { return rights&any != 0 }
	asked := map[control.Method]bool{}
	check := func(what string, err error, allowed bool) {
		t.Helper()
		if allowed != (err == nil) {
			t.Errorf("%s: %v, expected that it is allowed: %v", what, err, allowed)
		}
		if !allowed && err != nil && !errors.Is(err, control.NotPermitted) && !errors.Is(err, path.ErrRights) {
			t.Errorf("%s: %v: expected a refusal for want of rights", what, err)
		}
	}
	ask := func(what string, q control.Query, allowed bool) []byte {
		t.Helper()
		asked[q.Method()] = true
		r, err := p.request(ctx(t), q)
		check(q.Method().String()+" "+what, err, allowed)
		if err != nil {
			return nil
		}
		return r.Body
	}
	// entry checks that a description has the rights that the peer has, and a key only with rights.
	entry := func(e control.Entry) {
		t.Helper()
		want := descs[e.Name]
		if want.Rights &= pathRights(rights); want.Rights == 0 {
			want.Key = path.Key{}
		}
		if e.Desc != want {
			t.Errorf("%q is described as %+v, expected %+v", e.Name, e.Desc, want)
		}
	}

	for name, desc := range descs {
		if b := ask(name, &control.Lookup{Name: name}, desc.Rights&pathRights(rights) != 0); b != nil {
			e, err := control.Parse[control.Entry](b)
			if err != nil {
				t.Fatal(err)
			}
			entry(e)
		}
	}
	if b := ask("all", &control.Names{}, has(list)); b != nil {
		page, err := control.Parse[control.NamesPage](b)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := page.Entries()
		if err != nil || len(entries) != len(descs) {
			t.Fatalf("%d names, %v", len(entries), err)
		}
		for _, e := range entries {
			if e.Desc.Key != (path.Key{}) || e.Tag != ([16]byte{}) {
				t.Errorf("%q has a key or a tag: %+v", e.Name, e)
			}
		}
	}
	if b := ask("all", &control.List{}, has(list)); b != nil {
		page, err := control.Parse[control.Entries](b)
		if err != nil || len(page.Entries) != len(descs) {
			t.Fatalf("%d names, %v", len(page.Entries), err)
		}
		for _, e := range page.Entries {
			entry(e)
		}
	}
	var token setup.Token
	if p.role == control.Acceptor {
		token[0] = 1
	}
	ask("tcp", &control.OpenPath{Path: "tcp", Token: token}, has(read|write))
	ask("shm", &control.OpenPath{Path: "shm"}, has(read|write))
	ask("for a queue", &control.OpenPath{Path: "tcp", Queue: "q", Token: token}, has(read|write))
	ask("", &control.Status{}, has(status))
	ask("", &control.Call{Service: "echo"}, rights != 0)
	ask("of its own", &control.Delivered{IDs: [][16]byte{attacker.nextID()}}, true)
	ask("of its own", &control.PathDown{PathID: 1 << 60}, true)
	ask("of its own", &control.EndSessions{Sessions: [][16]byte{{1}}}, true)

	// Digests show what the bytes are, so they need the right to read.
	block := func(name string) control.Block { return control.Block{Key: descs[name].Key, Len: size} }
	digest := func(what string, id observe.ID, expect [32]byte, allowed bool, blocks ...control.Block) (sum [32]byte) {
		t.Helper()
		if b := ask(what, &control.Digest{ID: id, Last: true, Expect: expect, Blocks: blocks}, allowed); b != nil {
			a, err := control.Parse[control.DigestSum](b)
			if err != nil {
				t.Fatal(err)
			}
			sum = a.Sum
		}
		return sum
	}
	zeros := sha256.Sum256(make([]byte, size)) // what is in the exports
	for name := range descs {
		allowed := has(read) && descs[name].Rights&path.Read != 0
		digest(name, attacker.nextID(), [32]byte{}, allowed, block(name))
		digest(name+" with a right guess", attacker.nextID(), zeros, allowed, block(name))
	}
	digest("of nothing", attacker.nextID(), [32]byte{}, has(read))

	// Memory of devices, by way of slots.
	var lease path.Key
	if b := ask("dev", &control.Stage{Key: descs["dev"].Key, Small: true}, has(read|write)); b != nil {
		l, err := control.Parse[control.Staging](b)
		if err != nil {
			t.Fatal(err)
		}
		lease = l.Desc.Key
	}
	ask("dev", &control.Place{Lease: lease, Blocks: []control.Block{block("dev")}}, has(write))
	ask("dev", &control.Fetch{Lease: lease, Blocks: []control.Block{block("dev")}}, has(read))
	if lease != (path.Key{}) {
		ask("its own", &control.Unstage{Lease: lease}, true)
	}

	// A tensor that it pushes: it may have compared what it wrote, and learns the sum only if it
	// may read.
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{size}}
	wire, err := d.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	if has(write) {
		waiting(t, victim, "w", 1)
	}
	id := attacker.nextID()
	if b := ask("a tensor", &control.Offer{ID: id, Name: "w", Size: size, Tensor: wire, Digest: true},
		has(write)); b != nil {
		a, err := control.Parse[control.Accept](b)
		if err != nil {
			t.Fatal(err)
		}
		if a.Desc.Rights != path.Write {
			t.Errorf("a pushed tensor's memory is for %v", a.Desc.Rights)
		}
		src := region(t, size)
		fill(src, 5)
		x, err := p.Put(ctx(t), []path.Copy{p.Import(a.Desc).At(0, src.All())}, PutOptions{Paths: []string{"tcp"}})
		wait(t, x, err)
		own := control.Block{Key: a.Desc.Key, Len: size}
		sum := sha256.Sum256(src.All().Bytes())
		silent := [32]byte{}
		if has(read) {
			silent = sum
		}
		if s := digest("of its own tensor, no guess", id, [32]byte{}, true, own); s != silent {
			t.Errorf("the sum of a pushed tensor is said to be %x, expected %x", s, silent)
		}
		for _, name := range []string{"rw", "ro", "wo"} {
			digest(name+" for its own tensor", id, [32]byte{}, has(read) && descs[name].Rights&path.Read != 0,
				block(name))
			digest(name+" beside its own tensor", id, [32]byte{}, false, own, block(name))
		}
		digest("of its own tensor under another id", attacker.nextID(), [32]byte{}, false, own)
		if s := digest("of its own tensor, guessed", id, sum, true, own); s != sum {
			t.Errorf("a right guess is answered with %x", s)
		}
		if y, err := p.Get(ctx(t), []path.Copy{{Local: src.All(), Key: a.Desc.Key}}, PutOptions{}); !errors.Is(err,
			path.ErrRights) {
			t.Errorf("a get of a tensor that is pushed: %v, %v", y, err)
		}
		p.send(&control.Complete{ID: id, Code: control.Canceled})
	}

	// The data paths, those that it opens and those that the node has opened to it.
	local := region(t, size)
	for _, via := range paths {
		x, err := near.Notify(ctx(t), nil, PutOptions{Paths: []string{via}})
		wait(t, x, err)
		for end := ctx(t); ; {
			if ch, _ := p.openedChannel(via); ch != nil {
				break
			}
			select {
			case <-time.After(time.Millisecond):
			case <-end.Done():
				t.Fatalf("the peer has no path %s", via)
			}
		}
		for name, desc := range descs {
			if desc.Device {
				continue
			}
			may := desc.Rights & pathRights(rights)
			desc.Rights = path.Read | path.Write // it pretends
			rem := p.Import(desc)
			for kind, right := range map[path.OpKind]path.Rights{path.Put: path.Write, path.Get: path.Read} {
				x, err := p.begin(ctx(t), kind, []path.Copy{rem.At(0, local.All())}, PutOptions{Paths: []string{via}})
				if err == nil {
					err = x.Wait(ctx(t))
				}
				check(fmt.Sprintf("%s %s over %s", account.KindName(kind), name, via), err, may&right != 0)
			}
		}
	}
	for m := range control.Method(64) {
		if name := m.String(); !asked[m] && !strings.HasPrefix(name, "method") &&
			(m != control.MethodUnstage || has(read|write)) {
			t.Errorf("%s was not tried", name)
		}
	}
}

// TestNoRightsNoSession: a node refuses a peer without rights, and says which name has none, where,
// and what gives it some.
func TestNoRightsNoSession(t *testing.T) {
	ca := authority(t)
	id, err := ca.Issue("server", identity.IssueOptions{}) // without rules
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(id.Close)
	var log lockedBuffer
	server := open(t, Options{Identity: id, Listen: []string{loopback},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if s := log.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, "penstock pair allow") {
		t.Errorf("without any rules the log says %q", s)
	}
	client := open(t, Options{Identity: issue(t, ca, "client")})
	_, err = client.Dial(ctx(t), server.Addrs()[0])
	if !errors.Is(err, control.NotPermitted) || Retriable(err) {
		t.Errorf("a peer without rights: %v", err)
	}
	for _, want := range []string{`"client"`, `"server"`, "penstock pair allow client RIGHTS"} {
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: expected %s in it", err, want)
		}
	}
	if n := server.Snapshot().Node.PeersTotal; n != 0 {
		t.Errorf("%d peers were connected", n)
	}
	id.SetRules(everyone(t))
	if _, err := client.Dial(ctx(t), server.Addrs()[0]); err != nil {
		t.Errorf("with rights: %v", err)
	}
	// Where peers show no certificate, Options.Anonymous must give rights.
	socket := "unix://" + filepath.Join(t.TempDir(), "s")
	for _, o := range []Options{{Listen: []string{loopback}}, {Listen: []string{socket}},
		{Listen: []string{socket}, Identity: id}, {Listen: []string{"tcp://0.0.0.0:0"}, Insecure: true}} {
		if n, err := Open(ctx(t), o); !errors.Is(err, ErrNoRights) {
			t.Errorf("%v without Anonymous: %v", o.Listen, err)
			if err == nil {
				n.Close()
			}
		}
	}
	p := newPair(t, Options{Anonymous: identity.List})
	if _, err := p.ab.List(ctx(t), ""); err != nil || p.ba.Rights() != identity.List {
		t.Errorf("a peer without a certificate: rights %v, %v", p.ba.Rights(), err)
	}
	if _, err := p.ab.Lookup(ctx(t), "x"); !errors.Is(err, control.NotPermitted) {
		t.Errorf("a peer without a certificate that may list only: %v", err)
	}
}

// TestBrokenRules: rules with a mistake change nothing, but the node reports them as an error;
// rules that are gone take all rights along.
func TestBrokenRules(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "id")
	ca, _, err := identity.Setup(dir, "server", 0)
	if err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(dir, identity.PolicyFile)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("allow client read\nallow x reed\n")
	if _, err := identity.Open(dir, identity.Options{}); !errors.Is(err, identity.ErrPolicy) ||
		!strings.HasPrefix(err.Error(), rules+":2: ") {
		t.Errorf("at the start: %v", err)
	}
	write("allow client list\n")
	id, err := identity.Open(dir, identity.Options{Interval: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(id.Close)
	var log lockedBuffer
	server := open(t, Options{Identity: id, Listen: []string{loopback},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	events := server.Events(t.Context(), 100)
	client := open(t, Options{Identity: issue(t, ca, "client")})
	p, err := client.Dial(ctx(t), server.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	refused := func(want string) {
		t.Helper()
		all := eventsUntil(t, events, observe.EventIdentityRefused)
		if e := all[len(all)-1]; !strings.HasPrefix(e.Reason, want) {
			t.Errorf("the event says %q, expected %q", e.Reason, want)
		}
		if s := server.Snapshot().Node.Identity.LoadError; !strings.HasPrefix(s, want) {
			t.Errorf("the status says %q, expected %q", s, want)
		}
		if s := log.String(); !strings.Contains(s, "level=ERROR") || !strings.Contains(s, want) {
			t.Errorf("the log says %q, expected %q", s, want)
		}
	}
	write("allow client all\nallow x reed\n") // the node looks within a second
	refused(rules + ":2: ")
	if r := server.Peers()[0].Rights(); r != identity.List {
		t.Errorf("with a mistake in the rules the peer may %v", r)
	}
	if err := os.Remove(rules); err != nil {
		t.Fatal(err)
	}
	soon(t, p.Gone(), "the end of the session")
	refused("identity: " + rules + " was removed")
	if _, err := client.Dial(ctx(t), server.Addrs()[0]); !errors.Is(err, control.NotPermitted) {
		t.Errorf("without the rules: %v", err)
	}
	write("allow client list\n")
	// Another goroutine of the server may be reading the file while it is written.
	until(t, "the rules again", func() bool { return id.Stats().LoadError == "" })
	if _, err := client.Dial(ctx(t), server.Addrs()[0]); err != nil {
		t.Errorf("with the rules again: %v", err)
	} else if s := server.Snapshot().Node.Identity.LoadError; s != "" {
		t.Errorf("mended, but the status says %q", s)
	}
}

// TestIdentityWithoutPeers has a node without peers report rules that break and a certificate that
// is about to end, too.
func TestIdentityWithoutPeers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "id")
	if _, _, err := identity.Setup(dir, "server", 0); err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(dir, identity.PolicyFile)
	if err := os.WriteFile(rules, []byte("allow client list\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var ahead atomic.Int64
	id, err := identity.Open(dir, identity.Options{Clock: func() time.Time {
		return time.Now().Add(time.Duration(ahead.Load()))
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(id.Close)
	warned := make(chan struct{})
	server := open(t, Options{Identity: id, Listen: []string{loopback},
		Logger: slog.New(slog.NewTextHandler(onWrite(func(line string) {
			if strings.Contains(line, "level=WARN") && strings.Contains(line, "penstock pair renew") {
				close(warned)
			}
		}), nil))})
	events := server.Events(t.Context(), 100)
	if err := os.WriteFile(rules, []byte("allow x reed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := eventsUntil(t, events, observe.EventIdentityRefused)
	if e := all[len(all)-1]; !strings.HasPrefix(e.Reason, rules+":1: ") {
		t.Errorf("the event says %q", e.Reason)
	}
	ahead.Store(int64(time.Until(id.Stats().Self.NotAfter) - identity.WarnBefore/2))
	soon(t, warned, "the warning")
	if n := len(server.Peers()); n != 0 {
		t.Errorf("%d peers", n)
	}
}

// onWrite is a writer that calls a function with what is written.
type onWrite func(string)

func (f onWrite) Write(b []byte) (int, error) {
	f(string(b))
	return len(b), nil
}

func TestComplaint(t *testing.T) {
	var c complaint
	at := time.Unix(1, 0)
	for _, x := range []struct {
		what  string
		after time.Duration
		due   bool
	}{
		{"", 0, false},
		{"a", 0, true},
		{"a", complainEvery - 1, false},
		{"b", complainEvery - 1, true},
		{"b", complainEvery, false},
		{"b", 2*complainEvery - 1, true},
		{"", 2 * complainEvery, false},
		{"b", 2 * complainEvery, true},
	} {
		if due := c.due(x.what, at.Add(x.after), complainEvery); due != x.due {
			t.Errorf("%q after %v: %v", x.what, x.after, due)
		}
	}
}
