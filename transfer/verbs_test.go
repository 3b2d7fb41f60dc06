package transfer

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/ibvmem/cardtest"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
	"github.com/penstock-io/penstock/transfer/path/verbs"
)

// verbsPair is two nodes with RDMA between them, on the stand-in for libibverbs, and TCP.
func verbsPair(t *testing.T) *pair {
	t.Helper()
	lib, err := fake.Build()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "a C compiler and the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return newPair(t, Options{Paths: []setup.Driver{verbs.New(verbs.Options{Library: lib}), tcp.New(tcp.Options{})}})
}

// TestVerbs moves bytes between two nodes over RDMA, and takes an export back.
func TestVerbs(t *testing.T) {
	p := verbsPair(t)
	const size = 3 << 20
	src, dst, back := region(t, size), region(t, size), region(t, size)
	fill(src, 7)
	e := export(t, p.b, dst, "dst", path.Read|path.Write)
	r := lookup(t, p.ab, "dst")
	only := PutOptions{Paths: []string{verbs.Name}, Msg: []byte("over RDMA")}
	x, err := p.ab.Put(ctx(t), []path.Copy{r.At(0, src.All())}, only)
	wait(t, x, err)
	if in := <-p.heard; in.Path != verbs.Name || in.Bytes != size || string(in.Msg) != "over RDMA" {
		t.Errorf("the receiver heard %+v", in)
	}
	if ex := x.Explain(); ex.Path != verbs.Name || !strings.HasSuffix(ex.Carrier, " port 1, RC") ||
		ex.Proof != path.ProofICRC || ex.UserCopies+ex.KernelCopies != 0 ||
		!bytes.Equal(src.All().Bytes(), dst.All().Bytes()) {
		t.Errorf("%v", ex)
	}
	x, err = p.ab.Get(ctx(t), []path.Copy{r.At(0, back.All())}, only)
	wait(t, x, err)
	if <-p.heard; !bytes.Equal(src.All().Bytes(), back.All().Bytes()) {
		t.Error("other bytes came back")
	}
	// RDMA is not encrypted: a put that asks for encryption does not get it.
	x, err = p.ab.Put(ctx(t), []path.Copy{r.At(0, src.All())},
		PutOptions{Paths: []string{verbs.Name}, Security: path.SecurityEncrypted})
	if err == nil {
		err = x.Wait(ctx(t))
	}
	if !errors.Is(err, ErrSecurity) {
		t.Errorf("an encrypted put over RDMA: %v", err)
	}
	if err := e.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	x, err = p.ab.Put(ctx(t), []path.Copy{r.At(0, src.All())}, only)
	if err == nil {
		err = x.Wait(ctx(t))
	}
	if !errors.Is(err, path.ErrRevoked) && !errors.Is(err, path.ErrKey) {
		t.Errorf("a put into what was revoked: %v", err)
	}
}

// TestVerbsStaged: memory that neither CPU nor adapter reaches goes by way of slots over RDMA as
// over other paths.
func TestVerbsStaged(t *testing.T) {
	for _, where := range []string{"local", "remote", "both"} {
		t.Run(where, func(t *testing.T) {
			var da, db *fakeDevice
			if where != "remote" {
				da = newFakeDevice(t, "card of a")
			}
			if where != "local" {
				db = newFakeDevice(t, "card of b")
			}
			p := verbsPair(t)
			const size = 9<<20 + 12345
			src, sb := anyMemory(t, da, size)
			dst, rb := anyMemory(t, db, size)
			back, bb := anyMemory(t, da, size)
			fillBytes(sb, 3)
			export(t, p.b, dst, "dst", path.Read|path.Write)
			r := lookup(t, p.ab, "dst")
			local, _ := src.Span(0, size)
			x, err := p.ab.Put(ctx(t), []path.Copy{r.At(0, local)}, PutOptions{Paths: []string{verbs.Name}})
			wait(t, x, err)
			<-p.heard
			e := x.Explain()
			if e.Path != verbs.Name || e.Local.Bytes != size*b2u(da != nil) || e.Remote.Bytes != size*b2u(db != nil) ||
				!bytes.Equal(rb[:size], sb[:size]) {
				t.Errorf("put: %v", e)
			}
			local, _ = back.Span(0, size)
			x, err = p.ab.Get(ctx(t), []path.Copy{r.At(0, local)}, PutOptions{Paths: []string{verbs.Name}})
			wait(t, x, err)
			<-p.heard
			if e := x.Explain(); e.Path != verbs.Name || e.Staged != e.Local.Bytes+e.Remote.Bytes || e.Staged == 0 ||
				!bytes.Equal(bb[:size], sb[:size]) {
				t.Errorf("get: %v", e)
			}
		})
	}
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// TestVerbsDirect: memory of cards that adapters reach, at both sides, is read and written by them,
// without a copy anywhere. Where the peer's card gives its memory to no adapter, the same path
// brings it by staging.
func TestVerbsDirect(t *testing.T) {
	p := verbsPair(t)
	const size = 3 << 20
	a := cardtest.New(t, cardtest.Options{DMABuf: true})
	src, back := a.Region("src", size), a.Region("back", size)
	fillBytes(a.Written(src), 5)
	for _, c := range []struct {
		name   string
		card   cardtest.Options
		staged bool
	}{
		{"reached", cardtest.Options{DMABuf: true, Flush: true}, false},
		{"not reached", cardtest.Options{}, true},
	} {
		b := cardtest.New(t, c.card)
		dst := b.Region("dst", size)
		x := export(t, p.b, dst, c.name, path.Read|path.Write)
		r := lookup(t, p.ab, c.name)
		put, err := p.ab.Put(ctx(t), []path.Copy{r.At(0, src.All())}, PutOptions{Paths: []string{verbs.Name}})
		wait(t, put, err)
		<-p.heard
		e := put.Explain()
		if e.Path != verbs.Name || (e.Staged > 0) != c.staged || e.UserCopies+e.KernelCopies != 0 ||
			e.Proof != path.ProofICRC || !bytes.Equal(b.Seen(dst), a.Seen(src)) {
			t.Errorf("%s: put: %v", c.name, e)
		}
		clear(a.Written(back))
		get, err := p.ab.Get(ctx(t), []path.Copy{r.At(0, back.All())}, PutOptions{Paths: []string{verbs.Name}})
		wait(t, get, err)
		<-p.heard
		if e := get.Explain(); e.Path != verbs.Name || (e.Staged > 0) != c.staged ||
			!bytes.Equal(a.Seen(back), a.Seen(src)) {
			t.Errorf("%s: get: %v", c.name, e)
		}
		if err := x.Revoke(ctx(t)); err != nil {
			t.Error(err)
		}
	}
}

// TestMissingPath: what this machine lacks is not offered, and Explain says why; a node that would
// have nothing else does not open.
func TestMissingPath(t *testing.T) {
	none := verbs.New(verbs.Options{Library: "/nonexistent/libibverbs.so.1"})
	p := newPair(t, Options{Paths: []setup.Driver{none, tcp.New(tcp.Options{})}})
	src, dst := region(t, 4096), region(t, 4096)
	export(t, p.b, dst, "dst", path.Read|path.Write)
	r := lookup(t, p.ab, "dst")
	x, err := p.ab.Put(ctx(t), []path.Copy{r.At(0, src.All())}, PutOptions{})
	wait(t, x, err)
	if ex := x.Explain(); ex.Path != tcp.Name || !strings.Contains(ex.String(), "libibverbs") {
		t.Errorf("%v", ex)
	}
	x, err = p.ab.Put(ctx(t), []path.Copy{r.At(0, src.All())}, PutOptions{Paths: []string{verbs.Name}})
	if err == nil {
		err = x.Wait(ctx(t))
	}
	if !errors.Is(err, path.ErrUnavailable) || Retriable(err) || !strings.Contains(err.Error(), "libibverbs") {
		t.Errorf("a put by a path that is missing: %v (to be tried again: %v)", err, Retriable(err))
	}
	if q, err := p.ab.OpenQueue(ctx(t), QueueOptions{Path: verbs.Name, Name: "q"}); !errors.Is(err,
		path.ErrUnavailable) || !strings.Contains(err.Error(), "libibverbs") {
		t.Errorf("a queue on a path that is missing: %v, %v", q, err)
	}
	if n, err := Open(t.Context(), Options{Paths: []setup.Driver{none}}); !errors.Is(err, path.ErrUnavailable) {
		t.Errorf("a node without any path: %v", err)
		if err == nil {
			n.Close()
		}
	}
}
