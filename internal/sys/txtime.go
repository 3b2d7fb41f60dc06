package sys

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Clocks of SO_TXTIME.
const (
	ClockRealtime  = unix.CLOCK_REALTIME
	ClockMonotonic = unix.CLOCK_MONOTONIC
	ClockTAI       = unix.CLOCK_TAI
)

// ClockNow is the time of a clock in nanoseconds (man 2 clock_gettime), 0 for a clock that there is
// not.
func ClockNow(clock int32) int64 {
	var t unix.Timespec
	if unix.ClockGettime(clock, &t) != nil {
		return 0
	}
	return t.Nano()
}

// SetTxTime makes a socket carry a time to send in each message that brings one, by a clock, and
// report those that were not sent on its error queue (SO_TXTIME with SOF_TXTIME_REPORT_ERRORS).
// Some clocks take CAP_NET_ADMIN. Success does not say that a qdisc or a device waits for the time.
func SetTxTime(fd int, clock int32) error {
	const reportErrors = 1 << 1 // SOF_TXTIME_REPORT_ERRORS
	var v [8]byte               // struct sock_txtime
	binary.NativeEndian.PutUint32(v[:], uint32(clock))
	binary.NativeEndian.PutUint32(v[4:], reportErrors)
	return callError("setsockopt", "SO_TXTIME", unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_TXTIME,
		string(v[:])))
}

// TxTimeControl is the size of the control message that PutTxTime writes, with its header.
const TxTimeControl = 24

// PutTxTime writes the control message SCM_TXTIME: send at ns by the clock of SetTxTime. dst has at
// least TxTimeControl bytes.
func PutTxTime(dst []byte, ns int64) {
	_ = dst[TxTimeControl-1]
	binary.NativeEndian.PutUint64(dst, unix.SizeofCmsghdr+8)
	binary.NativeEndian.PutUint32(dst[8:], unix.SOL_SOCKET)
	binary.NativeEndian.PutUint32(dst[12:], unix.SCM_TXTIME)
	binary.NativeEndian.PutUint64(dst[16:], uint64(ns))
}

// TxTimeReport is why a packet with a time was not sent.
type TxTimeReport uint8

// Reports of the error queue.
const (
	TxTimeOther   TxTimeReport = iota // the report is of something else, or malformed
	TxTimeInvalid                     // the qdisc refused the time, such as one that has passed
	TxTimeMissed                      // the time passed while the packet was in the qdisc
)

// ParseTxTimeReport reads the control messages of an error queue (struct sock_extended_err in
// IP_RECVERR, IPV6_RECVERR or PACKET_TX_TIMESTAMP), and the time that the packet was to be sent at
// by the socket's clock. It does not allocate.
func ParseTxTimeReport(c []byte) (r TxTimeReport, ns int64) {
	for len(c) >= unix.SizeofCmsghdr {
		n := binary.NativeEndian.Uint64(c)
		if n < unix.SizeofCmsghdr || n > uint64(len(c)) {
			break
		}
		level, kind := binary.NativeEndian.Uint32(c[8:]), binary.NativeEndian.Uint32(c[12:])
		data := c[unix.SizeofCmsghdr:n]
		switch {
		case level == unix.SOL_IP && kind == unix.IP_RECVERR,
			level == unix.SOL_IPV6 && kind == unix.IPV6_RECVERR,
			level == unix.SOL_PACKET && kind == unix.PACKET_TX_TIMESTAMP:
			// errno, origin, type, code, pad, info, data
			if len(data) < 16 || data[4] != unix.SO_EE_ORIGIN_TXTIME {
				break
			}
			switch data[6] {
			case unix.SO_EE_CODE_TXTIME_INVALID_PARAM:
				r = TxTimeInvalid
			case unix.SO_EE_CODE_TXTIME_MISSED:
				r = TxTimeMissed
			}
			ns = int64(binary.NativeEndian.Uint32(data[12:]))<<32 | int64(binary.NativeEndian.Uint32(data[8:]))
			return r, ns
		}
		c = c[min((n+7)&^7, uint64(len(c))):]
	}
	return TxTimeOther, 0
}
