package ibv

import "fmt"

// ID is the caller's number of the request.
func (w *WC) ID() uint64 { return w.id }

// Status says whether the request succeeded.
func (w *WC) Status() Status { return Status(w.status) }

// Opcode is what completed. It means something only where Status is Success.
func (w *WC) Opcode() Opcode { return Opcode(w.opcode) }

// Len is how many bytes a receive, a read or an atomic brought. It means nothing for other
// requests, or where the status is not Success. Of a datagram it includes the 40 bytes of its GRH,
// which are always there.
func (w *WC) Len() int { return int(w.length) }

// Imm is the immediate value that came with a receive, where Flags has FlagImm; the key that the
// peer invalidated, where it has FlagInv.
func (w *WC) Imm() uint32 {
	if w.flags&uint32(FlagInv) != 0 {
		return w.imm
	}
	return fromBE32(w.imm)
}

// QPN is the number of the local queue pair.
func (w *WC) QPN() uint32 { return w.qpn }

// SrcQP is the number of the sender's queue pair, of a datagram.
func (w *WC) SrcQP() uint32 { return w.srcQP }

// Flags say what else is in the completion.
func (w *WC) Flags() WCFlags { return WCFlags(w.flags) }

// Err is nil for Success, and an error that says what the status means otherwise.
func (w *WC) Err() error {
	if w.status == uint32(Success) {
		return nil
	}
	return &CompletionError{ID: w.id, Status: Status(w.status), QPN: w.qpn, VendorErr: w.vendorErr}
}

// CompletionError is a request that failed.
type CompletionError struct {
	ID        uint64
	Status    Status
	QPN       uint32
	VendorErr uint32
}

func (e *CompletionError) Error() string {
	return fmt.Sprintf("ibv: request %#x of queue pair %#x: %s (vendor code %#x)", e.ID, e.QPN, e.Status, e.VendorErr)
}

// WCFlags say what else is in a completion.
type WCFlags uint32

// The flags.
const (
	FlagGRH    WCFlags = 1 << 0 // the first 40 bytes of the receive are a GRH
	FlagImm    WCFlags = 1 << 1
	FlagCsumOK WCFlags = 1 << 2
	FlagInv    WCFlags = 1 << 3
)

// Opcode is what completed.
type Opcode uint32

// The opcodes. Those from OpRecv on are receives.
const (
	OpSend Opcode = iota
	OpWrite
	OpRead
	OpCmpSwap
	OpFetchAdd
	OpBindMW
	OpLocalInv
	OpTSO
	OpRecv      Opcode = 128
	OpRecvWrite Opcode = 129 // a peer's write with an immediate value, which took a receive
)

func (o Opcode) String() string {
	switch {
	case o <= OpTSO:
		return oneOf(uint32(o), "send", "write", "read", "compare and swap", "fetch and add", "bind window",
			"invalidate", "segmented send")
	case o == OpRecv:
		return "receive"
	case o == OpRecvWrite:
		return "receive of a write"
	}
	return fmt.Sprintf("opcode %d", uint32(o))
}

// Status is the end of a request (enum ibv_wc_status; the meanings are those of the InfiniBand
// specification, volume 1, 11.6.2).
type Status uint32

// The statuses.
const (
	Success Status = iota
	LocLenErr
	LocQPOpErr
	LocEECOpErr
	LocProtErr
	WRFlushErr
	MWBindErr
	BadRespErr
	LocAccessErr
	RemInvReqErr
	RemAccessErr
	RemOpErr
	RetryExcErr
	RNRRetryExcErr
	LocRDDViolErr
	RemInvRDReqErr
	RemAbortErr
	InvEECNErr
	InvEECStateErr
	FatalErr
	RespTimeoutErr
	GeneralErr
	TMErr
	TMRndvIncomplete
)

// statuses are the names and what usually causes them.
var statuses = [...][2]string{
	{"success", ""},
	{"local length error", "the message does not fit the receive's buffers, or is longer than the port allows"},
	{"local queue pair operation error", "the request is not consistent: its operation, its number of SGEs or a key that does not exist"},
	{"local EE context operation error", "reliable datagrams, which no device has"},
	{"local protection error", "an SGE's key is not of this protection domain, its bytes are not inside the region, or the region may not be written locally"},
	{"flushed", "the queue pair was in error, or got into it: an earlier request failed, or its owner ended it"},
	{"memory window bind error", "the region lacks the right to bind windows, does not hold the range or the rights, or the window is another queue pair's"},
	{"bad response", "the peer's answer makes no sense for the request"},
	{"local access error", "a write with an immediate value came for memory that may not be written"},
	{"remote invalid request", "the peer takes no such request: its receive is too small, its queue pair lacks the " +
		"right (InitAttr.Access), or an atomic is not at a multiple of 8"},
	{"remote access error", "the peer has no such key, the range is not inside its region or window, or the key does not give this right"},
	{"remote operation error", "the peer could not do it: its own receive was wrong (its key, its range)"},
	{"transport retries exceeded",
		"the peer does not answer: it is gone, its queue pair is not ready or in error, the path (GID, LID, MTU, " +
			"packet numbers) is wrong, or packets are lost"},
	{"receiver-not-ready retries exceeded", "the peer has posted no receive for this message"},
	{"local RDD violation", "reliable datagrams, which no device has"},
	{"remote invalid RD request", "reliable datagrams, which no device has"},
	{"remote aborted", "the peer gave the operation up"},
	{"invalid EE context number", "reliable datagrams, which no device has"},
	{"invalid EE context state", "reliable datagrams, which no device has"},
	{"fatal error", "the device has failed; close it and open it again"},
	{"response timeout", "the peer took too long to answer"},
	{"general error", "the device does not tell; see the vendor code and the kernel's log"},
	{"tag matching error", "a tagged message went wrong"},
	{"tag matching rendezvous is incomplete", "the software has to finish it"},
}

// Name is the status in a few words.
func (s Status) Name() string {
	if int(s) < len(statuses) {
		return statuses[s][0]
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// Cause is what usually leads to the status, "" for Success and for what is unknown.
func (s Status) Cause() string {
	if int(s) < len(statuses) {
		return statuses[s][1]
	}
	return ""
}

// String is the name and the usual cause.
func (s Status) String() string {
	if c := s.Cause(); c != "" {
		return s.Name() + ": " + c
	}
	return s.Name()
}
