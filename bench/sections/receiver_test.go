package sections

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/packet/burst"
)

// made is packet n of a sender as it arrives.
func made(t *testing.T, s *Sender, run, id uint16, n uint64) []byte {
	t.Helper()
	x, err := newTemplate(s, mac)
	if err != nil {
		t.Fatal(err)
	}
	if x.number >= 0 {
		(&stream.Header{Run: run, Stream: id, Seq: uint32(n), Due: uint64(now())}).Put(x.frame[x.number:])
	}
	if x.seq >= 0 {
		binary.BigEndian.PutUint32(x.frame[x.seq:], s.Start+uint32(n))
	}
	return x.frame
}

// Every packet is counted as one thing: a new one of a sender that we know, one that came before, a
// damaged one, or one of an unknown sender.
func TestReceiverCounts(t *testing.T) {
	numbered, short, plain := *sender4(), *sender4(), *sender4()
	short.Payload, short.Sequence, short.Number, short.Start = 10, 2, -1, 5
	plain.Payload, plain.Sequence, plain.Number = 7, -1, -1
	o := newLedgers([]Sender{numbered, short, plain}, 9)
	x := newReceiver(&Receiver{Batch: 1}, nil, o)
	damage := func(f []byte, at int) []byte {
		f[at] ^= 1
		return f
	}
	for i, y := range []struct {
		frame []byte
		want  Received
	}{
		{made(t, &numbered, 9, 0, 0), Received{Unique: 1, Checked: 100}},
		{made(t, &numbered, 9, 0, 2), Received{Unique: 1, Checked: 100}},
		{made(t, &numbered, 9, 0, 1), Received{Unique: 1, Late: 1, Checked: 100}},
		{made(t, &numbered, 9, 0, 1), Received{Duplicates: 1}},
		{made(t, &numbered, 8, 0, 3), Received{Foreign: 1}},              // of another run
		{made(t, &numbered, 9, 5, 3), Received{Foreign: 1}},              // of no sender of this run
		{damage(made(t, &numbered, 9, 0, 3), 163), Received{Damaged: 1}}, // the last byte
		{damage(made(t, &numbered, 9, 0, 3), 64), Received{Damaged: 1}},  // the first of the payload
		{damage(made(t, &numbered, 9, 0, 3), 68), Received{Damaged: 1}},  // the file's number
		{damage(made(t, &numbered, 9, 0, 3), 75), Received{Damaged: 1}},  // our header
		{made(t, &numbered, 9, 0, 3)[:163], Received{Damaged: 1}},        // cut off
		{made(t, &short, 9, 1, 0), Received{Unique: 1, Checked: 10}},
		{made(t, &short, 9, 1, 1), Received{Unique: 1, Checked: 10}},
		{made(t, &short, 9, 1, 1), Received{Duplicates: 1}},
		{damage(made(t, &short, 9, 1, 2), 64), Received{Foreign: 1}}, // nothing says whose it is
		{made(t, &plain, 9, 2, 0), Received{Unique: 1, Checked: 7}},
		{nil, Received{Foreign: 1}},
		{make([]byte, 200), Received{Foreign: 1}},
	} {
		before := x.out
		x.packet(y.frame, now())
		got := x.out
		got.Unique -= before.Unique
		got.Late -= before.Late
		got.Duplicates -= before.Duplicates
		got.Damaged -= before.Damaged
		got.Foreign -= before.Foreign
		got.Checked -= before.Checked
		got.Receiver, got.Name, got.Packets = "", "", 0
		if !reflect.DeepEqual(got, y.want) {
			t.Errorf("packet %d: %+v, expected %+v", i, got, y.want)
		}
	}
	if o.total() != 6 {
		t.Errorf("%d in all", o.total())
	}
}

// Without senders here packets of other processes of ours are known by their numbers.
func TestReceiverOfOthers(t *testing.T) {
	s := sender4()
	o := newLedgers(nil, 9)
	x := newReceiver(&Receiver{Batch: 1}, nil, o)
	other := *s // its numbers are elsewhere in the packets, behind the file's own
	s.Sequence, s.Number = -1, 0
	for _, n := range []uint64{100, 101, 105, 101} {
		x.packet(made(t, s, 1, 0, n), now())
	}
	x.packet(made(t, &other, 2, 0, 3), now())
	x.packet(make([]byte, 200), now())
	if missing, senders := o.gaps(); missing != 3 || senders != 2 {
		t.Errorf("%d missing of %d senders", missing, senders)
	}
	if x.out.Unique != 4 || x.out.Duplicates != 1 || x.out.Foreign != 1 {
		t.Errorf("%+v", x.out)
	}
}

// A packet that was given up and comes late is not taken for the one that is waited for.
func TestLatencyKnowsPackets(t *testing.T) {
	s := sender4()
	s.Sequence, s.Number = -1, 0
	data := pool(t, 164)
	w := &way{in: newReceiver(&Receiver{Batch: 1}, nil, newLedgers([]Sender{*s}, 9))}
	for _, x := range []struct {
		run  uint16
		n    uint64
		want bool
	}{{9, 4, false}, {9, 5, true}, {9, 5, false}, {8, 5, false}} {
		w.in.b = slots(t, []burst.Role{burst.Frame}, data)
		copy(w.in.b.Bytes(0, 0), made(t, s, x.run, 0, x.n))
		if got := w.is(0, 5, now()); got != x.want {
			t.Errorf("packet %d of run %d is the fifth: %v", x.n, x.run, got)
		}
		w.in.b.Release()
	}
}

// Any bytes may come.
func FuzzReceiver(f *testing.F) {
	s := sender4()
	x, err := newTemplate(s, mac)
	if err != nil {
		f.Fatal(err)
	}
	(&stream.Header{Run: 9}).Put(x.frame[x.number:])
	f.Add(x.frame)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		for _, senders := range [][]Sender{{*s}, nil} {
			r := newReceiver(&Receiver{Batch: 1}, nil, newLedgers(senders, 9))
			r.packet(p, now())
			r.packet(p, now())
			if n := r.out.Unique + r.out.Duplicates + r.out.Damaged + r.out.Foreign; n != 2 || r.out.Unique == 2 {
				t.Fatalf("%+v", r.out)
			}
		}
	})
}
