package cuda

import (
	"bytes"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
)

func TestBasic(t *testing.T) {
	rt, _ := opened(t, "")
	t.Log(rt.Version(), rt.Devices()[0].Info())
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	defer func() { ok(t, c.Close()) }()
	s := must[*gpu.Stream](t)(c.NewStream(gpu.StreamOptions{}))
	defer func() { ok(t, s.Close()) }()
	a := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Size: 100}))
	defer func() { ok(t, a.Close()) }()
	b := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Size: 100, Kind: gpu.MappedMemory}))
	defer func() { ok(t, b.Close()) }()
	want := bytes.Repeat([]byte("0123456789"), 10)
	ok(t, s.Write(a.All(), want))
	m := must[*gpu.Module](t)(c.Load(kernels.Copy))
	defer func() { ok(t, m.Close()) }()
	k := must[*gpu.Kernel](t)(m.Kernel("copy"))
	call := must[*gpu.Call](t)(k.Prepare(gpu.Buffer(b.All()), gpu.U64(0), gpu.Buffer(a.All()), gpu.U64(0),
		gpu.U64(100)))
	defer func() { ok(t, call.Close()) }()
	ok(t, s.Launch(call, gpu.Grid{Groups: 3, Group: 64}))
	ok(t, s.Wait(t.Context()))
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%q", b.Bytes())
	}
}
