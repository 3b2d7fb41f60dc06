package ethtool

import (
	"errors"
	"maps"
	"testing"

	"github.com/penstock-io/penstock/internal/netlink"
)

// dcbAnswer is what a driver answers that has flow control of these priorities, and entries in its
// table.
func dcbAnswer(pfc byte, apps ...[]byte) []byte {
	v := make([]byte, pfcLen)
	v[pfcEnabled] = pfc
	for i := range 8 {
		native.PutUint64(v[pfcRequests+8*i:], uint64(i))
		native.PutUint64(v[pfcIndications+8*i:], uint64(10+i))
	}
	var table []byte
	for _, a := range apps {
		table = netlink.AppendAttribute(table, dcbApp, a)
	}
	inner := netlink.AppendAttribute(netlink.AppendAttribute(nil, dcbPFC, v), dcbAppTable, table)
	return request(rtmGetDCB, 0, netlink.AppendAttribute([]byte{0, dcbIEEEGet, 0, 0}, dcbIEEE, inner))
}

func TestDCBAnswer(t *testing.T) {
	read := func(b []byte) (d DCB, ok bool) {
		m, _, ok := netlink.Next(b)
		if !ok {
			t.Fatal("no message")
		}
		return parseDCB(m)
	}
	d, ok := read(dcbAnswer(1<<3|1<<5, []byte{appDSCP, 3, 26, 0}, []byte{1, 7, 6, 0x89}, []byte{appDSCP, 5, 46, 0},
		[]byte{appDSCP}))
	if !ok || !d.HasPFC || d.PFC != [8]bool{3: true, 5: true} || d.Sent[7] != 7 || d.Received[0] != 10 ||
		!maps.Equal(d.DSCP, map[int]int{26: 3, 46: 5}) {
		t.Errorf("%+v, %t", d, ok)
	}
	if d, ok := read(dcbAnswer(0)); !ok || !d.HasPFC || d.PFC != [8]bool{} || d.DSCP != nil {
		t.Errorf("without any: %+v, %t", d, ok)
	}
	// A driver that has the table and no flow control says so by leaving it out.
	if d, ok := read(request(rtmGetDCB, 0, netlink.AppendAttribute([]byte{0, dcbIEEEGet, 0, 0}, dcbIEEE, nil))); !ok ||
		d.HasPFC {
		t.Errorf("without the attribute: %+v, %t", d, ok)
	}
	if d, ok := read(request(rtmGetDCB, 0, []byte{0, 1, 0, 0})); ok {
		t.Errorf("an answer to something else: %+v", d)
	}
}

// The loopback interface has no data center bridging: the kernel's own word for it comes back.
func TestDCBOfThisMachine(t *testing.T) {
	d, err := Open("lo")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if x, err := d.DCB(); !errors.Is(err, ErrNotSupported) {
		t.Errorf("%+v, %v", x, err)
	}
}
