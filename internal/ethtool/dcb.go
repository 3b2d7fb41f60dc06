package ethtool

import (
	"github.com/penstock-io/penstock/internal/netlink"
	"github.com/penstock-io/penstock/internal/sys"
)

// Numbers of linux/rtnetlink.h and linux/dcbnl.h.
const (
	rtmGetDCB  = 78
	dcbHeader  = 4 // struct dcbmsg
	dcbIEEEGet = 21

	dcbName, dcbIEEE    = 1, 13
	dcbPFC, dcbAppTable = 2, 3
	dcbApp              = 1

	pfcLen, pfcEnabled = 136, 1
	pfcRequests        = 8
	pfcIndications     = 72

	appLen      = 4
	appSelector = 0
	appPriority = 1
	appProtocol = 2
	appDSCP     = 5
)

// DCB is what data center bridging has on a device: which priorities of a link are lossless, and
// how packets get theirs (IEEE 802.1Qaz).
type DCB struct {
	HasPFC bool    // the driver reports priority flow control
	PFC    [8]bool // by priority: a full buffer pauses the sender
	// Sent and Received are the pause frames of each priority since the driver was loaded.
	Sent, Received [8]uint64
	DSCP           map[int]int // priorities by the DSCP of a packet's IP header, where the device has a table of them
}

// DCB asks for the device's priority flow control. The error wraps ErrNotSupported where the driver
// has none.
func (d *Device) DCB() (DCB, error) {
	name := append([]byte(d.name), 0)
	req := request(rtmGetDCB, 0, netlink.AppendAttribute([]byte{0, dcbIEEEGet, 0, 0}, dcbName, name))
	var out DCB
	found := false
	err := ask(sys.NetlinkRouteAsk, req, func(m netlink.Message) {
		if x, ok := parseDCB(m); ok {
			out, found = x, true
		}
	})
	if err == nil && !found {
		err = ErrMalformed
	}
	return out, d.wrap("priority flow control", err)
}

func parseDCB(m netlink.Message) (d DCB, ok bool) {
	if m.Kind != rtmGetDCB || len(m.Body) < dcbHeader || m.Body[1] != dcbIEEEGet {
		return d, false
	}
	for kind, v := range netlink.Attributes(m.Body[dcbHeader:]) {
		if kind != dcbIEEE {
			continue
		}
		ok = true
		for kind, v := range netlink.Attributes(v) {
			switch {
			case kind == dcbPFC && len(v) >= pfcLen:
				d.HasPFC = true
				for i := range d.PFC {
					d.PFC[i] = v[pfcEnabled]>>i&1 != 0
					d.Sent[i] = native.Uint64(v[pfcRequests+8*i:])
					d.Received[i] = native.Uint64(v[pfcIndications+8*i:])
				}
			case kind == dcbAppTable:
				for kind, v := range netlink.Attributes(v) {
					if kind != dcbApp || len(v) < appLen || v[appSelector] != appDSCP {
						continue
					}
					if d.DSCP == nil {
						d.DSCP = map[int]int{}
					}
					d.DSCP[int(native.Uint16(v[appProtocol:]))] = int(v[appPriority])
				}
			}
		}
	}
	return d, ok
}
