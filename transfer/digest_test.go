package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/digest"
	"github.com/penstock-io/penstock/transfer/fence"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// settled checks how many leases a region has.
func settled(t testing.TB, r *mem.Region, leases int) {
	t.Helper()
	if n := r.Leases(); n != leases {
		t.Errorf("region %q has %d leases, expected %d", r.Name(), n, leases)
	}
}

func TestDigest(t *testing.T) {
	for _, name := range paths {
		for _, size := range []uint64{0, 1, 100_000, PieceSize + 12345} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				p := newPair(t, Options{})
				src, dst, back := region(t, int(size)+64), region(t, int(size)+64), region(t, int(size)+64)
				fill(src, 11)
				export(t, p.b, dst, "dst", path.Read|path.Write)
				rem := lookup(t, p.ab, "dst")
				local, _ := src.Span(1, size)
				want := sha256.Sum256(local.Bytes())
				o := PutOptions{Paths: []string{name}, Digest: true, Msg: []byte("x")}
				x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(3, local)}, o)
				wait(t, x, err)
				addsUp(t, x)
				if e := x.Explain(); e.Digest != want ||
					!strings.Contains(e.String(), fmt.Sprintf("sha-256 %x of the memory on both sides", want)) {
					t.Errorf("expected digest %x\n%v", want, e)
				}
				if in := <-p.heard; in.ID != x.ID() || string(in.Msg) != "x" {
					t.Errorf("heard %+v", in)
				}
				landing, _ := back.Span(9, size)
				x, err = p.ab.Get(ctx(t), []path.Copy{rem.At(3, landing)}, o)
				wait(t, x, err)
				if x.Explain().Digest != want || sha256.Sum256(landing.Bytes()) != want {
					t.Errorf("get: expected digest %x\n%v", want, x.Explain())
				}
				<-p.heard
				if sum, err := rem.Digest(ctx(t), 3, size); err != nil || sum != want {
					t.Errorf("Remote.Digest: %x, expected %x, %v", sum, want, err)
				}
				unleased(t, src)
				unleased(t, back)
				settled(t, dst, 1)
			})
		}
	}
}

// Many small blocks take several requests, one after the other.
func TestDigestOfManyBlocks(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	const blocks, each = 3 * control.MaxBlocks, 16
	src, dst := region(t, 2*blocks*each), region(t, 2*blocks*each)
	fill(src, 12)
	export(t, p.b, dst, "dst", path.Read|path.Write)
	rem := lookup(t, p.ab, "dst")
	h := sha256.New()
	var copies []path.Copy
	for i := range uint64(blocks) {
		s, _ := src.Span(2*i*each, each)
		h.Write(s.Bytes())
		copies = append(copies, rem.At(2*(blocks-1-i)*each, s))
	}
	x, err := p.ab.Put(ctx(t), copies, PutOptions{Digest: true})
	wait(t, x, err)
	if got := x.Explain().Digest; string(got[:]) != string(h.Sum(nil)) {
		t.Errorf("digest %x, expected %x", got, h.Sum(nil))
	}
}

// A path that damages a byte and says that all is well is caught, whichever side the bytes land on.
func TestDigestCatchesDamage(t *testing.T) {
	for _, kind := range []string{"put", "get", "send", "send by a writer"} {
		for _, size := range []uint64{1, PieceSize + 999} {
			t.Run(fmt.Sprintf("%s/%d", kind, size), func(t *testing.T) {
				d := over("liar")
				o := Options{Paths: []setup.Driver{d}}
				send := strings.HasPrefix(kind, "send")
				if send && kind != "send" {
					o.Anonymous = identity.Write
				}
				p := newPair(t, o)
				p.ignore(t)
				src, dst := region(t, int(size)), region(t, int(size))
				fill(src, 13)
				var victim func() []byte
				if kind == "put" {
					export(t, p.b, dst, "dst", path.Read|path.Write)
				}
				// The paths look at this only once the transfer moves; both nodes use the one
				// driver.
				d.poll = func(q path.Path, events []path.Event) int {
					n := q.Poll(events)
					for _, e := range events[:n] {
						if e.Kind == path.EventDone && e.Err == nil && e.Token&fence.Token == 0 {
							victim()[0] = src.All().Bytes()[0] ^ 4
						}
					}
					return n
				}
				victim = func() []byte { return dst.All().Bytes() }
				local, _ := src.Span(0, size)
				var x *Transfer
				var err error
				var got <-chan arrival
				switch kind {
				case "put":
					x, err = p.ab.Put(ctx(t), []path.Copy{lookup(t, p.ab, "dst").At(0, local)},
						PutOptions{Digest: true})
				case "get":
					export(t, p.b, src, "src", path.Read)
					local, _ = dst.Span(0, size)
					x, err = p.ab.Get(ctx(t), []path.Copy{lookup(t, p.ab, "src").At(0, local)},
						PutOptions{Digest: true})
				default:
					got = receive(ctx(t), p.b, "w")
					victim = func() []byte {
						p.b.mu.Lock()
						defer p.b.mu.Unlock()
						for _, in := range p.b.offers {
							return in.rec.Span.Bytes()
						}
						return make([]byte, size) // the receiver has it already
					}
					x, err = p.ab.SendTensor(ctx(t), "w", tensor.Desc{DType: tensor.U8, Shape: []int64{int64(size)}},
						src.All(), PutOptions{Digest: true})
				}
				if err != nil {
					t.Fatal(err)
				}
				err = x.Wait(ctx(t))
				if !errors.Is(err, path.ErrIntegrity) || !errors.Is(err, control.Integrity) ||
					!strings.Contains(err.Error(), "SHA-256") {
					t.Errorf("%v\n%v", err, x.Explain())
				}
				if e := x.Explain(); e.Digest == [32]byte{} || strings.Contains(e.String(), "both sides") {
					t.Errorf("%v", e)
				}
				if send {
					a := arrived(t, got)
					if !errors.Is(a.err, path.ErrIntegrity) {
						t.Errorf("the receiver was told %v", a.err)
					}
					nothingReceived(t, p.b)
				}
				if kind == "get" {
					unleased(t, dst)
				} else {
					unleased(t, src)
				}
			})
		}
	}
}

// A tensor is pushed with a digest also by a peer that may only write.
func TestSendWithDigest(t *testing.T) {
	for _, rights := range []identity.Rights{identity.All, identity.Write} {
		for _, size := range []int64{0, 7, PieceSize + 1} {
			p := newPair(t, Options{Anonymous: rights})
			src := region(t, int(size)+1)
			fill(src, 14)
			got := receive(ctx(t), p.b, "w")
			x, err := p.ab.SendTensor(ctx(t), "w", tensor.Desc{DType: tensor.U8, Shape: []int64{size}}, src.All(),
				PutOptions{Digest: true})
			wait(t, x, err)
			a := arrived(t, got)
			if a.err != nil {
				t.Fatal(a.err)
			}
			want := sha256.Sum256(src.All().Bytes()[:size])
			if a.r.Digest != want || x.Explain().Digest != want || sha256.Sum256(a.r.Span.Bytes()) != want {
				t.Errorf("%d bytes: received %x, sent %x, expected %x", size, a.r.Digest, x.Explain().Digest, want)
			}
			a.r.Release()
			nothingReceived(t, p.b)
			unleased(t, src)
		}
	}
}

// A peer learns nothing about memory that it may not read, and cannot have more hashed than it may
// ask for.
func TestDigestRefusals(t *testing.T) {
	p := newPair(t, Options{})
	r := region(t, 64<<20)
	wo := export(t, p.b, r, "wo", path.Write)
	ro := export(t, p.b, r, "ro", path.Read)
	gone := export(t, p.b, r, "gone", path.Read)
	if err := gone.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	src := region(t, 4096)
	if _, err := p.ab.Put(ctx(t), []path.Copy{lookup(t, p.ab, "wo").At(0, src.All())},
		PutOptions{Digest: true}); !errors.Is(err, path.ErrRights) {
		t.Errorf("a put with a digest into a write-only export: %v", err)
	}
	forged := ro.Key()
	forged.Secret++
	id := func(n byte) [16]byte { return [16]byte{n} }
	block := func(k path.Key, off, n uint64) []control.Block {
		return []control.Block{{Key: k, Off: off, Len: n}}
	}
	for name, c := range map[string]struct {
		q    control.Digest
		want error
	}{
		"write-only":        {control.Digest{Blocks: block(wo.Key(), 0, 1)}, path.ErrRights},
		"write-only, empty": {control.Digest{Blocks: block(wo.Key(), 0, 0)}, path.ErrRights},
		"forged":            {control.Digest{Blocks: block(forged, 0, 1)}, path.ErrKey},
		"revoked":           {control.Digest{Blocks: block(gone.Key(), 0, 1)}, path.ErrKey},
		"beyond":            {control.Digest{Blocks: block(ro.Key(), r.Len(), 1)}, path.ErrBounds},
		"around":            {control.Digest{Blocks: block(ro.Key(), ^uint64(0), 2)}, path.ErrBounds},
		"too much":          {control.Digest{Blocks: block(ro.Key(), 0, digest.MaxBytes+1)}, control.OverBudget},
		"too much in sum": {control.Digest{Blocks: append(block(ro.Key(), 0, digest.MaxBytes),
			block(ro.Key(), 0, 1)...)},
			control.OverBudget},
		"all there is": {control.Digest{Blocks: append(block(ro.Key(), 0, ^uint64(0)), block(ro.Key(), 0, 2)...)},
			control.OverBudget},
		"not begun": {control.Digest{ID: id(9), At: 5, Blocks: block(ro.Key(), 0, 1)}, control.NotFound},
	} {
		c.q.Last = true
		if _, err := p.ab.request(ctx(t), &c.q); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, expected %v", name, err, c.want)
		}
	}
	// A digest that is not continued where it ended is over.
	begin := &control.Digest{ID: id(1), Blocks: block(ro.Key(), 0, 10)}
	if _, err := p.ab.request(ctx(t), begin); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ab.request(ctx(t), &control.Digest{ID: id(1), At: 11}); !errors.Is(err, control.BadRequest) {
		t.Errorf("continued elsewhere: %v", err)
	}
	if _, err := p.ab.request(ctx(t), &control.Digest{ID: id(1), At: 10}); !errors.Is(err, control.NotFound) {
		t.Errorf("continued after an error: %v", err)
	}
	// Digests that the peer does not continue do not pile up, and the latest survive.
	for i := range digest.MaxKept + 10 {
		q := &control.Digest{Blocks: block(ro.Key(), 0, 1)}
		q.ID[0], q.ID[1] = byte(i), byte(i>>8)
		if _, err := p.ab.request(ctx(t), q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.ab.request(ctx(t), &control.Digest{At: 1}); !errors.Is(err, control.NotFound) {
		t.Errorf("the first one is kept beside %d others: %v", digest.MaxKept+9, err)
	}
	last := &control.Digest{At: 1, Last: true}
	last.ID[0], last.ID[1] = (digest.MaxKept+9)&0xff, (digest.MaxKept+9)>>8
	if _, err := p.ab.request(ctx(t), last); err != nil {
		t.Errorf("the latest was forgotten: %v", err)
	}
	settled(t, r, 2)
}

// A peer that asks for more at once than it may is refused, and the others are not held up by that.
func TestDigestBusy(t *testing.T) {
	p := newPair(t, Options{})
	r := region(t, 4096)
	k := export(t, p.b, r, "ro", path.Read).Key()
	for range cap(p.b.hashing) { // the test takes all turns to hash
		p.b.hashing <- struct{}{}
	}
	q := &control.Digest{Last: true, Blocks: []control.Block{{Key: k, Len: 4096}}}
	done := make(chan error, digest.MaxAsked+1)
	for range digest.MaxAsked + 1 {
		go func() {
			_, err := p.ab.request(context.Background(), q)
			done <- err
		}()
	}
	if err := <-done; !errors.Is(err, control.Busy) {
		t.Errorf("one too many: %v", err)
	}
	for range cap(p.b.hashing) {
		<-p.b.hashing
	}
	for range digest.MaxAsked {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	// The library itself waits for its turn.
	rem := lookup(t, p.ab, "ro")
	for range 4 * digest.MaxAsked {
		go func() {
			_, err := rem.Digest(context.Background(), 0, 4096)
			done <- err
		}()
	}
	for range 4 * digest.MaxAsked {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Revoke does not return while a digest reads the memory, and a digest does not go on for long
// after it.
func TestRevokeWaitsForDigests(t *testing.T) {
	p := newPair(t, Options{})
	r := region(t, 4096)
	x := export(t, p.b, r, "ro", path.Read)
	done, ok := x.use()
	if !ok {
		t.Fatal("the export cannot be used")
	}
	short, cancel := context.WithCancel(ctx(t))
	cancel()
	if err := x.Revoke(short); !errors.Is(err, context.Canceled) {
		t.Errorf("revoked while it is in use: %v", err)
	}
	if _, ok := x.use(); ok {
		t.Error("used after it was revoked")
	}
	settled(t, r, 1)
	done()
	unleased(t, r)
}

// unleased waits until a region has no leases.
func unleased(t testing.TB, r *mem.Region) {
	t.Helper()
	r.Close()
	select {
	case <-r.Unmapped():
	case <-ctx(t).Done():
		t.Fatalf("%d leases are left", r.Leases())
	}
}

// Whatever ends a transfer while its digest is at work, it ends once, and gives back what it holds
// only when nothing reads it.
func TestDigestInterrupted(t *testing.T) {
	for _, how := range []string{"cancel", "context", "peer closes", "node closes", "revoke"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t, Options{})
			p.ignore(t)
			src, dst := region(t, PieceSize+4096), region(t, PieceSize+4096)
			x := export(t, p.b, dst, "dst", path.Read|path.Write)
			for range cap(p.b.hashing) { // the answer does not come: all that is left is the digest
				p.b.hashing <- struct{}{}
			}
			c, cancel := context.WithCancel(ctx(t))
			defer cancel()
			put, err := p.ab.Put(c, []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())},
				PutOptions{Digest: true, Paths: []string{"tcp"}})
			if err != nil {
				t.Fatal(err)
			}
			for put.Progress() < 1 {
				select {
				case <-put.Done():
					t.Fatal(put.Err())
				case <-time.After(time.Millisecond):
				}
			}
			var want error
			switch how {
			case "cancel":
				put.Cancel()
				want = path.ErrCanceled
			case "context":
				cancel()
				want = path.ErrCanceled
			case "peer closes":
				p.ba.Close()
				want = ErrPeerLost
			case "node closes":
				go p.b.Close() // it waits for the peer's requests
				want = ErrPeerLost
			case "revoke":
				if err := x.Revoke(ctx(t)); err != nil {
					t.Error(err)
				}
				want = path.ErrKey // it is gone before the request is looked at
			}
			if how == "revoke" {
				for range cap(p.b.hashing) {
					<-p.b.hashing
				}
			}
			if err := put.Wait(ctx(t)); !errors.Is(err, want) {
				t.Errorf("%v, expected %v", err, want)
			}
			unleased(t, src)
			if how != "revoke" {
				for range cap(p.b.hashing) {
					<-p.b.hashing
				}
			}
		})
	}
}

// A tensor whose digest was promised is not handed out without it, nor with one of something else.
func TestSendWithoutPromisedDigest(t *testing.T) {
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{4096}}
	wire, err := d.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"none", "of a part", "in another order", "of another export", "of other bytes",
		"of all"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t, Options{})
			src := region(t, 4096)
			fill(src, 15)
			other := export(t, p.b, src, "other", path.Read)
			got := receive(ctx(t), p.b, "w")
			id := p.a.nextID()
			r, err := p.ab.request(ctx(t), &control.Offer{ID: id, Name: "w", Size: 4096, Tensor: wire, Digest: true})
			if err != nil {
				t.Fatal(err)
			}
			a, err := control.Parse[control.Accept](r.Body)
			if err != nil {
				t.Fatal(err)
			}
			rem := p.ab.Import(a.Desc)
			// The bytes, by a transfer that says nothing of the offer.
			x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
			wait(t, x, err)
			<-p.heard
			sum := sha256.Sum256(src.All().Bytes())
			q := &control.Digest{ID: id, Last: true, Expect: sum, Blocks: []control.Block{{Key: a.Desc.Key, Len: 4096}}}
			var want error
			switch how {
			case "of a part":
				q.Blocks[0].Len, want = 4095, control.BadRequest
			case "in another order":
				q.Blocks = []control.Block{{Key: a.Desc.Key, Off: 2048, Len: 2048}, {Key: a.Desc.Key, Len: 2048}}
				q.Expect = sha256.Sum256(append(bytes.Clone(src.All().Bytes()[2048:4096]), src.All().Bytes()[:2048]...))
				want = control.BadRequest
			case "of another export":
				q.Blocks[0].Key, want = other.Key(), control.BadRequest
			case "of other bytes":
				q.Expect[0]++
			}
			if how != "none" {
				if _, err := p.ab.request(ctx(t), q); want == nil && err != nil || !errors.Is(err, want) {
					t.Errorf("%v, expected %v", err, want)
				}
			}
			local, _ := src.Span(0, 4096)
			if how != "of other bytes" { // then it is known already
				x, err = p.ab.begin(ctx(t), path.Put, []path.Copy{rem.At(0, local)}, PutOptions{id: id})
				wait(t, x, err)
			}
			res := arrived(t, got)
			switch how {
			case "of all":
				if res.err != nil || res.r.Digest != sum {
					t.Fatalf("%+v", res)
				}
				res.r.Release()
			case "of other bytes":
				if !errors.Is(res.err, path.ErrIntegrity) {
					t.Error(res.err)
				}
			default:
				if !errors.Is(res.err, path.ErrProtocol) {
					t.Error(res.err)
				}
			}
			if err := other.Revoke(ctx(t)); err != nil {
				t.Error(err)
			}
			nothingReceived(t, p.b)
		})
	}
}

// Paths that corrupt what gets bring, delay, fail and go down: with a digest a transfer that
// succeeds has the right bytes.
func TestFaultyDigests(t *testing.T) {
	good, damaged, bad := 0, 0, 0
	for seed := uint64(0); drawn(seed, good == 0 || damaged == 0 || bad == 0); seed++ {
		plan := fault.Random(fault.Operations, seed, 12, fault.Corrupt, fault.Corrupt, fault.Corrupt, fault.Delay,
			fault.Reorder, fault.Fail, fault.Cut)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d, err := fault.NewDriver(tcp.New(tcp.Options{CongestionControl: tcp.CongestionSystem}), plan)
			if err != nil {
				t.Fatal(err)
			}
			p := newPair(t, Options{Paths: []setup.Driver{d}})
			p.ignore(t)
			src, dst := region(t, 40_000), region(t, 40_000)
			fill(src, seed)
			export(t, p.b, src, "src", path.Read)
			r := lookup(t, p.ab, "src")
			for range 16 {
				clear(dst.All().Bytes())
				x, err := p.ab.Get(ctx(t), []path.Copy{r.At(0, dst.All())}, PutOptions{Digest: true})
				if err == nil {
					err = x.Wait(ctx(t))
				}
				same := bytes.Equal(src.All().Bytes(), dst.All().Bytes())
				switch {
				case err == nil && !same:
					t.Fatalf("wrong bytes, plan %q", plan)
				case err == nil:
					good++
				case errors.Is(err, path.ErrIntegrity) && !errors.Is(err, fault.ErrInjected):
					damaged++
				default:
					bad++
					if !expected(err) {
						t.Errorf("%v, plan %q", err, plan)
					}
				}
			}
			unleased(t, dst)
		})
	}
	t.Logf("%d good, %d damaged, %d bad", good, damaged, bad)
	if good == 0 || damaged == 0 || bad == 0 {
		t.Errorf("%d transfers succeeded, %d were found damaged, %d failed: expected some of each", good, damaged, bad)
	}
}

// A path that goes down under a transfer, or while only its digest is missing, does not end it: the
// digest is of all the bytes, whichever path brought them.
func TestDigestFailover(t *testing.T) {
	for _, when := range []string{"middle", "end"} {
		t.Run(when, func(t *testing.T) {
			s := newTwoPaths(t, PieceSize+4096)
			if when == "middle" {
				s.hold.Store(true)
			} else {
				for range cap(s.b.hashing) {
					s.b.hashing <- struct{}{}
				}
			}
			x, err := s.p.Put(ctx(t), []path.Copy{s.rem.At(0, s.src.All())}, PutOptions{Digest: true})
			if err != nil {
				t.Fatal(err)
			}
			for when == "end" && x.Progress() < 1 {
				select {
				case <-x.Done():
					t.Fatal(x.Err())
				case <-time.After(time.Millisecond):
				}
			}
			nodeChannel(t, s.a, "alpha").shut(errCut)
			if when == "end" {
				for range cap(s.b.hashing) {
					<-s.b.hashing
				}
			}
			wait(t, x, nil)
			if e := x.Explain(); e.Digest != sha256.Sum256(s.src.All().Bytes()) || e.Path != "beta" ||
				len(e.Failovers) != 1 {
				t.Errorf("%v", e)
			}
			if !bytes.Equal(s.src.All().Bytes(), s.dst.All().Bytes()) {
				t.Error("the bytes differ")
			}
			for end := ctx(t); s.heard.Load() < 3; time.Sleep(time.Millisecond) { // two notifications opened the paths
				if end.Err() != nil {
					t.Fatalf("b heard %d times", s.heard.Load())
				}
			}
			if s.heardTwice.Load() != 0 {
				t.Error("b heard of it twice")
			}
			unleased(t, s.src)
		})
	}
}

// The digests may be known before the transfer has a path: those of nothing are, on a busy machine.
func TestDigestBeforeThePath(t *testing.T) {
	for _, kind := range []string{"put", "get", "put damaged"} {
		for _, name := range paths {
			t.Run(kind+"/"+name, func(t *testing.T) {
				p := newPair(t, Options{})
				p.ignore(t)
				src, dst := region(t, 64), region(t, 64)
				export(t, p.b, dst, "dst", path.Read|path.Write)
				local, _ := src.Span(1, 0)
				const stream = 7
				if !p.ab.streams.enter(&Transfer{request: request{stream: stream}}) {
					// whose turn it is; the other one waits without a path
					t.Fatal("the stream is taken")
				}
				begin := p.ab.Put
				if kind == "get" {
					begin = p.ab.Get
				}
				x, err := begin(ctx(t), []path.Copy{lookup(t, p.ab, "dst").At(3, local)},
					PutOptions{Paths: []string{name}, Digest: true, Stream: stream, Msg: []byte("x")})
				if err != nil {
					t.Fatal(err)
				}
				var want error
				if kind == "put damaged" { // the peer says so
					want = path.ErrIntegrity
					asker := digest.NewAsker(p.ab.ctx, p.ab, func(*control.Digest) (*control.Response, error) {
						body, err := control.AppendBody(nil, &control.DigestSum{Sum: [32]byte{1}})
						return &control.Response{Body: body}, err
					}, p.ab.maxBody)
					x.digest = asker.New(digest.Work{ID: x.id, Kind: x.kind, Copies: x.m.Copies()}, (*compared)(x))
				}
				x.digest.Start()
				until(t, "the comparison", func() bool {
					known, _ := x.digest.Outcome()
					return known
				})
				p.ab.start(p.ab.streams.leave(stream))
				if err := x.Wait(ctx(t)); !errors.Is(err, want) || err == nil != (want == nil) {
					t.Errorf("%v, expected %v\n%v", err, want, x.Explain())
				}
				unleased(t, src)
			})
		}
	}
}

// A transfer that is canceled ends once, with one error, while its digests are compared: the
// digester and the channel do not meet in its state.
func TestDigestAndCancel(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	export(t, p.b, region(t, 64<<10), "x", path.Read|path.Write)
	copies := []path.Copy{lookup(t, p.ab, "x").At(0, region(t, 64<<10).All())}
	for i := range 300 {
		var puts []*Transfer
		for range 8 {
			x, err := p.ab.Put(ctx(t), copies, PutOptions{Paths: []string{paths[i%2]}, Digest: true})
			if err != nil {
				t.Fatal(err)
			}
			go x.Cancel()
			puts = append(puts, x)
		}
		for _, x := range puts {
			if err := x.Wait(ctx(t)); err != nil && !errors.Is(err, path.ErrCanceled) {
				t.Fatal(err)
			}
		}
	}
}
