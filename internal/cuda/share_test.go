package cuda

import (
	"bytes"
	"os"
	"testing"
)

// The fake refuses at once to write to memory that the device may not reach, or only read: on a
// card this loses the device.
func TestRights(t *testing.T) {
	d, f := start(t, "")
	c := open(t, d, 0)
	spec := PhysicalSpec{}
	g := must[uint64](t)(c.Granularity(spec))
	m := must[*Physical](t)(c.Create(g, spec))
	at := must[Pointer](t)(c.Reserve(g, 0))
	s := stream(t, c)
	ok(t, c.Map(at, m, g))
	wants(t, s.Fill(at, 4, 1, 1), nil, "INVALID_VALUE")
	ok(t, c.Access(at, g, false, c.Device()))
	wants(t, s.Fill(at, 4, 1, 1), nil, "INVALID_VALUE")
	if f.Violations() != 2 {
		t.Errorf("%d violations", f.Violations())
	}
	ok(t, c.Access(at, g, true, c.Device()))
	ok(t, s.Fill(at, 4, 1, 1))
	ok(t, s.Synchronize())
	ok(t, c.Unmap(at, g))
	ok(t, c.Unreserve(at, g))
	ok(t, m.Release())
	_, err := c.Import(0)
	wants(t, err, nil, "file descriptor 0")
	allowed[t] = f.Violations()
}

// The fake's dma-buf is a file in memory, which shows that it is the right memory.
func TestDMABuf(t *testing.T) {
	d, _ := start(t, "device 1 attribute DMA_BUF_SUPPORTED 0")
	c := open(t, d, 0)
	p := alloc(t, c, 4<<20)
	s := stream(t, c)
	ok(t, s.Fill(p, 4, 0x01020304, 1<<20))
	ok(t, s.Synchronize())
	fd := must[int](t)(c.DMABuf(p, 4<<20))
	file := os.NewFile(uintptr(fd), "dma-buf")
	defer file.Close()
	b := make([]byte, 4)
	if _, err := file.ReadAt(b, 4<<20-4); err != nil || !bytes.Equal(b, []byte{4, 3, 2, 1}) {
		t.Errorf("% x, %v", b, err)
	}
	other := open(t, d, 1)
	_, err := other.DMABuf(alloc(t, other, 4<<20), 4096)
	wants(t, err, ErrUnsupported)
}

func TestFlushWrites(t *testing.T) {
	d, f := start(t, "")
	c := open(t, d, 0)
	ok(t, c.FlushWrites(OrderingOwner))
	ok(t, c.FlushWrites(OrderingAllDevices))
	wants(t, c.FlushWrites(OrderingNone), nil, "expected owner")
	if n := f.Calls("cuFlushGPUDirectRDMAWrites"); n != 2 {
		t.Errorf("%d calls", n)
	}
}

// The driver refuses a handle of this process, and one of no process.
func TestHandlesThatAreWrong(t *testing.T) {
	d, f := start(t, "")
	c := open(t, d, 0)
	p := alloc(t, c, 2<<20)
	h := must[Handle](t)(c.Share(p))
	_, err := c.OpenShared(h)
	wants(t, err, nil, "cuIpcOpenMemHandle_v2")
	_, err = c.OpenShared(Handle{1, 2, 3})
	wants(t, err, nil, "INVALID_VALUE")
	_, err = c.OpenEvent(Handle{1, 2, 3})
	wants(t, err, nil, "cuIpcOpenEventHandle")
	_, err = c.Share(p + 512)
	wants(t, err, nil, "INVALID_VALUE")
	allowed[t] = f.Violations()
}
