package app

// verdict says what becomes of a row.
type verdict uint8

const (
	placeIt   verdict = iota
	endFirst          // it belongs to a later tensor: the one that is filled ends first; then ask again
	late              // its tensor was published
	duplicate         // it is there
	stray             // far away from all others
)

// How far numbers may jump, in packets, before they count as stray. The figures are those of RTP
// (RFC 3550 appendix A.1), and so is the way back: two strays that follow each other are the
// beginning of something new.
const (
	maxDropout  = 3000
	maxDisorder = 100
)

// assembler decides which packet is which row of which tensor. It touches no payload. A tensor is
// rows numbers that follow each other; its number is the first of them divided by rows, modulo the
// tensors that there are before the numbers begin again.
type assembler struct {
	rows  uint64
	mask  uint64 // the largest number
	cycle uint64 // tensors until the numbers begin again; 0: 2^64
	ahead uint64 // tensors that are passed over without doubt
	back  uint64 // tensors whose packets are late without doubt

	begun bool   // cur means something
	open  bool   // cur is being filled; otherwise it was published
	cur   uint64 // number of the tensor
	top   uint64 // the highest number of a packet of it, or of those before
	got   []uint64
	have  uint64 // rows that are there

	lost     uint64 // tensor of the last packet, which was a stray
	astray   bool
	sequence bool
}

// newAssembler is for tensors of rows rows; with numbers of width bytes, 0 for rows in the order in
// which they come.
func newAssembler(rows uint64, width int) *assembler {
	m := &assembler{rows: rows, sequence: width > 0}
	if !m.sequence {
		return m
	}
	m.got = make([]uint64, (rows+63)/64)
	m.mask = ^uint64(0) >> (64 - 8*width)
	switch {
	case width < 8:
		m.cycle = (1<<(8*width)-1)/rows + 1
	case rows > 1:
		m.cycle = (1<<64-1)/rows + 1
	}
	m.ahead, m.back = maxDropout/rows+1, maxDisorder/rows+1
	if m.cycle > 0 {
		m.ahead, m.back = min(m.ahead, max(m.cycle/2, 1)), min(m.back, max(m.cycle/4, 1))
	}
	return m
}

// from is how many tensors after b a is.
func (m *assembler) from(a, b uint64) uint64 {
	if m.cycle == 0 || a >= b {
		return a - b
	}
	return m.cycle - (b - a)
}

// behind reports whether a number is one of those before the highest one. Where few tensors have
// all numbers, their distance alone does not tell that.
func (m *assembler) behind(seq uint64) bool {
	d := (m.top - seq) & m.mask
	return d > 0 && d <= m.mask/2
}

// next is the row of the packet that comes next when packets have no numbers.
func (m *assembler) next() uint64 {
	m.open = true
	return m.have
}

// where says what becomes of the packet with a number, and which row it is. It begins the tensor of
// the row when it says so.
func (m *assembler) where(seq uint64) (row uint64, v verdict) {
	g, row := seq/m.rows, seq%m.rows
	if !m.begun {
		m.begin(g, seq)
		return row, placeIt
	}
	d := m.from(g, m.cur)
	switch {
	case d == 0 && m.open:
		m.astray = false
		if m.got[row/64]>>(row%64)&1 != 0 {
			return row, duplicate
		}
		m.saw(seq)
		return row, placeIt
	case d == 0 || m.from(m.cur, g) <= m.back && d > m.ahead || d <= m.ahead && m.behind(seq):
		m.astray = false
		m.saw(seq)
		return row, late
	case d > m.ahead:
		if !m.astray || m.from(g, m.lost) > m.ahead {
			m.astray, m.lost = true, g
			return row, stray
		}
	}
	if m.open {
		return row, endFirst
	}
	m.begin(g, seq)
	return row, placeIt
}

func (m *assembler) begin(g, seq uint64) {
	m.begun, m.open, m.cur, m.top, m.astray = true, true, g, seq, false
}

// saw takes in the number of a packet of the tensor that is filled, or of one before.
func (m *assembler) saw(seq uint64) {
	if !m.behind(seq) {
		m.top = seq
	}
}

// mark says that a row is there, and reports whether it was the last one that was missing.
func (m *assembler) mark(row uint64) (full bool) {
	if m.sequence {
		m.got[row/64] |= 1 << (row % 64)
	}
	m.have++
	return m.have == m.rows
}

// end ends the tensor: it is published, and the next one is empty. It calls f for each run of rows
// that are not there, from the first to the one behind the last.
func (m *assembler) end(f func(from, to uint64)) {
	switch {
	case m.have == m.rows:
	case !m.sequence:
		f(m.have, m.rows)
	default:
		for row := uint64(0); row < m.rows; {
			if row%64 == 0 && m.got[row/64] == ^uint64(0) {
				row += 64
				continue
			}
			if m.got[row/64]>>(row%64)&1 != 0 {
				row++
				continue
			}
			from := row
			for row < m.rows && m.got[row/64]>>(row%64)&1 == 0 {
				row++
			}
			f(from, row)
		}
	}
	clear(m.got)
	m.open, m.have = false, 0
}
