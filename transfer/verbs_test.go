package transfer

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/testenv"
	fake "github.com/penstock-io/penstock/internal/testenv/fake/verbs"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/path/tcp"
	"github.com/penstock-io/penstock/path/verbs"
)

// TestVerbs moves bytes between two nodes over RDMA, on the stand-in for libibverbs, and takes an export back.
func TestVerbs(t *testing.T) {
	lib, err := fake.Build()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "a C compiler and the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := verbs.New(verbs.Options{Library: lib})
	p := newPair(t, Options{Paths: []path.Driver{d, tcp.New(tcp.Options{})}})
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
	if ex := x.Explain(); ex.Path != verbs.Name || ex.Proof != path.ProofICRC || ex.UserCopies+ex.KernelCopies != 0 || !bytes.Equal(src.All().Bytes(), dst.All().Bytes()) {
		t.Errorf("%v", ex)
	}
	x, err = p.ab.Get(ctx(t), []path.Copy{r.At(0, back.All())}, only)
	wait(t, x, err)
	if <-p.heard; !bytes.Equal(src.All().Bytes(), back.All().Bytes()) {
		t.Error("other bytes came back")
	}
	// RDMA is not encrypted: who asks for that does not get it.
	x, err = p.ab.Put(ctx(t), []path.Copy{r.At(0, src.All())}, PutOptions{Paths: []string{verbs.Name}, Security: path.SecurityEncrypted})
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

// TestMissingPath: what this machine lacks is not offered, and Explain says why; a node that would have nothing else does not open.
func TestMissingPath(t *testing.T) {
	none := verbs.New(verbs.Options{Library: "/nonexistent/libibverbs.so.1"})
	p := newPair(t, Options{Paths: []path.Driver{none, tcp.New(tcp.Options{})}})
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
	if n, err := Open(t.Context(), Options{Paths: []path.Driver{none}}); !errors.Is(err, path.ErrUnavailable) {
		t.Errorf("a node without any path: %v", err)
		if err == nil {
			n.Close()
		}
	}
}
