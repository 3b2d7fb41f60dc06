package sys

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func control(level, kind int, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint64(nil, uint64(unix.SizeofCmsghdr+len(data)))
	b = binary.NativeEndian.AppendUint32(b, uint32(level))
	b = binary.NativeEndian.AppendUint32(b, uint32(kind))
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&7)...)
}

// report is a struct sock_extended_err.
func report(origin, code byte, ns int64) []byte {
	return slices.Concat(numbers(uint32(unix.EINVAL)), []byte{origin, 0, code, 0}, numbers(uint32(ns), uint32(ns>>32)),
		make([]byte, 16))
}

func TestTxTimeReport(t *testing.T) {
	const ns = 1.7e18 + 3
	missed := control(unix.SOL_IP, unix.IP_RECVERR,
		report(unix.SO_EE_ORIGIN_TXTIME, unix.SO_EE_CODE_TXTIME_MISSED, ns)...)
	for _, c := range []struct {
		name string
		b    []byte
		want TxTimeReport
	}{
		{"missed", missed, TxTimeMissed},
		{"behind another", append(control(unix.SOL_SOCKET, unix.SO_TIMESTAMP, 1, 2, 3), missed...), TxTimeMissed},
		{"invalid", control(unix.SOL_IPV6, unix.IPV6_RECVERR, report(unix.SO_EE_ORIGIN_TXTIME, unix.SO_EE_CODE_TXTIME_INVALID_PARAM, ns)...), TxTimeInvalid},
		{"packet", control(unix.SOL_PACKET, unix.PACKET_TX_TIMESTAMP, report(unix.SO_EE_ORIGIN_TXTIME, unix.SO_EE_CODE_TXTIME_MISSED, ns)...), TxTimeMissed},
		{"zero copy", control(unix.SOL_IP, unix.IP_RECVERR, report(unix.SO_EE_ORIGIN_ZEROCOPY, 2, ns)...), TxTimeOther},
		{"short", control(unix.SOL_IP, unix.IP_RECVERR, report(unix.SO_EE_ORIGIN_TXTIME, 2, ns)[:15]...), TxTimeOther},
		{"cut off", missed[:len(missed)-9], TxTimeOther},
		{"nothing", nil, TxTimeOther},
	} {
		r, at := ParseTxTimeReport(c.b)
		if r != c.want || r != TxTimeOther && at != ns {
			t.Errorf("%s: %d at %d, want %d", c.name, r, at, c.want)
		}
	}
}

func FuzzTxTimeReport(f *testing.F) {
	f.Add(control(unix.SOL_IP, unix.IP_RECVERR, report(unix.SO_EE_ORIGIN_TXTIME, 2, 5)...))
	f.Add(append(control(unix.SOL_SOCKET, 1, 1, 2, 3),
		control(unix.SOL_PACKET, unix.PACKET_TX_TIMESTAMP, report(6, 1, 9)...)...))
	f.Add([]byte{16, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		r, _ := ParseTxTimeReport(b)
		if r > TxTimeMissed || r != TxTimeOther && len(b) < 32 || !slices.Equal(b, before) {
			t.Fatalf("%d", r)
		}
	})
}

// The kernel takes the control message as it is written, and nothing that is malformed.
func TestTxTime(t *testing.T) {
	fd, err := SocketUDP(false)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	if err := SetTxTime(fd, ClockMonotonic); err != nil {
		t.Fatal(err)
	}
	var c [TxTimeControl]byte
	PutTxTime(c[:], ClockNow(ClockMonotonic))
	to := &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Sendmsg(fd, []byte("x"), c[:], to, 0); err != nil {
		t.Error(err)
	}
	binary.NativeEndian.PutUint64(c[:], unix.SizeofCmsghdr+4) // not the size of a time
	if err := unix.Sendmsg(fd, []byte("x"), c[:], to, 0); err != unix.EINVAL {
		t.Error(err)
	}
	for {
		r, _, e := ReadTxTimeReport(fd)
		if e == EAGAIN {
			break
		}
		if e != 0 || r != TxTimeOther {
			t.Fatal(r, e)
		}
	}
	if err := SetTxTime(fd, 99); err == nil {
		t.Error("a clock that there is not")
	}
	if ClockNow(99) != 0 {
		t.Error("the time of a clock that there is not")
	}
	if d := time.Now().UnixNano() - ClockNow(ClockRealtime); d > int64(time.Minute) || d < -int64(time.Minute) {
		t.Errorf("the clock is %v off", time.Duration(d))
	}
}
