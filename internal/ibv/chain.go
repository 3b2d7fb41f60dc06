package ibv

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// SendFlags say how a request is executed.
type SendFlags uint32

// The flags. The caller chooses which requests are Signaled, and so which tell of their end: slots
// of the send queue come back only with a completion, so that one in a while must be. Requests that
// fail always tell.
const (
	Fence     SendFlags = 1 << 0 // waits for the reads and atomics before it
	Signaled  SendFlags = 1 << 1 // has a completion also when it succeeds
	Solicited SendFlags = 1 << 2 // wakes a peer whose queue is armed for solicited completions only
	// the bytes are copied while it is posted: they need no key, and may change right after
	Inline SendFlags = 1 << 3
	// IPChecksum has the device write the checksums of the IPv4, TCP or UDP header of a frame, on
	// queue pairs of raw packets.
	IPChecksum SendFlags = 1 << 4
)

// The opcodes of requests (enum ibv_wr_opcode).
const (
	wrWrite = iota
	wrWriteImm
	wrSend
	wrSendImm
	wrRead
	wrCmpSwap
	wrFetchAdd
	wrLocalInv
	wrBindMW
	wrSendInv
)

// SendChain is a list of requests for a send queue, in memory outside the Go heap, built once and
// used again and again: builders append requests, QP.PostSend posts them in one call of the
// library, Reset empties it. A chain has one user at a time. The requests are copied by the library
// when they are posted, the bytes that they point to are not (unless they are Inline).
//
// A chain remembers how far it was posted. When the library refuses a request half way, those
// before it are posted, and the next PostSend goes on with the one that was refused.
type SendChain struct {
	chain
	wrs []cSendWR
}

// chain is what send and receive chains have in common.
type chain struct {
	mem    []byte
	base   uintptr // of the first request
	size   uintptr // of a request
	sges   []SGE
	sgeAt  uintptr
	bad    *uintptr
	badAt  uintptr
	n      int // requests
	posted int
	sge    int // SGEs in use
}

// newChain lays the requests, the SGEs and the word for bad_wr out in one piece of memory.
func newChain(op string, wrs, sges int, size uintptr) (c chain, err error) {
	if wrs < 1 || sges < 0 || wrs > 1<<20 || sges > 1<<24 {
		return c, invalid(op, "", "%d requests with %d SGEs: expected at least one request", wrs, sges)
	}
	atSGE := wrs * int(size)
	atBad := atSGE + sges*sgeSize
	c.mem, err = dl.Alloc(atBad + 8)
	if err != nil {
		return c, err
	}
	c.base, c.size = dl.Address(c.mem), size
	c.sgeAt, c.badAt = c.base+uintptr(atSGE), c.base+uintptr(atBad)
	c.sges = structs[SGE](c.mem[atSGE:], sges)
	c.bad = dl.At[uintptr](c.badAt)
	return c, nil
}

// Len is how many requests are in the chain.
func (c *chain) Len() int { return c.n }

func (c *chain) reset() { c.n, c.posted, c.sge = 0, 0, 0 }

// take appends SGEs and returns the address of the first. The caller has checked that there is
// room.
func (c *chain) take(sges []SGE) (at uintptr) {
	at = c.sgeAt + uintptr(c.sge)*sgeSize
	copy(c.sges[c.sge:], sges)
	c.sge += len(sges)
	return at
}

// advance enters the answer of a post: how many requests it took, and the error.
func (c *chain) advance(op string, on *object, ret int32) (int, error) {
	from := c.posted
	if ret == 0 {
		c.posted = c.n
		return c.n - from, nil
	}
	// bad_wr is the first that was not posted. A library that does not set it has posted nothing.
	if off := *c.bad - c.base; *c.bad >= c.base && off%c.size == 0 && int(off/c.size) >= from && int(off/c.size) < c.n {
		c.posted = int(off / c.size)
	}
	return c.posted - from, postError(op, on, c.posted, ret)
}

func postError(op string, on *object, at int, ret int32) error {
	errno := sys.Errno(ret)
	if ret < 0 {
		errno = sys.Errno(-ret)
	}
	e := failed(op, on.name, errno)
	switch errno {
	case sys.ENOMEM, sys.EAGAIN:
		e.Kind = ErrFull
		e.Hint = fmt.Sprintf("request %d of the chain: all slots are in use: poll completions, then post the chain "+
			"again, which goes on there", at)
	case sys.EINVAL:
		e.Kind = ErrInvalid
		e.Hint = fmt.Sprintf("request %d of the chain: the queue pair's state or type, the number of SGEs or the "+
			"length of inline data does not allow it", at)
	case sys.EOPNOTSUPP:
		e.Hint = fmt.Sprintf("request %d of the chain: the device has no such operation", at)
	default:
		if e.Hint == "" {
			e.Hint = fmt.Sprintf("request %d of the chain", at)
		}
	}
	return e
}

func (c *chain) close() {
	dl.Free(c.mem)
	*c = chain{}
}

// NewSendChain makes an empty chain for wrs requests with sges SGEs altogether. The caller closes
// it.
func NewSendChain(wrs, sges int) (*SendChain, error) {
	c, err := newChain("send chain", wrs, sges, sendWRSize)
	if err != nil {
		return nil, err
	}
	return &SendChain{chain: c, wrs: structs[cSendWR](c.mem, wrs)}, nil
}

// Cap is how many requests there is room for.
func (c *SendChain) Cap() int { return len(c.wrs) }

// Reset empties the chain.
func (c *SendChain) Reset() { c.reset() }

// Close gives the memory back; the chain is then empty for ever, and a second Close does nothing.
func (c *SendChain) Close() {
	c.close()
	*c = SendChain{}
}

// add appends a request. All others go through it; nil is returned when there is no room for it.
func (c *SendChain) add(id uint64, op uint32, flags SendFlags, sges []SGE) *cSendWR {
	if c.n == len(c.wrs) || len(sges) > len(c.sges)-c.sge {
		return nil
	}
	i := c.n
	w := &c.wrs[i]
	w.id, w.next, w.opcode, w.flags = id, 0, op, uint32(flags)
	w.sges, w.numSGE = c.take(sges), int32(len(sges))
	if i > 0 {
		c.wrs[i-1].next = c.base + uintptr(i)*sendWRSize
	}
	c.n++
	return w
}

// done is what a builder returns.
func (c *SendChain) done(w *cSendWR) (int, bool) {
	if w == nil {
		return -1, false
	}
	return c.n - 1, true
}

// Flag adds flags to request i, for a caller that knows only at the end which one is the last.
func (c *SendChain) Flag(i int, more SendFlags) { c.wrs[i].flags |= uint32(more) }

// Send appends a message to the peer's next receive. Like all builders it returns the request's
// index, or false when the chain is full.
func (c *SendChain) Send(id uint64, flags SendFlags, sges ...SGE) (int, bool) {
	return c.done(c.add(id, wrSend, flags, sges))
}

// SendImm is Send with a value that comes with the completion.
func (c *SendChain) SendImm(id uint64, flags SendFlags, imm uint32, sges ...SGE) (int, bool) {
	w := c.add(id, wrSendImm, flags, sges)
	if w != nil {
		w.imm = fromBE32(imm)
	}
	return c.done(w)
}

// Write appends a write to the peer's memory at raddr, under the key rkey.
func (c *SendChain) Write(id uint64, flags SendFlags, raddr uint64, rkey uint32, sges ...SGE) (int, bool) {
	return c.done(c.remote(c.add(id, wrWrite, flags, sges), raddr, rkey))
}

// WriteImm is Write that also takes a receive of the peer, whose completion has the value.
func (c *SendChain) WriteImm(id uint64, flags SendFlags, imm uint32, raddr uint64, rkey uint32, sges ...SGE) (int,
	bool) {
	w := c.remote(c.add(id, wrWriteImm, flags, sges), raddr, rkey)
	if w != nil {
		w.imm = fromBE32(imm)
	}
	return c.done(w)
}

// Read appends a read of the peer's memory at raddr into the SGEs.
func (c *SendChain) Read(id uint64, flags SendFlags, raddr uint64, rkey uint32, sges ...SGE) (int, bool) {
	return c.done(c.remote(c.add(id, wrRead, flags, sges), raddr, rkey))
}

func (c *SendChain) remote(w *cSendWR, raddr uint64, rkey uint32) *cSendWR {
	if w != nil {
		w.word0, w.word1 = raddr, uint64(rkey)
	}
	return w
}

// FetchAdd adds to the 8 bytes at raddr, a multiple of 8; what was there comes into the SGE, which
// has 8 bytes.
func (c *SendChain) FetchAdd(id uint64, flags SendFlags, raddr uint64, rkey uint32, add uint64, old SGE) (int, bool) {
	return c.atomic(id, wrFetchAdd, flags, raddr, rkey, add, 0, old)
}

// CmpSwap stores swap in the 8 bytes at raddr if they hold compare; what was there comes into the
// SGE, which has 8 bytes.
func (c *SendChain) CmpSwap(id uint64, flags SendFlags, raddr uint64, rkey uint32, compare, swap uint64, old SGE) (int,
	bool) {
	return c.atomic(id, wrCmpSwap, flags, raddr, rkey, compare, swap, old)
}

func (c *SendChain) atomic(id uint64, op uint32, flags SendFlags, raddr uint64, rkey uint32, operand, swap uint64,
	old SGE) (int, bool) {
	one := [1]SGE{old}
	w := c.add(id, op, flags, one[:])
	if w != nil {
		w.word0, w.word1, w.swap, w.atomicKey = raddr, operand, swap, rkey
	}
	return c.done(w)
}

// BindMW binds a window under the key rkey, see MW.NextKey. The window's RKey is rkey from now on.
// Peers may use the key when this request has completed, or in what is posted after it on the same
// queue pair. A window or region that is closed makes it return false.
func (c *SendChain) BindMW(id uint64, flags SendFlags, m *MW, rkey uint32, win Window) (int, bool) {
	if m == nil || m.h == 0 || win.MR == nil || win.MR.h == 0 {
		return -1, false
	}
	w := c.add(id, wrBindMW, flags, nil)
	if w != nil {
		// Soft-RoCE refuses a binding with what the last user of this place has left
		w.mw, w.mwKey, w.imm = m.h, rkey, 0
		w.bind = cBind{mr: win.MR.h, addr: win.Addr, length: win.Length, access: uint32(win.Access)}
		m.rkey.Store(rkey)
	}
	return c.done(w)
}

// To gives the request that was appended last its receiver, for queue pairs of datagrams. It
// returns false when there is none, or the handle is closed.
func (c *SendChain) To(ah *AH, qpn, qkey uint32) bool {
	if c.n == 0 || ah == nil || ah.h == 0 {
		return false
	}
	w := &c.wrs[c.n-1]
	w.word0, w.word1 = uint64(ah.h), uint64(qpn)|uint64(qkey)<<32
	return true
}

// ToSRQ gives the request that was appended last the number (SRQ.Number) of the peer's shared
// receive queue, for XRC queue pairs.
func (c *SendChain) ToSRQ(number uint32) bool {
	if c.n == 0 {
		return false
	}
	c.wrs[c.n-1].xrcSRQ = number
	return true
}

// RecvChain is a list of receives, as SendChain is of requests.
type RecvChain struct {
	chain
	wrs []cRecvWR
}

// NewRecvChain makes an empty chain for wrs receives with sges SGEs altogether. The caller closes
// it.
func NewRecvChain(wrs, sges int) (*RecvChain, error) {
	c, err := newChain("receive chain", wrs, sges, recvWRSize)
	if err != nil {
		return nil, err
	}
	return &RecvChain{chain: c, wrs: structs[cRecvWR](c.mem, wrs)}, nil
}

// Cap is how many receives there is room for.
func (c *RecvChain) Cap() int { return len(c.wrs) }

// Reset empties the chain.
func (c *RecvChain) Reset() { c.reset() }

// Close gives the memory back; the chain is then empty for ever, and a second Close does nothing.
func (c *RecvChain) Close() {
	c.close()
	*c = RecvChain{}
}

// Recv appends a receive into the SGEs. The first 40 bytes of a datagram are its GRH, or left as
// they are.
func (c *RecvChain) Recv(id uint64, sges ...SGE) (int, bool) {
	if c.n == len(c.wrs) || len(sges) > len(c.sges)-c.sge {
		return -1, false
	}
	i := c.n
	w := &c.wrs[i]
	w.id, w.next = id, 0
	w.sges, w.numSGE = c.take(sges), int32(len(sges))
	if i > 0 {
		c.wrs[i-1].next = c.base + uintptr(i)*recvWRSize
	}
	c.n++
	return i, true
}
