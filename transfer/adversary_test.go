package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// The adversary is a peer with a valid certificate that may read one thing, and tries everything
// else: it speaks the protocol through its own node's innards, without the checks that a node makes
// before it asks. (Peers that break the frames themselves are in the hostile tests of
// transfer/path/tcp, transfer/path/shm and transfer/control.)

// arena is a server with memory that the adversary is after, and a victim that works all the time.
type arena struct {
	t       *testing.T
	server  *Node
	policy  *policy
	ca      *identity.Authority
	regions map[string]*mem.Region
	exports map[string]*Export
	sums    map[string][32]byte
	victim  *Peer // of the victim's node
	theirs  *Peer // of the server's node: the victim
	mallory *Peer // of the adversary's node
	met     chan *Peer
}

const arenaSize = 64 << 10

func newArena(t *testing.T) *arena {
	a := &arena{t: t, ca: authority(t), met: make(chan *Peer, 64), regions: map[string]*mem.Region{},
		exports: map[string]*Export{}, sums: map[string][32]byte{},
		policy: &policy{by: map[string]identity.Rights{"victim": identity.All, "mallory": identity.Read,
			"partner": identity.All}}}
	a.server = open(t, Options{Identity: issue(t, a.ca, "server"), Listen: []string{loopback}, Policy: a.policy,
		OnPeer: func(p *Peer) {
			a.met <- p
		}})
	a.victim, a.theirs = a.dial("victim")
	a.mallory, _ = a.dial("mallory")
	for i, x := range []struct {
		name   string
		export bool
		o      ExportOptions
	}{
		{"public", true, ExportOptions{Rights: path.Read}},
		{"drop", true, ExportOptions{Rights: path.Write}},
		{"both", true, ExportOptions{Rights: path.Read | path.Write}},
		{"mine", true, ExportOptions{Rights: path.Read | path.Write, Peer: a.theirs}},
		{"gone", true, ExportOptions{Rights: path.Read | path.Write}},
		{"vault", false, ExportOptions{}},
	} {
		r := region(t, arenaSize)
		fill(r, uint64(100+i))
		a.regions[x.name] = r
		if x.export {
			x.o.Name = x.name
			e, err := a.server.Export(r.All(), x.o)
			if err != nil {
				t.Fatal(err)
			}
			a.exports[x.name] = e
		}
		a.sums[x.name] = sha256.Sum256(r.All().Bytes())
	}
	return a
}

// dial connects a node of that name and returns both ends.
func (a *arena) dial(name string) (near, far *Peer) {
	a.t.Helper()
	p, err := open(a.t, Options{Identity: issue(a.t, a.ca, name)}).Dial(ctx(a.t), a.server.Addrs()[0])
	if err != nil {
		a.t.Fatal(err)
	}
	return p, <-a.met
}

// untouched checks that nothing in the server's memory has changed.
func (a *arena) untouched(after string) {
	a.t.Helper()
	for name, want := range a.sums {
		if sha256.Sum256(a.regions[name].All().Bytes()) != want {
			a.t.Fatalf("%s: %q was changed", after, name)
		}
	}
}

// rawPath is a path of a session, to be used without the node.
func (a *arena) rawPath(p *Peer, driver string) path.Path {
	a.t.Helper()
	pth, _, _, err := p.dialPath(ctx(a.t), driver, QueueOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { pth.Close() })
	return pth
}

// do posts one operation and waits for its end.
func (a *arena) do(pth path.Path, op path.Op) error {
	op.Token = 1
	var ev [16]path.Event
	for {
		n, err := pth.Post([]path.Op{op})
		if n == 1 {
			break
		}
		if !errors.Is(err, path.ErrFull) {
			return err
		}
		pth.Poll(ev[:])
	}
	for c := ctx(a.t); c.Err() == nil; {
		for _, e := range ev[:pth.Poll(ev[:])] {
			switch e.Kind {
			case path.EventDone:
				return e.Err
			case path.EventDown:
				return e.Err
			}
		}
	}
	return context.DeadlineExceeded
}

// work lets the victim put and get until stop is called, which checks that it was not disturbed.
func (a *arena) work() (stop func()) {
	x, err := a.server.Export(region(a.t, arenaSize).All(),
		ExportOptions{Name: "work", Rights: path.Read | path.Write, Peer: a.theirs})
	if err != nil {
		a.t.Fatal(err)
	}
	rem := lookup(a.t, a.victim, "work")
	src, dst := region(a.t, arenaSize), region(a.t, arenaSize)
	quit, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for round := uint64(1); ; round++ {
			select {
			case <-quit:
				done <- nil
				return
			default:
			}
			fill(src, round)
			via := PutOptions{Paths: []string{paths[round%2]}}
			for _, begin := range []func() (*Transfer, error){
				func() (*Transfer, error) { return a.victim.Put(ctx(a.t), []path.Copy{rem.At(0, src.All())}, via) },
				func() (*Transfer, error) { return a.victim.Get(ctx(a.t), []path.Copy{rem.At(0, dst.All())}, via) },
			} {
				x, err := begin()
				if err == nil {
					err = x.Wait(ctx(a.t))
				}
				if err != nil {
					done <- err
					return
				}
			}
			if !bytes.Equal(src.All().Bytes(), dst.All().Bytes()) {
				done <- fmt.Errorf("round %d: the bytes differ", round)
				return
			}
		}
	}()
	return func() {
		close(quit)
		if err := <-done; err != nil {
			a.t.Errorf("the victim was disturbed: %v", err)
		}
		if err := x.Revoke(ctx(a.t)); err != nil {
			a.t.Error(err)
		}
	}
}

// TestAdversaryReferences tries every reference that the adversary may not use, over every path.
func TestAdversaryReferences(t *testing.T) {
	a := newArena(t)
	key := func(name string) path.Key { return a.exports[name].Key() }
	stop := a.work()
	defer stop()
	if err := a.exports["gone"].Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	local := region(t, 2*arenaSize)
	for _, driver := range paths {
		type attempt struct {
			what string
			kind path.OpKind
			key  path.Key
			off  uint64
			n    uint64
			want error
		}
		public := key("public")
		list := []attempt{
			{"what it may", path.Get, public, 0, arenaSize, nil},
			{"put without the right, where the export permits it", path.Put, key("both"), 0, 8, path.ErrRights},
			{"put where the export does not permit it", path.Put, public, 0, 8, path.ErrRights},
			{"put into a drop box", path.Put, key("drop"), 0, 8, path.ErrRights},
			{"get from a drop box", path.Get, key("drop"), 0, 8, path.ErrRights},
			{"get what is another peer's", path.Get, key("mine"), 0, 8, path.ErrKey},
			{"put into what is another peer's", path.Put, key("mine"), 0, 8, path.ErrKey},
			{"get what was revoked", path.Get, key("gone"), 0, 8, path.ErrKey},
			{"put into what was revoked", path.Put, key("gone"), 0, 8, path.ErrKey},
			{"one byte behind the end", path.Get, public, arenaSize, 1, path.ErrBounds},
			{"over the end", path.Get, public, arenaSize - 1, 2, path.ErrBounds},
			{"from far behind", path.Get, public, math.MaxUint64 - 7, 7, path.ErrBounds},
			{"more than there is", path.Get, public, 0, arenaSize + 1, path.ErrBounds},
			{"no key", path.Get, path.Key{}, 0, 1, path.ErrKey},
		}
		var guesses []attempt
		b := public.Append(nil)
		for bit := range 8 * len(b) {
			f := bytes.Clone(b)
			f[bit/8] ^= 1 << (bit % 8)
			guesses = append(guesses, attempt{fmt.Sprintf("bit %d of the key flipped", bit), path.Get, path.ParseKey(f),
				0, 8,
				path.ErrKey})
		}
		for i := range uint32(32) {
			for epoch := range uint32(16) {
				k := path.Key{Index: i, Epoch: epoch, Secret: public.Secret}
				if k != public {
					guesses = append(guesses, attempt{fmt.Sprintf("index %d epoch %d", i, epoch), path.Get, k, 0, 8,
						path.ErrKey})
				}
			}
		}
		rand.Shuffle(len(guesses), func(i, j int) { guesses[i], guesses[j] = guesses[j], guesses[i] })
		list = append(list, guesses[:testenv.Rounds(len(guesses))]...)
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		pth := a.rawPath(a.mallory, driver)
		refused := 0
		for _, x := range list {
			clear(local.All().Bytes())
			s, err := local.Span(0, x.n)
			if err != nil {
				t.Fatal(err)
			}
			err = a.do(pth, path.Op{Kind: x.kind, Copies: []path.Copy{{Local: s, Key: x.key, RemoteOff: x.off}}})
			if x.want == path.ErrKey && errors.Is(err, path.ErrRevoked) {
				err = path.ErrKey // the path tells the holder of the key that the export is revoked
			}
			if !errors.Is(err, x.want) {
				t.Errorf("%s: %s: %v, expected %v", driver, x.what, err, x.want)
			}
			if x.want == nil {
				continue
			}
			refused++
			if !zeros(local.All().Bytes()) {
				t.Errorf("%s: %s: refused, but bytes came", driver, x.what)
			}
			if errors.Is(err, path.ErrDown) { // that is a way to refuse as well
				pth = a.rawPath(a.mallory, driver)
			}
		}
		if refused < testenv.Rounds(600) {
			t.Errorf("%s: only %d attempts", driver, refused)
		}
		a.untouched(driver)
	}
}

func zeros(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// TestAdversaryRequests asks for everything that a peer with the right to read may not have, and
// for too much of what it may.
func TestAdversaryRequests(t *testing.T) {
	a := newArena(t)
	stop := a.work()
	defer stop()
	m := a.mallory
	for _, c := range []struct {
		what string
		q    control.Query
		want error
	}{
		{"a list", &control.List{}, control.NotPermitted},
		{"a name of another peer", &control.Lookup{Name: "mine"}, control.NotFound},
		{"a name that is not exported", &control.Lookup{Name: "vault"}, control.NotFound},
		{"a place on the disk", &control.Lookup{Name: "../../etc/passwd"}, control.NotFound},
		{"to push a tensor", &control.Offer{ID: observe.NewID(m.node.instance, 9), Name: "w", Size: 8}, control.NotPermitted},
		{"what became of the victim's transfer", &control.Delivered{IDs: [][16]byte{observe.NewID(a.victim.node.instance, 1)}}, control.BadRequest},
		{"a path that there is not", &control.OpenPath{Path: "rdma"}, control.Unsupported},
		{"a huge window", &control.OpenPath{Path: "tcp", Window: math.MaxUint32}, control.BadRequest},
		{"a queue that nobody accepts", &control.OpenPath{Path: "tcp", Queue: "q"}, control.NotFound},
		{"to take down a path that it does not have", &control.PathDown{PathID: 1 << 60}, nil},
		{"the end of the victim's session", &control.EndSessions{Sessions: [][16]byte{a.victim.id}}, nil},
	} {
		if _, err := m.request(ctx(t), c.q); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, expected %v", c.what, err, c.want)
		}
	}
	// Paths without end: it is invited, and never comes.
	var busy, invited int
	for range 2 * maxPaths {
		switch _, err := m.request(ctx(t), &control.OpenPath{Path: "tcp"}); {
		case err == nil:
			invited++
		case errors.Is(err, control.Busy):
			busy++
		default:
			t.Fatal(err)
		}
	}
	if busy == 0 || invited > maxPaths {
		t.Errorf("invited %d times, refused %d times", invited, busy)
	}
	a.untouched("requests")
}

// TestAdversaryToken uses an invitation that was made for the victim. The adversary cannot compute
// the secret that goes with it.
func TestAdversaryToken(t *testing.T) {
	a := newArena(t)
	r, err := a.victim.request(ctx(t), &control.OpenPath{Path: "tcp"})
	if err != nil {
		t.Fatal(err)
	}
	offer, err := control.Parse[control.PathOffer](r.Body)
	if err != nil {
		t.Fatal(err)
	}
	offer.Offer.Addr = a.mallory.raw.RemoteAddr().String()
	own, err := a.mallory.secret(offer.Offer.Token)
	if err != nil {
		t.Fatal(err)
	}
	d := a.mallory.node.driver("tcp").(setup.ListenDriver)
	for what, secret := range map[string][]byte{"its own secret": own, "no secret": nil} {
		cfg := a.mallory.pathConfig(0, 0, false)
		cfg.Secret = secret
		pth, err := d.Dial(ctx(t), offer.Offer, cfg)
		if err != nil {
			continue // refused at the door
		}
		local := region(t, arenaSize)
		err = a.do(pth, path.Op{Kind: path.Get, Copies: []path.Copy{{Local: local.All(),
			Key: a.exports["mine"].Key()}}})
		if err == nil || !zeros(local.All().Bytes()) {
			t.Errorf("with %s: %v, bytes came: %v", what, err, !zeros(local.All().Bytes()))
		}
		pth.Close()
	}
	a.untouched("a stolen invitation")
	stop := a.work()
	stop()
}

// TestAdversaryRevocation takes an export away from a peer that reads and writes it as fast as it
// can. When Revoke has returned, nothing that the server writes is ever read, and nothing that the
// peer writes arrives.
func TestAdversaryRevocation(t *testing.T) {
	a := newArena(t)
	for _, driver := range paths {
		t.Run(driver, func(t *testing.T) {
			partner, _ := a.dial("partner")
			r := region(t, 1<<20)
			x, err := a.server.Export(r.All(), ExportOptions{Name: "contested " + driver,
				Rights: path.Read | path.Write})
			if err != nil {
				t.Fatal(err)
			}
			rem := lookup(t, partner, "contested "+driver)
			const theirs, marker = 0x5a, 0xc3
			src, dst := region(t, 1<<20), region(t, 1<<20)
			for i := range src.All().Bytes() {
				src.All().Bytes()[i] = theirs
			}
			quit := make(chan struct{})
			began := make(chan struct{}, 1)
			var wg sync.WaitGroup
			for _, kind := range []path.OpKind{path.Put, path.Get} {
				wg.Add(1)
				go func() {
					defer wg.Done()
					local := src
					if kind == path.Get {
						local = dst
					}
					for {
						select {
						case <-quit:
							return
						default:
						}
						partner.Import(rem.Desc) // as if it did not know of the revocation
						y, err := partner.begin(context.Background(), kind, []path.Copy{rem.At(0, local.All())},
							PutOptions{Paths: []string{driver}})
						if err == nil {
							y.Wait(context.Background())
						}
						select {
						case began <- struct{}{}:
						default:
						}
						if kind == path.Get && bytes.IndexByte(dst.All().Bytes(), marker) >= 0 {
							t.Error("memory was read after its export was revoked")
							return
						}
					}
				}()
			}
			<-began
			if err := x.Revoke(ctx(t)); err != nil {
				t.Fatal(err)
			}
			b := r.All().Bytes()
			for i := range b {
				b[i] = marker
			}
			for range 200 { // it goes on trying
				<-began
			}
			close(quit)
			wg.Wait()
			if at := bytes.IndexByte(b, theirs); at >= 0 {
				t.Errorf("byte %d was written after the export was revoked", at)
			}
		})
	}
	a.untouched("revocation")
}
