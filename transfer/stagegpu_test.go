package transfer_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// TestStagedGPU moves bytes between the memories of two devices of the reference runtime, which
// hides them from the CPU, through two nodes, over each path, and compares what comes back; both
// nodes pin their staging memory by the runtime.
func TestStagedGPU(t *testing.T) {
	const size = 5<<20 + 4096
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	rt, err := host.Open(host.Options{Memory: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	c, err := rt.Devices()[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := gpumem.New(c, gpumem.Options{Opaque: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	device := func() *mem.Region {
		r, err := mem.Alloc(mem.Options{Name: "device", Kind: mem.Device, Size: size, Provider: p})
		if err != nil {
			t.Fatal(err)
		}
		if r.All().Bytes() != nil {
			t.Fatal("the CPU reaches the memory")
		}
		return r
	}
	src, dst := device(), device()
	defer src.Close()
	defer dst.Close()
	plain, err := mem.Alloc(mem.Options{Name: "plain", Size: size})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	want, b := make([]byte, size), plain.All().Bytes()[:size]
	for i := range want {
		want[i] = byte(rand.Uint32())
	}
	copy(b, want)
	m, err := src.Mover().Store(0, mem.Span{Region: plain, Len: size})
	if err == nil {
		err = m.Wait(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	server, err := transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Name: "server",
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := transfer.Open(ctx, transfer.Options{Name: "client"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := server.Export(mem.Span{Region: dst, Len: size},
		transfer.ExportOptions{Name: "dst", Rights: path.Read | path.Write}); err != nil {
		t.Fatal(err)
	}
	peer, err := client.Dial(ctx, server.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	remote, err := peer.Lookup(ctx, "dst")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"shm", "tcp"} {
		o := transfer.PutOptions{Paths: []string{name}, Digest: true}
		x, err := peer.Put(ctx, []path.Copy{remote.At(0, mem.Span{Region: src, Len: size})}, o)
		if err == nil {
			err = x.Wait(ctx)
		}
		if err != nil {
			t.Fatalf("%s: %v\n%v", name, err, x.Explain())
		}
		if e := x.Explain(); e.Path != name || e.Local.Bytes != size || e.Remote.Bytes != size {
			t.Errorf("%v", e)
		}
		clear(b)
		if x, err = peer.Get(ctx, []path.Copy{remote.At(0, mem.Span{Region: plain, Len: size})}, o); err == nil {
			err = x.Wait(ctx)
		}
		if err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s: other bytes came back: %v", name, err)
		}
	}
}
