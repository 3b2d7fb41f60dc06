package app

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// numbered is a packet: its number as it would be if numbers did not begin again, in tensors since
// the first one.
type numbered struct{ tensor, row uint64 }

// history runs an assembler over packets and notes what it says.
type history struct {
	m         *assembler
	published []map[uint64]bool // rows of each
	rows      map[uint64]bool
	verdicts  [stray + 1]int
}

func (r *history) end() {
	missing := map[uint64]bool{}
	r.m.end(func(from, to uint64) {
		for k := from; k < to; k++ {
			missing[k] = true
		}
	})
	for k := range r.m.rows {
		if missing[k] == r.rows[k] {
			panic(fmt.Sprintf("row %d: there %v, said to be missing %v", k, r.rows[k], missing[k]))
		}
	}
	r.published, r.rows = append(r.published, r.rows), map[uint64]bool{}
}

func (r *history) packet(seq uint64) {
	for {
		row, v := r.m.where(seq)
		r.verdicts[v]++
		switch v {
		case endFirst:
			r.end()
			continue
		case placeIt:
			if row != seq%r.m.rows || r.rows[row] {
				panic(fmt.Sprintf("row %d of number %d, again: %v", row, seq, r.rows[row]))
			}
			r.rows[row] = true
			if r.m.mark(row) != (len(r.rows) == int(r.m.rows)) {
				panic("full and not full")
			}
			if len(r.rows) == int(r.m.rows) {
				r.end()
			}
		}
		return
	}
}

// With numbers of one byte, and as many rows as they can tell apart, a packet that is late by more
// than a tensor is late, not one of a tensor to come.
func TestAssembleLateByATensor(t *testing.T) {
	for by := uint64(1); by <= maxDisorder; by++ {
		for begin := uint64(0); begin < 256; begin += 7 {
			m := newAssembler(64, 1)
			r := &history{m: m, rows: map[uint64]bool{}}
			n := begin
			for ; n < begin+256; n++ {
				if n != begin+150 {
					r.packet(n & 255)
				}
				if n == begin+150+by {
					r.packet((begin + 150) & 255)
				}
			}
			// All numbers but one came, in at most 5 tensors; the one that is late is in its own,
			// or dropped.
			if len(r.published) > 5 || r.verdicts[stray] > 0 || r.verdicts[late] > 1 {
				t.Fatalf("begun at %d, late by %d: %d tensors, verdicts %v", begin, by, len(r.published), r.verdicts)
			}
		}
	}
}

// The rows of tensors are what a plain reading of the rules says, for packets that are lost,
// doubled and out of order, also where the numbers begin again.
func TestAssembleModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "width")
		most := 40
		if width == 1 {
			most = 64
		}
		rows := uint64(rapid.IntRange(1, most).Draw(t, "rows"))
		m := newAssembler(rows, width)
		// size is the number of rows of a tensor: the one before the numbers begin again may be
		// shorter.
		size := func(tensor uint64) uint64 {
			if m.cycle > 0 && tensor%m.cycle == m.cycle-1 && width < 8 {
				if rest := (uint64(1) << (8 * width)) % rows; rest > 0 {
					return rest
				}
			}
			return rows
		}
		first := uint64(0)
		if m.cycle > 0 && width < 8 {
			first = m.cycle - uint64(rapid.IntRange(0, 3).Draw(t, "tensors before the numbers begin again"))
		}
		var sent []numbered
		n := rapid.IntRange(1, 300).Draw(t, "packets")
		at := numbered{first, 0}
		for range n {
			for range rapid.SampledFrom([]int{1, 1, 1, 1, 2, 5}).Draw(t, "step") { // of which only the last comes
				if at.row++; at.row >= size(at.tensor) {
					at = numbered{at.tensor + 1, 0}
				}
			}
			sent = append(sent, at)
			if rapid.IntRange(0, 19).Draw(t, "doubled") == 0 {
				sent = append(sent, at)
			}
		}
		// Some change places with one shortly before, within what numbers of a byte can tell apart.
		for i := range sent {
			if k := rapid.IntRange(0, 9).Draw(t, "late by"); k > 0 && k < 4 && i >= k {
				sent[i], sent[i-k] = sent[i-k], sent[i]
			}
		}
		// Jumps of more tensors than a short cycle can tell apart are not what this test is about.
		for i := 1; i < len(sent); i++ {
			d := int64(sent[i].tensor) - int64(sent[i-1].tensor)
			if d > int64(m.ahead) || -d > int64(m.back) {
				return
			}
		}

		// The model: tensors by their true numbers.
		var want []map[uint64]bool
		var verdicts [stray + 1]int
		cur, open, begun := uint64(0), false, false
		there := map[uint64]bool{}
		ambiguous := false
		for _, p := range sent {
			if begun && p.tensor < cur && cur-p.tensor > m.back {
				ambiguous = true
			}
			switch {
			case begun && (p.tensor < cur || p.tensor == cur && !open):
				verdicts[late]++
				continue
			case open && p.tensor == cur && there[p.row]:
				verdicts[duplicate]++
				continue
			case open && p.tensor > cur:
				verdicts[endFirst]++
				want, there = append(want, there), map[uint64]bool{}
			}
			cur, open, begun = p.tensor, true, true
			verdicts[placeIt]++
			there[p.row] = true
			if len(there) == int(rows) {
				want, there, open = append(want, there), map[uint64]bool{}, false
			}
		}
		if ambiguous {
			return // later than what is tolerated
		}
		r := &history{m: m, rows: map[uint64]bool{}}
		for _, p := range sent {
			raw := p.tensor
			if m.cycle > 0 {
				raw %= m.cycle
			}
			r.packet(raw*rows + p.row)
		}
		if r.verdicts != verdicts || !slices.EqualFunc(r.published, want, maps.Equal) || !maps.Equal(r.rows, there) {
			t.Fatalf("verdicts %v, expected %v; %d tensors, expected %d\n%v\n%v", r.verdicts, verdicts,
				len(r.published), len(want), r.published, want)
		}
	})
}

// A damaged number does no harm, and a sender that was restarted is followed from its second
// packet on.
func TestAssembleStrays(t *testing.T) {
	r := &history{m: newAssembler(4, 4), rows: map[uint64]bool{}}
	for seq := range uint64(6) {
		r.packet(1<<20 + seq)
	}
	r.packet(7) // damaged
	r.packet(1<<20 + 6)
	r.packet(1 << 31) // damaged again: it does not join the one before
	r.packet(1<<20 + 7)
	if len(r.published) != 2 || r.verdicts[stray] != 2 || r.verdicts[placeIt] != 8 {
		t.Fatalf("%d tensors, verdicts %v", len(r.published), r.verdicts)
	}
	for seq := range uint64(9) { // from the beginning again
		r.packet(seq)
	}
	if r.verdicts[stray] != 3 || len(r.published) != 4 || len(r.published[2]) != 3 || len(r.published[3]) != 4 ||
		!r.rows[0] {
		t.Fatalf("%d tensors, verdicts %v: %v", len(r.published), r.verdicts, r.published)
	}
}

// Without numbers rows come in their order.
func TestAssembleOrder(t *testing.T) {
	m := newAssembler(3, 0)
	for k := range uint64(7) {
		row := m.next()
		if row != k%3 {
			t.Fatalf("packet %d is row %d", k, row)
		}
		if m.mark(row) {
			m.end(func(from, to uint64) { t.Fatalf("rows %d to %d are missing", from, to) })
		}
	}
	m.end(func(from, to uint64) {
		if from != 1 || to != 3 {
			t.Errorf("rows %d to %d are missing", from, to)
		}
	})
}
