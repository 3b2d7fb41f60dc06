package ibv

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// QPState is the state of a queue pair (InfiniBand specification, volume 1, 10.3).
type QPState uint32

// The states. Receives may be posted from Init on, requests in ReadyToSend.
const (
	QPReset QPState = iota
	QPInit
	QPReadyToReceive
	QPReadyToSend
	QPSQDrained
	QPSQError
	QPError
	QPUnknown
)

func (s QPState) String() string {
	return oneOf(uint32(s), "reset", "init", "ready to receive", "ready to send", "send queue drained",
		"send queue error", "error", "unknown")
}

// transitions are the legal ones: those of the specification, figure 124, as the Linux kernel has
// them, but for those into QPSQDrained, which no call here makes. A queue pair goes into QPError
// and QPSQError by itself as well.
var transitions = [...][]QPState{
	QPReset:          {QPReset, QPInit},
	QPInit:           {QPReset, QPInit, QPReadyToReceive, QPError},
	QPReadyToReceive: {QPReset, QPReadyToSend, QPError},
	QPReadyToSend:    {QPReset, QPReadyToSend, QPError},
	QPSQDrained:      {QPReset, QPReadyToSend, QPError},
	QPSQError:        {QPReset, QPReadyToSend, QPError},
	QPError:          {QPReset, QPError},
}

// Bits of the mask of ibv_modify_qp.
const (
	maskState = 1 << iota
	maskCurState
	maskSQDNotify
	maskAccess
	maskPKeyIndex
	maskPort
	maskQKey
	maskAV
	maskPathMTU
	maskTimeout
	maskRetryCount
	maskRNRRetry
	maskRQPSN
	maskMaxRdAtomic
	maskAltPath
	maskMinRNRTimer
	maskSQPSN
	maskMaxDestRdAtomic
	maskPathMigState
	maskCap
	maskDestQPN
)

// InitAttr is what Init needs.
type InitAttr struct {
	Port      uint8  // 0: port 1
	PKeyIndex uint16 // of the partition key table; 0 is the default partition
	Access    Access // what the peer may do: RemoteWrite, RemoteRead, RemoteAtomic. Connected types only.
	QKey      uint32 // datagrams only: senders must know it
}

// RTRAttr is what ReadyToReceive needs. Of datagrams and raw packets nothing.
type RTRAttr struct {
	To              Address // the way to the peer
	RemoteQPN       uint32
	PSN             uint32 // the packet number that the peer begins with (its RTSAttr.PSN), 24 bits
	PathMTU         MTU
	MaxDestRdAtomic uint8 // reads and atomics of the peer at once, at most DeviceAttr.MaxRdAtomic
	// how long the peer waits when there is no receive, in the code of the specification (12 is
	// 0.64 ms, 0 655 ms)
	MinRNRTimer uint8
}

// RTSAttr is what ReadyToSend needs. Of UC and datagrams the PSN alone.
type RTSAttr struct {
	PSN         uint32 // the packet number to begin with, 24 bits; the peer's RTRAttr.PSN
	Timeout     uint8  // 4.096 µs × 2^Timeout until a retry; 0 is for ever
	RetryCount  uint8  // 0 to 7
	RNRRetry    uint8  // 0 to 6; 7 is for ever
	MaxRdAtomic uint8  // reads and atomics to the peer at once, at most its MaxDestRdAtomic
}

// Init makes a queue pair that was made or reset ready for receives to be posted.
func (q *QP) Init(a InitAttr) error {
	if q.spec.Type != UD && a.QKey != 0 {
		return q.bad("QKey is of datagrams only")
	}
	if a.Access&^(LocalWrite|RemoteWrite|RemoteRead|RemoteAtomic) != 0 {
		return q.bad("rights %s: expected local write, remote write, remote read and remote atomic", a.Access)
	}
	return q.modify(QPInit, func(c *cQPAttr) int {
		c.port, c.pkeyIndex, c.access, c.qkey = max(a.Port, 1), a.PKeyIndex, uint32(a.Access), a.QKey
		switch q.spec.Type {
		case UD:
			return maskPKeyIndex | maskPort | maskQKey
		case RawPacket:
			return maskPort
		}
		return maskPKeyIndex | maskPort | maskAccess
	})
}

// ReadyToReceive connects the queue pair to its peer: messages can arrive.
func (q *QP) ReadyToReceive(a RTRAttr) error {
	connected := q.spec.Type != UD && q.spec.Type != RawPacket
	if connected {
		if err := a.To.check("modify_qp", q.name); err != nil {
			return err
		}
		switch {
		case a.PathMTU.Bytes() == 0:
			return q.bad("path MTU %d: expected MTU256 to MTU4096; the port's is PortAttr.ActiveMTU", uint32(a.PathMTU))
		case a.RemoteQPN == 0 || a.RemoteQPN >= 1<<24:
			return q.bad("the peer's queue pair %#x: expected its number, 24 bits", a.RemoteQPN)
		case a.PSN >= 1<<24:
			return q.bad("packet number %#x: expected 24 bits", a.PSN)
		case a.MinRNRTimer > 31:
			return q.bad("RNR timer %d: expected 0 to 31", a.MinRNRTimer)
		}
	}
	return q.modify(QPReadyToReceive, func(c *cQPAttr) int {
		if !connected {
			return 0
		}
		a.To.put(&c.ah)
		c.destQPN, c.rqPSN, c.pathMTU = a.RemoteQPN, a.PSN, uint32(a.PathMTU)
		c.maxDestAtomic, c.minRNRTimer = a.MaxDestRdAtomic, a.MinRNRTimer
		mask := maskAV | maskPathMTU | maskDestQPN | maskRQPSN
		if q.spec.Type == RC || q.spec.Type == XRCRecv {
			mask |= maskMaxDestRdAtomic | maskMinRNRTimer
		}
		return mask
	})
}

// ReadyToSend lets requests be executed. From the drained and the send queue error state it goes
// on, with what was set before.
func (q *QP) ReadyToSend(a RTSAttr) error {
	switch {
	case a.PSN >= 1<<24:
		return q.bad("packet number %#x: expected 24 bits", a.PSN)
	case a.Timeout > 31 || a.RetryCount > 7 || a.RNRRetry > 7:
		return q.bad("timeout %d, retries %d, RNR retries %d: expected at most 31, 7 and 7", a.Timeout, a.RetryCount,
			a.RNRRetry)
	}
	return q.modify(QPReadyToSend, func(c *cQPAttr) int {
		if q.state != QPReadyToReceive || q.spec.Type == RawPacket {
			return 0
		}
		c.sqPSN, c.timeout, c.retryCount, c.rnrRetry, c.maxRdAtomic = a.PSN, a.Timeout, a.RetryCount, a.RNRRetry,
			a.MaxRdAtomic
		switch q.spec.Type {
		case RC, XRCSend:
			return maskSQPSN | maskTimeout | maskRetryCount | maskRNRRetry | maskMaxRdAtomic
		case XRCRecv:
			return maskSQPSN | maskTimeout
		}
		return maskSQPSN
	})
}

// Err ends the queue pair's work: what is outstanding is flushed, and the peer cannot reach memory
// through it any more.
func (q *QP) Err() error { return q.modify(QPError, func(*cQPAttr) int { return 0 }) }

// Reset brings it back to the beginning; what is outstanding is forgotten, without completions.
func (q *QP) Reset() error { return q.modify(QPReset, func(*cQPAttr) int { return 0 }) }

func (q *QP) bad(format string, args ...any) error {
	return invalid("modify_qp", q.name, format, args...)
}

// modify makes one transition, if it is legal from where the queue pair is known to be.
func (q *QP) modify(to QPState, fill func(c *cQPAttr) (mask int)) error {
	const op = "modify_qp"
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.alive(op); err != nil {
		return err
	}
	if !slices.Contains(transitions[q.state], to) {
		return q.illegal(to)
	}
	c := q.attr.v
	*c = cQPAttr{}
	mask := maskState | fill(c)
	c.state = uint32(to)
	if err := q.pd.ctx.returned(op, q.name, q.pd.ctx.lib.f.modifyQP, q.h, q.attr.p(), uintptr(mask)); err != nil {
		return q.modifyError(err, to)
	}
	q.state = to
	return nil
}

func (q *QP) illegal(to QPState) error {
	var from []string
	for s, next := range transitions {
		if slices.Contains(next, to) {
			from = append(from, QPState(s).String())
		}
	}
	return &Error{Op: "modify_qp", On: q.name, Kind: ErrState,
		Hint: fmt.Sprintf("it is in state %q, and %q comes after %s", q.state, to, strings.Join(from, ", "))}
}

// modifyError asks where the queue pair really is: it may have gone into error by itself.
func (q *QP) modifyError(err error, to QPState) error {
	e, ok := err.(*Error)
	if !ok {
		return err
	}
	was := q.state
	e.Hint = fmt.Sprintf("from %q to %q", was, to)
	if now, err := q.query(0); err == nil && now.State != was {
		e.Hint += fmt.Sprintf(": it went into %q by itself, after a request failed or the peer broke a rule "+
			"(NextAsync tells)", now.State)
		if !slices.Contains(transitions[now.State], to) {
			e.Kind = ErrState
		}
		return e
	}
	if e.Errno == sys.EINVAL {
		e.Hint += ": the device does not take these attributes: the port, the GID index, the MTU, or the number of " +
			"reads and atomics at once"
	}
	return e
}

// QPAttr is the state of a queue pair as the device has it.
type QPAttr struct {
	State                        QPState
	PathMTU                      MTU
	QKey, RQPSN, SQPSN           uint32
	RemoteQPN                    uint32
	Access                       Access
	To                           Address
	PKeyIndex                    uint16
	Port                         uint8
	MaxRdAtomic, MaxDestRdAtomic uint8
	MinRNRTimer, Timeout         uint8
	RetryCount, RNRRetry         uint8
	Draining                     bool
	SendWRs, RecvWRs             int
	SendSGEs, RecvSGEs, Inline   int
}

// Query asks the device for the state.
func (q *QP) Query() (QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.alive("query_qp"); err != nil {
		return QPAttr{}, err
	}
	return q.query(maskAccess | maskPKeyIndex | maskPort | maskQKey | maskAV | maskPathMTU | maskTimeout |
		maskRetryCount | maskRNRRetry | maskRQPSN |
		maskMaxRdAtomic | maskMinRNRTimer | maskSQPSN | maskMaxDestRdAtomic | maskCap | maskDestQPN)
}

// State asks the device for the state alone.
func (q *QP) State() (QPState, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.alive("query_qp"); err != nil {
		return QPUnknown, err
	}
	a, err := q.query(0)
	if err != nil {
		return QPUnknown, err
	}
	return a.State, nil
}

func (q *QP) query(mask int) (QPAttr, error) {
	c := q.attr.v
	*c = cQPAttr{}
	*q.init.v = cQPInitEx{}
	err := q.pd.ctx.returned("query_qp", q.name, q.pd.ctx.lib.f.queryQP, q.h, q.attr.p(), uintptr(maskState|mask),
		q.init.p())
	if err != nil {
		return QPAttr{}, err
	}
	if c.state >= uint32(QPUnknown) {
		return QPAttr{}, layoutError("ibv_qp_attr.qp_state", c.state, "0 to 6")
	}
	q.state = QPState(c.state)
	return QPAttr{State: q.state, PathMTU: MTU(c.pathMTU), QKey: c.qkey, RQPSN: c.rqPSN, SQPSN: c.sqPSN,
		RemoteQPN: c.destQPN, Access: Access(c.access),
		To: c.ah.address(), PKeyIndex: c.pkeyIndex, Port: c.port, MaxRdAtomic: c.maxRdAtomic,
		MaxDestRdAtomic: c.maxDestAtomic, MinRNRTimer: c.minRNRTimer,
		Timeout: c.timeout, RetryCount: c.retryCount, RNRRetry: c.rnrRetry, Draining: c.sqDraining != 0,
		SendWRs: int(c.cap.sendWRs),
		RecvWRs: int(c.cap.recvWRs), SendSGEs: int(c.cap.sendSGEs), RecvSGEs: int(c.cap.recvSGEs),
		Inline: int(c.cap.inline)}, nil
}
