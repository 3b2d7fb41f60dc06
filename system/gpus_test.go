package system

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// fetch reads a span as a kernel would see it: back from the device.
func fetch(t testing.TB, s mem.Span) []byte {
	t.Helper()
	from, err := gpumem.Span(s)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := from.Memory.Context().NewStream(gpu.StreamOptions{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	out := make([]byte, s.Len)
	if err := stream.Read(out, from); err != nil {
		t.Fatal(err)
	}
	return out
}

// whole is packet i of a burst, wherever its parts are.
func whole(t testing.TB, b *burst.Burst, i int) (out []byte) {
	t.Helper()
	for k := range b.Segments(i) {
		s := b.Segment(i, k)
		switch x := b.Bytes(i, k); {
		case s.Len == 0:
		case x != nil:
			out = append(out, x...)
		default:
			out = append(out, fetch(t, s)...)
		}
	}
	return out
}

const splitFile = `penstock:
  gpu_runtime: host
  memory_regions:
    - {name: heads, kind: host, num_bufs: 512, buf_size: 64B}
    - {name: body, kind: device, num_bufs: 512, buf_size: 2KiB}
    - {name: out, kind: host_pinned, num_bufs: 512, buf_size: 4KiB}
  interfaces:
    - name: loop
      engine: sim
      address: sim://gpu-%s?loop
      rx: {queues: [{poll_mode: %s, memory_regions: [heads, body]}]}
      tx: {queues: [{memory_regions: [out]}]}
`

// frame is a packet that says its number.
func frame(n, size int) []byte {
	f := make([]byte, size)
	for i := range f {
		f[i] = byte(i*7 + n)
	}
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	binary.BigEndian.PutUint32(f[14:], uint32(n))
	return f
}

// A file whose payload region is device memory opens with the runtime host as with a card: headers
// on the host, payload on the device, all bytes as they were sent, in order, each copied once.
func TestPayloadInDeviceMemory(t *testing.T) {
	for _, mode := range []string{"indirect", "direct"} {
		t.Run(mode, func(t *testing.T) {
			s := mustOpen(t, fmt.Sprintf(splitFile, mode, mode), Options{Engines: noted(t, &diary{}), Logger: silent})
			if p := s.Region("out").Region(); p.Kind() != mem.HostPinned || p.All().Bytes() == nil ||
				gpumem.Memory(p) == nil {
				t.Errorf("the region out is of kind %v", p.Kind())
			}
			if p := s.Region("body").Region(); p.Kind() != mem.Device || p.All().Bytes() != nil ||
				gpumem.Memory(p).Context() != s.GPU(0) {
				t.Errorf("the region body is of kind %v", p.Kind())
			}
			if s.GPU(1) != nil {
				t.Error("there is a second device")
			}
			out, in, payload := burst.New(16), burst.NewSegmented(64, 128), 0
			seen := 0
			for round := range 20 {
				n, err := txOf(t, s, "loop", 0).Alloc(out, 16, 2000)
				if n != 16 || err != nil {
					t.Fatal(n, err)
				}
				for i := range n {
					f := frame(round*16+i, 60+(round*16+i)*6%1900)
					out.SetLen(i, 0, copy(out.Bytes(i, 0), f))
					payload += max(0, len(f)-64)
				}
				if err := txOf(t, s, "loop", 0).Send(out); err != nil {
					t.Fatal(err)
				}
				for seen < (round+1)*16 {
					if err := rxOf(t, s, "loop", 0).Recv(t.Context(), in); err != nil {
						t.Fatal(err)
					}
					for i := range in.Len() {
						want := frame(seen, 60+seen*6%1900)
						if got := whole(t, in, i); !bytes.Equal(got, want) {
							t.Fatalf("packet %d of %d bytes differs, it has %d", seen, len(want), len(got))
						}
						if len(want) > 64 && (in.Bytes(i, 1) != nil ||
							in.Segment(i, 1).Region != s.Region("body").Region() || in.Role(i, 1) != burst.Payload ||
							in.Bytes(i, 0) == nil) {
							t.Fatalf("packet %d: its parts are in %v and %v", seen, in.Segment(i, 0), in.Segment(i, 1))
						}
						seen++
					}
					in.Release()
				}
			}
			x := s.Snapshot()
			if q := x.Interfaces[0].Rx[0].Stats; q.Packets != uint64(seen) || q.Copied < uint64(payload) ||
				x.Interfaces[0].Stats.Rx.Packets != uint64(seen) {
				t.Errorf("%d packets with %d bytes of payload: %+v", seen, payload, q)
			}
			if n := s.Region("body").Stats().InUse; n != 0 {
				t.Errorf("%d slots of the device are out", n)
			}
			if text := s.Plan().Interfaces[0].Rx[0].Copies; !strings.Contains(text,
				"payload of queue loop-rx0 is copied once, from pinned memory to host 0: the engine sim cannot write "+
					"device memory") {
				t.Error(text)
			}
		})
	}
}

// claiming is an engine some of whose cards reach device memory; that of its port does not.
type claiming struct{ engine.Engine }

func (c claiming) Capabilities() engine.Capabilities {
	x := c.Engine.Capabilities()
	x.Memory = append(slices.Clone(x.Memory), mem.Device)
	return x
}

// What an engine may do by itself, the plan leaves open, and where the card does not reach the
// memory its packets are copied.
func TestUnlessReached(t *testing.T) {
	table, err := engine.NewTable(claiming{noted(t, &diary{}).Engines()[0]})
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, fmt.Sprintf(splitFile, "claiming", "direct"), Options{Engines: table, Logger: silent})
	if text := s.Plan().Interfaces[0].Rx[0].Copies; !strings.HasSuffix(text,
		"copied once, from pinned memory to host 0: unless the card of the engine sim can write this memory itself, "+
			"for such a queue") {
		t.Error(text)
	}
}

// A burst that is out when the System is closed keeps its memory, also that of the device.
func TestCloseWithDeviceMemoryOut(t *testing.T) {
	s, err := Open(t.Context(), mustLoad(t, fmt.Sprintf(splitFile, "out", "direct")),
		Options{Engines: noted(t, &diary{}), Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	b := burst.New(1)
	if _, err := txOf(t, s, "loop", 0).Alloc(b, 1, 1000); err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes(0, 0), frame(1, 1000))
	if err := txOf(t, s, "loop", 0).Send(b); err != nil {
		t.Fatal(err)
	}
	in := burst.NewSegmented(4, 8)
	if err := rxOf(t, s, "loop", 0).Recv(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	err = s.Close()
	if !errors.Is(err, mem.ErrInUse) || !errors.Is(err, gpu.ErrInUse) || !strings.Contains(err.Error(), `"body"`) {
		t.Errorf("%v", err)
	}
	if got := whole(t, in, 0); !bytes.Equal(got, frame(1, 1000)) {
		t.Error("the packet is not what was sent")
	}
	in.Release()
	for _, m := range s.gpus.providers { // what Close could not
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.gpus.close(); err != nil {
		t.Error(err)
	}
}

const echoFile = `penstock:
  gpu_runtime: host
  memory_regions:
    - {name: in, kind: device, num_bufs: 2048, buf_size: 2KiB}
    - {name: out, kind: %s, num_bufs: 1024, buf_size: 2KiB}
    - {name: host, kind: host, num_bufs: 1024, buf_size: 2KiB}
  interfaces:
    - name: server
      address: udp://127.0.0.1:0
      rx: {queues: [{memory_regions: [in]}]}
      tx: {queues: [{memory_regions: [out]}]}
  applications:
    - {kind: echo, interface: server}
`

// Datagrams of real sockets go through device memory and come back: echo sends from there, whether
// the transmit queue has memory of the device or of the host.
func TestEchoThroughDeviceMemory(t *testing.T) {
	for _, kind := range []string{"device", "host"} {
		t.Run(kind, func(t *testing.T) {
			s := mustOpen(t, fmt.Sprintf(echoFile, kind), Options{Logger: silent})
			rx, tx := s.Plan().Interfaces[0].Rx[0].Copies, s.Plan().Interfaces[0].Tx[0].Copies
			if !strings.Contains(rx, "all of queue server-rx0 is copied once") || !strings.Contains(tx,
				"all of queue server-tx0 is copied once, from host 0 to pinned memory: the engine socket cannot read") {
				t.Errorf("%q, %q", rx, tx)
			}
			pingPong(t, s.Port("server").Info().Address)
			// The answer may be here before its sender has counted it.
			x := s.Snapshot().Interfaces[0]
			for limit := time.Now().Add(time.Minute); (x.Tx[0].Stats.Packets < 200 || x.Tx[0].Stats.Queued > 0) &&
				time.Now().Before(limit); x = s.Snapshot().Interfaces[0] {
				<-time.After(time.Millisecond)
			}
			if x.Rx[0].Stats.Copied != x.Rx[0].Stats.Bytes || x.Tx[0].Stats.Copied != x.Tx[0].Stats.Bytes ||
				x.Tx[0].Stats.Forwarded != 200 || x.Tx[0].Stats.Packets != 200 || x.Rx[0].Stats.Packets != 200 {
				t.Errorf("%+v, %+v", x.Rx[0].Stats, x.Tx[0].Stats)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// pingPong sends datagrams of all sizes to an echo and looks at the answers.
func pingPong(t *testing.T, address string) {
	t.Helper()
	c, err := net.Dial("udp", strings.TrimPrefix(address, "udp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	in := make([]byte, 4096)
	for n := range 200 {
		out := frame(n, 18+n*10)
		if _, err := c.Write(out); err != nil {
			t.Fatal(err)
		}
		k, err := c.Read(in)
		if err != nil {
			t.Fatalf("datagram %d: %v", n, err)
		}
		if !bytes.Equal(in[:k], out) {
			t.Fatalf("datagram %d of %d bytes came back as %d others", n, len(out), k)
		}
	}
}

// Without a GPU the plan says of each region what is missing, once why, and Open opens nothing.
// What is asked for by name is announced.
func TestMissingGPU(t *testing.T) {
	text := strings.Replace(fmt.Sprintf(splitFile, "missing", "direct"), "gpu_runtime: host", "gpu_runtime: cuda", 1)
	if c, err := openRuntime("cuda"); err == nil {
		c.Close()
		return // the machine has what the plan would miss
	}
	p, err := MakePlan(mustLoad(t, text), Options{Engines: noted(t, &diary{})})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Missing) != 2 || p.Missing[0].Path != "memory_regions[1].kind" ||
		p.Missing[1].Path != "memory_regions[2].kind" || p.Missing[0].Code != config.CodeHost ||
		!strings.Contains(p.Missing[0].Message, "gpu_runtime cuda:") ||
		!strings.Contains(p.Missing[0].Message, "libcuda.so.1") || strings.Contains(p.Missing[1].Message, "libcuda") {
		t.Errorf("%v", p.Missing)
	}
	if p, err = MakePlan(mustLoad(t, text), Options{Engines: noted(t, &diary{}), GPURuntime: "host"}); err != nil ||
		len(p.Missing) != 0 || p.GPU.Runtime != "host" || p.GPU.Note == "" {
		t.Errorf("%v: %+v", err, p)
	}
	if p, err = MakePlan(mustLoad(t, text), Options{Engines: noted(t, &diary{}), GPURuntime: "vulkan"}); err != nil ||
		len(p.Missing) != 2 || !strings.Contains(p.Missing[0].Message, "cuda, opencl, host") {
		t.Errorf("%v: %+v", err, p)
	}
}
