package sys

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"github.com/penstock-io/penstock/internal/netlink"
	"golang.org/x/sys/unix"
)

// Qdisc is a queueing discipline of a network device (man 8 tc), as far as it has to do with times.
type Qdisc struct {
	Kind   string // "fq", "etf", "noqueue"
	Device int    // number of the interface
	Handle uint32
	Parent uint32 // QdiscRoot for the device's own

	// Of etf.
	Clock    int32         // that its packets' times go by
	Delta    time.Duration // how long before its time it gives a packet to the driver
	Deadline bool          // times are when to send at the latest
	Offload  bool          // the NIC waits, too

	// Horizon is how far ahead times may be, 0 for any. Of fq.
	Horizon time.Duration
}

// QdiscRoot is the Parent of a device's own qdisc (TC_H_ROOT).
const QdiscRoot = 1<<32 - 1

var errNetlink = errors.New("malformed rtnetlink message")

// Numbers of linux/pkt_sched.h, which x/sys does not have.
const (
	tcaKind      = 1
	tcaOptions   = 2
	tcaEtfParms  = 1
	tcaFqHorizon = 14
)

// DeviceQdiscs lists the qdiscs of a network device in the calling thread's network namespace (man
// 7 rtnetlink, RTM_GETQDISC).
func DeviceQdiscs(device string) ([]Qdisc, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, callError("socket", "NETLINK_ROUTE", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(device)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr)
	}
	if err != nil {
		return nil, callError("ioctl", "SIOCGIFINDEX "+device, err)
	}
	index := int(int32(ifr.Uint32()))
	var req [unix.SizeofNlMsghdr + 20]byte // with a struct tcmsg
	binary.NativeEndian.PutUint32(req[:], uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.RTM_GETQDISC)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(req[20:], uint32(index))
	if err := unix.Sendto(fd, req[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, callError("sendto", "RTM_GETQDISC "+device, err)
	}
	var out []Qdisc
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == EINTR {
			continue
		}
		done := false
		if err == nil {
			out, done, err = ParseQdiscs(out, buf[:n], index)
		}
		if err != nil {
			return nil, callError("recv", "RTM_GETQDISC "+device, err)
		}
		if done {
			return out, nil
		}
	}
}

// ParseQdiscs appends the qdiscs of a device, by number, that a part of an answer to RTM_GETQDISC
// lists, and says whether it was the last part.
func ParseQdiscs(out []Qdisc, b []byte, device int) (qs []Qdisc, done bool, err error) {
	for len(b) > 0 {
		m, rest, ok := netlink.Next(b)
		if !ok {
			return out, false, errNetlink
		}
		switch m.Kind {
		case netlink.Done:
			return out, true, nil
		case netlink.Error:
			switch e, ok := m.Errno(); {
			case !ok:
				return out, false, errNetlink
			case e != 0:
				return out, false, Errno(e)
			}
			return out, true, nil
		case unix.RTM_NEWQDISC:
			q, err := parseQdisc(m.Body)
			if err != nil {
				return out, false, err
			}
			if q.Device == device {
				out = append(out, q)
			}
		}
		b = rest
	}
	return out, false, nil
}

// parseQdisc reads a struct tcmsg and its attributes.
func parseQdisc(b []byte) (q Qdisc, err error) {
	if len(b) < 20 {
		return q, errNetlink
	}
	q.Device = int(int32(binary.NativeEndian.Uint32(b[4:])))
	q.Handle, q.Parent = binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])
	var options []byte
	err = attributes(b[20:], func(kind uint16, data []byte) {
		switch kind {
		case tcaKind:
			s, _, _ := bytes.Cut(data, []byte{0})
			q.Kind = string(s)
		case tcaOptions:
			options = data
		}
	})
	if err != nil {
		return q, err
	}
	switch q.Kind {
	case "etf":
		err = attributes(options, func(kind uint16, data []byte) {
			if kind == tcaEtfParms && len(data) >= 12 { // struct tc_etf_qopt
				q.Delta = time.Duration(int32(binary.NativeEndian.Uint32(data)))
				q.Clock = int32(binary.NativeEndian.Uint32(data[4:]))
				flags := binary.NativeEndian.Uint32(data[8:])
				q.Deadline, q.Offload = flags&1 != 0, flags&2 != 0
			}
		})
	case "fq":
		q.Clock = ClockMonotonic
		err = attributes(options, func(kind uint16, data []byte) {
			if kind == tcaFqHorizon && len(data) >= 4 {
				q.Horizon = time.Duration(binary.NativeEndian.Uint32(data)) * time.Microsecond
			}
		})
	}
	return q, err
}

// attributes calls f for each attribute; unlike netlink.Attributes it says where one is malformed.
func attributes(b []byte, f func(kind uint16, data []byte)) error {
	for len(b) >= 4 {
		kind, data, rest, ok := netlink.NextAttribute(b)
		if !ok {
			return errNetlink
		}
		f(kind, data)
		b = rest
	}
	return nil
}
