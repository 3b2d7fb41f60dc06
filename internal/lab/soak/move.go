package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// logSize is a size from 1 to most whose magnitude is equally likely.
func logSize(r *rand.Rand, most uint64) uint64 {
	top := uint64(1) << r.IntN(bits.Len64(most))
	return min(top+r.Uint64N(top), most)
}

// mover is a goroutine that begins transfers, one after the other.
type mover struct {
	h        *host
	r        *rand.Rand
	src, dst *mem.Region
}

func (h *host) move(i int, seed uint64) {
	m := &mover{h: h, r: rand.New(rand.NewPCG(seed, 4))}
	var err error
	if m.src, err = h.region(fmt.Sprint("source ", i), 2*h.w.c.MaxBytes); err == nil {
		m.dst, err = h.region(fmt.Sprint("destination ", i), 2*h.w.c.MaxBytes)
	}
	if err != nil {
		h.complain("memory: %v", err)
		return
	}
	for h.moving.Err() == nil {
		l := m.pick()
		if l == nil {
			pause(h.moving, 5*time.Millisecond)
			continue
		}
		switch k := m.r.IntN(22); {
		case k < 9:
			m.put(l)
		case k < 11:
			m.notify(l)
		case k < 13:
			m.push(l)
		case k < 18:
			m.fetch(l)
		case k < 20:
			m.borrow(l)
		default:
			m.fan()
		}
		if m.r.IntN(4) == 0 {
			pause(h.moving, time.Duration(m.r.IntN(4000))*time.Microsecond)
		}
	}
}

func (m *mover) pick() *link {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	if len(m.h.links) == 0 {
		return nil
	}
	// Not by the order of the map: the seed decides.
	n := len(m.h.w.c.Peers)
	for i, at := 0, m.r.IntN(n); i < n; i++ {
		if l := m.h.links[(at+i)%n]; l != nil {
			return l
		}
	}
	return nil
}

// how is a random choice of what a transfer can be asked for.
func (m *mover) how(msg []byte) transfer.PutOptions {
	o := transfer.PutOptions{Msg: msg, Digest: m.r.IntN(8) == 0, Priority: transfer.Priority(m.r.IntN(3))}
	switch m.r.IntN(4) {
	case 0:
		o.Paths = []string{"shm"}
	case 1:
		o.Paths = []string{"tcp"}
	}
	if m.r.IntN(4) == 0 {
		o.Stream = 1 + m.r.Uint32N(3)
	}
	switch m.r.IntN(16) {
	case 0:
		o.Security = path.SecurityEncrypted // over a session without certificates no path gives that
	case 1, 2:
		o.Security = path.SecurityHost
	}
	return o
}

// run begins a transfer and waits for its end; false: the host gives up waiting. Some transfers are
// canceled.
func (m *mover) run(l *link, kind, key string, bytes uint64, begin func(context.Context) (*transfer.Transfer, error),
	check func()) (err error, ok bool) {
	m.h.begin(kind, key, l.to, bytes)
	ctx, cancel := context.WithCancel(context.Background())
	x, err := begin(ctx)
	done := make(chan error, 2)
	m.h.track(key, x, err, func(err error) {
		if err == nil && check != nil {
			check()
		}
		done <- err
		cancel()
	})
	if err == nil && m.r.IntN(12) == 0 {
		pause(m.h.living, time.Duration(m.r.IntN(1500))*time.Microsecond)
		if m.r.IntN(2) == 0 {
			x.Cancel()
		} else {
			cancel()
		}
	}
	select {
	case err = <-done:
		return err, true
	case <-m.h.living.Done(): // then it ends because the node closes; its memory stays leased until then
		return nil, false
	}
}

// blocks cuts size bytes into up to eight blocks, with gaps between them on both sides.
func (m *mover) blocks(size, room uint64) (offs [][2]uint64) {
	n := uint64(1)
	if m.r.IntN(2) == 0 {
		n += m.r.Uint64N(8)
	}
	n = min(n, size)
	gap := (room - size) / n
	off := uint64(0)
	for i := range n {
		k := size / n
		if i == n-1 {
			k = size - k*(n-1)
		}
		offs = append(offs, [2]uint64{off, k})
		off += k
		if gap > 0 {
			off += m.r.Uint64N(gap + 1)
		}
	}
	return offs
}

// put writes into a part of the peer's memory, waits until the peer has looked at it, and reads it
// back.
func (m *mover) put(l *link) {
	i := m.r.IntN(len(partShare))
	l.mu.Lock()
	if l.parts[i].busy {
		l.mu.Unlock()
		return
	}
	l.parts[i].busy = true
	last := l.parts[i].last
	l.mu.Unlock()
	base, room := partAt(m.h.w.c.MaxBytes, i)
	size := logSize(m.r, room)
	msg := message{Key: m.h.w.key(), Node: m.h.name, Kind: "put", Seed: m.r.Uint64(), Export: inName(m.h.w.c.Index)}
	seed := msg.Seed
	var copies []path.Copy
	local := uint64(0)
	for _, b := range m.blocks(size, room) {
		s, err := m.src.Span(local, b[1])
		if err != nil {
			m.h.complain("source: %v", err)
			return
		}
		fill(s.Bytes(), seed)
		seed = mix(seed)
		copies = append(copies, l.in.At(base+b[0], s))
		msg.Blocks = append(msg.Blocks, [2]uint64{base + b[0], b[1]})
		local += b[1] + m.r.Uint64N(64)
	}
	text, _ := json.Marshal(msg)
	ack := make(chan struct{})
	m.h.mu.Lock()
	m.h.acks[msg.Key] = ack
	m.h.mu.Unlock()
	how := m.how(text)
	err, ok := m.run(l, "put", msg.Key, size, func(ctx context.Context) (*transfer.Transfer, error) {
		return l.peer.Put(ctx, copies, how)
	}, nil)
	if err == nil && ok {
		ok = m.h.acknowledged(l, ack)
	}
	m.h.mu.Lock()
	delete(m.h.acks, msg.Key)
	m.h.mu.Unlock()
	if !ok {
		return
	}
	if err == nil && m.r.IntN(2) == 0 {
		if !m.back(l, copies, msg.Seed, size, last) {
			return
		}
	}
	l.mu.Lock()
	l.parts[i] = part{last: fmt.Sprintf("%s of %d bytes, which ended with %v", msg.Key, size, err)}
	l.mu.Unlock()
}

// acknowledged waits until the receiver of a put has looked at it, and returns false if that is not
// to be known: then the part stays busy, because the receiver may look at it yet. The
// acknowledgement can fail although the peer lives, and is then not sent again.
func (h *host) acknowledged(l *link, ack <-chan struct{}) bool {
	select {
	case <-ack:
		return true
	case <-l.peer.Gone():
	case <-h.moving.Done():
	}
	return false
}

// back gets what was put and compares it.
func (m *mover) back(l *link, put []path.Copy, seed, size uint64, last string) bool {
	msg := message{Key: m.h.w.key(), Kind: "get"}
	text, _ := json.Marshal(msg)
	var copies []path.Copy
	local := uint64(0)
	for _, c := range put {
		s, _ := m.dst.Span(local, c.Local.Len)
		copies = append(copies, path.Copy{Local: s, Key: c.Key, RemoteOff: c.RemoteOff})
		local += s.Len
	}
	how := m.how(text)
	_, ok := m.run(l, "get", msg.Key, size, func(ctx context.Context) (*transfer.Transfer, error) {
		return l.peer.Get(ctx, copies, how)
	}, func() {
		for _, c := range copies {
			if at := verify(c.Local.Bytes(), seed); at >= 0 {
				m.h.complain("get %s of %d bytes in %d blocks: byte %d of a block of %d is wrong; before it came put %s", msg.Key, size, len(copies), at, c.Local.Len, last)
			}
			seed = mix(seed)
		}
	})
	return ok
}

func (m *mover) notify(l *link) {
	msg := message{Key: m.h.w.key(), Kind: "notify"}
	text, _ := json.Marshal(msg)
	how := m.how(nil)
	how.Digest = false
	m.run(l, "notify", msg.Key, 0, func(ctx context.Context) (*transfer.Transfer, error) {
		return l.peer.Notify(ctx, text, how)
	}, nil)
}

// push sends a tensor into memory that the peer takes from its budget.
func (m *mover) push(l *link) {
	key := m.h.w.key()
	size := labelSize + logSize(m.r, m.h.w.c.MaxBytes)
	s, _ := m.src.Span(0, size)
	label(s.Bytes(), key)
	text, _ := json.Marshal(message{Key: key, Kind: "push"})
	how := m.how(text)
	m.run(l, "push", key, size, func(ctx context.Context) (*transfer.Transfer, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		x, err := l.peer.SendTensor(ctx, "push", tensor.Desc{DType: tensor.U8, Shape: []int64{int64(size)}}, s, how)
		if err != nil {
			cancel()
		} else {
			x.OnDone(func(*transfer.Transfer) { cancel() })
		}
		return x, err
	}, nil)
}

// published asks a peer for one of the tensors that it publishes; nil when it has none at this
// moment.
func (m *mover) published(l *link) (*transfer.Remote, uint64) {
	ctx, cancel := context.WithTimeout(m.h.living, 5*time.Second)
	defer cancel()
	r, err := l.peer.Lookup(ctx, fmt.Sprint("pub ", m.r.IntN(publishings)))
	if err != nil {
		if reason(err) == "?" {
			m.h.complain("lookup: %v", err)
		}
		return nil, 0
	}
	size, err := r.Tensor.Bytes()
	if err != nil || size < labelSize {
		m.h.complain("published tensor %v: %v", r.Tensor, err)
		return nil, 0
	}
	return r, uint64(size)
}

// fetch gets a tensor that the peer publishes, and may withdraw meanwhile.
func (m *mover) fetch(l *link) {
	r, size := m.published(l)
	if r == nil {
		return
	}
	s, err := m.dst.Span(0, size)
	if err != nil {
		m.h.complain("tensor of %d bytes: %v", size, err)
		return
	}
	msg := message{Key: m.h.w.key(), Kind: "fetch"}
	text, _ := json.Marshal(msg)
	how := m.how(text)
	m.run(l, "fetch", msg.Key, size, func(ctx context.Context) (*transfer.Transfer, error) {
		return l.peer.Get(ctx, []path.Copy{r.At(0, s)}, how)
	}, func() {
		if key, at := readLabel(s.Bytes()); at >= 0 {
			m.h.complain("fetch %s of %d bytes (tensor %q): byte %d is wrong", msg.Key, size, key, at)
		}
	})
}

// borrow looks at a tensor that the peer publishes, in the peer's own memory.
func (m *mover) borrow(l *link) {
	r, size := m.published(l)
	if r == nil {
		return
	}
	ctx, cancel := context.WithTimeout(m.h.living, 5*time.Second)
	defer cancel()
	v, err := l.peer.Borrow(ctx, r, 0, size)
	if err != nil {
		if reason(err) == "?" {
			m.h.complain("borrow: %v", err)
		}
		return
	}
	key, at := readLabel(v.Bytes)
	v.Release()
	if at >= 0 {
		m.h.complain("borrowed tensor %q of %d bytes: byte %d is wrong", key, size, at)
	}
	m.h.w.tell(line{T: tBorrow, Node: m.h.name, Bytes: size})
}
