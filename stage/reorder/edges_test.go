package reorder

import (
	"bytes"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// A payload that is shorter than its place leaves nothing of what the slot held before, and a batch
// has the times of its first and last packet.
func TestShortInUsedSlot(t *testing.T) {
	f := newFeed(t, 64)
	s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(16), PerBatch: 2, Offset: 8,
		Payload: 12, Pool: newPool(t, "batches", 24, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(seq uint32, ns int64, payload []byte) {
		f.put(seq, payload)
		f.queued[len(f.queued)-1].time = ns
	}
	put(0, 50, bytes.Repeat([]byte{0xaa}, 12))
	put(1, 70, bytes.Repeat([]byte{0xaa}, 12))
	out, _, _ := drain(t, s, 4)
	put(2, 90, []byte{1})
	put(3, 80, []byte{2, 3})
	more, _, _ := drain(t, s, 4)
	if out = append(out, more...); len(out) != 2 || out[0].First != 50 || out[0].Last != 70 || out[1].First != 80 ||
		out[1].Last != 90 {
		t.Fatalf("%+v", out)
	}
	if want := append(append([]byte{1}, make([]byte, 11)...),
		append([]byte{2, 3}, make([]byte, 10)...)...); !bytes.Equal(out[1].data, want) {
		t.Errorf("%x, want %x", out[1].data, want)
	}
}

// Strays that are close together do not move the window as long as packets of the stream come
// between them.
func TestStraysBetween(t *testing.T) {
	f := newFeed(t, 64)
	s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(32), PerBatch: 2, Offset: 8,
		Pool: newPool(t, "batches", 24, 64)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for k := range uint32(40) {
		f.put(k, payloadOf(0, 0))
		f.put(1<<20+k/8, payloadOf(0, 0))
	}
	out, _, _ := drain(t, s, 16)
	if c := s.Plans()[0]; len(out) != 20 || c.Whole != 20 || c.Restarts != 0 || c.Drops[engine.DropStray] != 40 {
		t.Errorf("%d batches, %+v", len(out), c)
	}
}

// What waits when a stage is closed goes back to its pools, and is counted.
func TestCloseWaiting(t *testing.T) {
	f := newFeed(t, 64)
	s, err := New(f, engine.StageSpec{}, Plan{Flows: []uint32{7}, Sequence: bits32(16), PerBatch: 1, Offset: 8,
		Pool: newPool(t, "batches", 12, 8)})
	if err != nil {
		t.Fatal(err)
	}
	for k := range uint32(3) {
		f.put(k, payloadOf(int64(k), 0))
		f.queued = append(f.queued, packet{flow: 1, data: []byte("another")})
	}
	b := burst.New(1)
	if n, err := s.TryRecv(b); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.Release()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var st engine.RxStats
	if s.Stats(&st); st.Packets != 1 || st.Drops != (engine.Drops{engine.DropClosed: 5}) {
		t.Errorf("%+v", st)
	}
}
