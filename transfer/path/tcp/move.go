package tcp

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/seal"
)

// receive reads the streams that may have something; all means every one. It returns how many bytes
// came.
func (p *Path) receive(all bool) int {
	p.calls++
	all = all || p.calls%coldEvery == 0
	if p.beside > 0 {
		p.beside--
	}
	sum := p.readSmall()
	first, budget := sum, p.budget()
	for k := range len(p.streams) - 1 {
		i := p.after(k)
		s := p.streams[i]
		if p.err != nil || sum >= budget || sum > 0 && p.pending() {
			break
		}
		if p.fds[i] < 0 || !all && p.heat[i] == 0 && !s.in.paused {
			continue
		}
		n := p.read(s, p.fds[i], budget-sum)
		if p.err != nil {
			return sum
		}
		if n > 0 {
			p.heat[i] = heatMax
		} else if p.heat[i] > 0 {
			p.heat[i]--
		}
		sum += n
		if n > 0 {
			p.turn = i % (len(p.streams) - 1) // the next one is first the next time
			k := p.readSmall()
			first += k
			sum += k
		}
	}
	p.prompt = first > 0 && sum > first
	return sum
}

// readSmall reads the first stream, which is all there is or carries what is small.
func (p *Path) readSmall() int {
	if p.err != nil || p.fds[0] < 0 {
		return 0
	}
	return p.read(p.streams[0], p.fds[0], p.budget())
}

// after is the k-th stream after the first, beginning with the one whose turn it is.
func (p *Path) after(k int) int { return 1 + (p.turn+k)%(len(p.streams)-1) }

// budget is how much one call moves in each direction.
func (p *Path) budget() int {
	if p.smallMoved {
		p.smallMoved, p.beside = false, smallCalls
	}
	if p.beside > 0 {
		return smallBudget
	}
	return moveBudget
}

// atMost shortens a list of pieces to n bytes and returns the list and the whole of its last piece,
// which the caller may put back.
func atMost(v []sys.Iovec, n int) ([]sys.Iovec, []byte) {
	for i := range v {
		l := v[i].Len()
		if l >= n {
			b := v[i].Bytes()
			v[i].Set(b[:n])
			return v[:i+1], b
		}
		n -= l
	}
	return v, nil
}

func (p *Path) read(s *stream, fd, budget int) int {
	sum := 0
	if s.in.paused {
		err := p.process(s)
		if err == nil && s.rx != nil && !s.in.paused {
			err = p.unseal(s)
		}
		if err != nil {
			p.broken(s, err)
			return 0
		}
	}
	for sum < budget {
		v := p.rxv[:0]
		if s.rx != nil {
			if b := s.rx.space(); len(b) > 0 && !s.in.paused {
				v = v[:1]
				v[0].Set(b)
			}
		} else {
			v = s.in.targets(v, p.trash)
		}
		if len(v) == 0 {
			break
		}
		v, _ = atMost(v, budget-sum)
		asked := 0
		for i := range v {
			asked += v[i].Len()
		}
		n, e := sys.Recvv(fd, v)
		p.st.Syscalls++
		if e != 0 {
			if e == sys.EINTR {
				continue
			}
			if e != sys.EAGAIN {
				p.cut(s, e)
			}
			break
		}
		if n == 0 {
			p.cut(s, nil)
			break
		}
		sum += n
		var err error
		if s.rx != nil {
			s.rx.w += n
			err = p.unseal(s)
		} else {
			err = p.received(s, n)
		}
		if err != nil {
			p.broken(s, err)
			break
		}
		if n < asked { // the socket is empty: spare the call that would say so
			break
		}
	}
	return sum
}

// send fills and sends batches until the sockets take no more, there is nothing left or the budget
// is used up. Idle says that an acknowledgement has nothing to travel with.
func (p *Path) send(idle bool) {
	budget := p.budget()
	for progress := true; progress && budget > 0; {
		progress = false
		for k := range p.streams {
			i := 0
			if k > 0 {
				i = p.after(k - 1)
			}
			s := p.streams[i]
			o := &s.out
			if p.fds[i] < 0 {
				continue
			}
			if !s.busy() {
				ackNow := s.in.ackOwed && (idle || s.ackDue() || i == 0 && p.prompt)
				if ackNow || len(o.ctl) > 0 || p.workFor(s) {
					if p.spent(s) {
						return
					}
					p.fill(s, ackNow)
				}
				if o.left == 0 {
					continue
				}
			}
			n := p.write(s, p.fds[i], max(budget, 1))
			if p.err != nil {
				return
			}
			budget -= n
			if !s.busy() {
				progress = true
			}
			if n > 0 && i > 0 {
				p.heat[i] = heatMax
			}
		}
	}
	p.more = budget <= 0
}

// write sends what is left of a batch, as far as the socket takes it.
func (p *Path) write(s *stream, fd, budget int) int {
	if s.tx != nil {
		return p.writeSealed(s, fd, budget)
	}
	o := &s.out
	sum := 0
	for o.left > 0 && sum < budget {
		v, flags := o.batch(), 0
		if p.zc.on && o.large && len(o.served) == 0 {
			v, flags = zeroCopyRun(v)
		}
		v, whole := atMost(v, budget-sum)
		n, e := sys.Sendv(fd, v, flags)
		if whole != nil {
			v[len(v)-1].Set(whole)
		}
		p.st.Syscalls++
		if e != 0 {
			if e == sys.EINTR {
				continue
			}
			if e == sys.ENOBUFS && flags == sys.MsgZeroCopy { // too many sends whose memory is in use: copy instead
				o.large = false
				continue
			}
			if e != sys.EAGAIN {
				p.cut(s, e)
			}
			break
		}
		if flags == sys.MsgZeroCopy {
			o.zcSent++
			p.st.ZeroCopySends++
		}
		sum += n
		if s.kernelOut {
			s.kernelUsed += kernelBlocks(n)
		}
		o.gone(n)
		p.dirty = true
	}
	return sum
}

// writeSealed seals and sends what is left of a batch, as far as the socket takes it.
func (p *Path) writeSealed(s *stream, fd, budget int) int {
	x, sum := s.tx, 0
	for s.busy() && sum < budget {
		if x.r == x.w {
			if err := x.pack(&s.out); err != nil {
				p.down(fmt.Errorf("tcp: %w: connection %d: %w", path.ErrDown, s.index, err))
				break
			}
		}
		v := p.txv[:1]
		v[0].Set(x.buf[x.r:x.w])
		n, e := sys.Sendv(fd, v, 0)
		p.st.Syscalls++
		if e != 0 {
			if e == sys.EINTR {
				continue
			}
			if e != sys.EAGAIN {
				p.cut(s, e)
			}
			break
		}
		x.r += n
		sum += n
		p.dirty = true
	}
	return sum
}

// kernelBlocks is what the kernel's encryption of n bytes costs a key, at most.
func kernelBlocks(n int) uint64 {
	return uint64(n/seal.MaxContent)*seal.Blocks(seal.MaxContent) + seal.Blocks(n%seal.MaxContent)
}

// spent ends the path in order if the key of a stream cannot be changed and the next batch might be
// too much for it.
func (p *Path) spent(s *stream) bool {
	var used uint64
	switch {
	case s.kernelOut:
		used = s.kernelUsed
	case s.tx != nil && s.tx.fixed:
		used = s.tx.seal.Used()
	default:
		return false
	}
	if used+spentMargin <= p.sealLimit {
		return false
	}
	p.goodbye()
	p.fail(fmt.Errorf("tcp: %w: connection %d: %w, and kTLS at one of its ends cannot change keys: the next path "+
		"begins with new ones", path.ErrDown, s.index, seal.ErrSpent))
	p.closeSockets(false) // the goodbye is still to arrive
	return true
}

// spentMargin is more blocks than two batches take.
const spentMargin = 1 << 18
