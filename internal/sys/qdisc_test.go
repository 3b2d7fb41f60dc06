package sys

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func attribute(kind uint16, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&3)...)
}

func numbers(v ...uint32) []byte {
	var b []byte
	for _, v := range v {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return b
}

func message(kind uint16, body ...byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, make([]byte, unix.SizeofNlMsghdr-6)...)
	b = append(b, body...)
	return append(b, make([]byte, -len(body)&3)...)
}

func qdiscMessage(device, parent uint32, kind string, options ...byte) []byte {
	body := slices.Concat(numbers(0, device, 0x80010000, parent, 2), attribute(tcaKind, append([]byte(kind), 0)...),
		attribute(tcaOptions, options...))
	return message(unix.RTM_NEWQDISC, body...)
}

func qdiscAnswers() [][]byte {
	etf := attribute(tcaEtfParms, numbers(300000, unix.CLOCK_TAI, 1)...)
	fq := slices.Concat(attribute(1, numbers(10000)...), attribute(tcaFqHorizon, numbers(10e6)...))
	return [][]byte{
		slices.Concat(qdiscMessage(3, QdiscRoot, "etf", etf...), qdiscMessage(4, QdiscRoot, "fq", fq...),
			qdiscMessage(3, 0x10001, "fq", fq...), message(unix.NLMSG_DONE, 0, 0, 0, 0)),
		message(unix.NLMSG_ERROR, numbers(^uint32(unix.EPERM)+1)...),
		message(unix.NLMSG_ERROR, 1),
		qdiscMessage(3, QdiscRoot, "noqueue"),
		message(unix.RTM_NEWQDISC, 1, 2, 3),
		message(unix.RTM_NEWQDISC, append(make([]byte, 20), 3, 0, 0, 0)...),
		{1, 2, 3},
		{255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	}
}

func TestParseQdiscs(t *testing.T) {
	a := qdiscAnswers()
	qs, done, err := ParseQdiscs(nil, a[0], 3)
	want := []Qdisc{
		{Kind: "etf", Device: 3, Handle: 0x80010000, Parent: QdiscRoot, Clock: unix.CLOCK_TAI, Delta: 300 * time.Microsecond, Deadline: true},
		{Kind: "fq", Device: 3, Handle: 0x80010000, Parent: 0x10001, Clock: unix.CLOCK_MONOTONIC, Horizon: 10 * time.Second},
	}
	if err != nil || !done || !slices.Equal(qs, want) {
		t.Errorf("%+v, %v, %v", qs, done, err)
	}
	if _, _, err := ParseQdiscs(nil, a[1], 3); err != unix.EPERM {
		t.Error(err)
	}
	if qs, done, err := ParseQdiscs(want[:1], a[3], 3); err != nil || done || len(qs) != 2 || qs[1].Kind != "noqueue" {
		t.Errorf("%+v, %v, %v", qs, done, err)
	}
	for _, i := range []int{2, 4, 5, 6, 7} {
		if _, _, err := ParseQdiscs(nil, a[i], 3); err != errNetlink {
			t.Errorf("answer %d: %v", i, err)
		}
	}
	// The kernel's own answer.
	if qs, err := DeviceQdiscs("lo"); err != nil || len(qs) > 0 && (qs[0].Device == 0 || qs[0].Kind == "") {
		t.Errorf("lo: %+v, %v", qs, err)
	}
	if _, err := DeviceQdiscs("no-such-device"); !IsErrno(err, unix.ENODEV) {
		t.Error(err)
	}
	if _, err := DeviceQdiscs("a name that is much too long"); err == nil {
		t.Error("a name that is too long")
	}
}

func FuzzParseQdiscs(f *testing.F) {
	for _, a := range qdiscAnswers() {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		qs, _, err := ParseQdiscs(nil, b, 3)
		if !slices.Equal(b, before) {
			t.Fatal("the answer was changed")
		}
		for _, q := range qs {
			if q.Device != 3 || q.Horizon < 0 || len(q.Kind) > len(b) {
				t.Fatalf("%+v, %v", q, err)
			}
		}
		if len(qs)*(unix.SizeofNlMsghdr+20) > len(b) {
			t.Fatalf("%d qdiscs in %d bytes", len(qs), len(b))
		}
	})
}
