package ibv

//lint:file-ignore U1000 a structure has all its fields, also those that no code reads

import "github.com/penstock-io/penstock/internal/dl"

// cCQEx is struct ibv_cq_ex: the queue, and behind it the functions that take completions one by
// one.
type cCQEx struct {
	_          cCQWhole // ibv_cq, whose fields the header writes out
	mask       uint32   `c:"comp_mask"`
	status     uint32   `c:"status"`
	id         uint64   `c:"wr_id"`
	startPoll  dl.Func  `c:"start_poll"`
	nextPoll   dl.Func  `c:"next_poll"`
	endPoll    dl.Func  `c:"end_poll"`
	opcode     dl.Func  `c:"read_opcode"`
	vendorErr  dl.Func  `c:"read_vendor_err"`
	byteLen    dl.Func  `c:"read_byte_len"`
	imm        dl.Func  `c:"read_imm_data"`
	qpn        dl.Func  `c:"read_qp_num"`
	srcQP      dl.Func  `c:"read_src_qp"`
	flags      dl.Func  `c:"read_wc_flags"`
	slid       dl.Func  `c:"read_slid"`
	sl         dl.Func  `c:"read_sl"`
	pathBits   dl.Func  `c:"read_dlid_path_bits"`
	deviceTime dl.Func  `c:"read_completion_ts"`
	cvlan      dl.Func  `c:"read_cvlan"`
	flowTag    dl.Func  `c:"read_flow_tag"`
	tmInfo     dl.Func  `c:"read_tm_info"`
	wallTime   dl.Func  `c:"read_completion_wallclock_ns"`
}

// cCQWhole is struct ibv_cq with what the library needs to wait for acknowledged events.
type cCQWhole struct {
	cCQ
	mutex      [mutexSize]byte
	cond       [48]byte // pthread_cond_t
	comp, rest uint32
}

// cCQInitEx is struct ibv_cq_init_attr_ex.
type cCQInitEx struct {
	cqe     uint32 `c:"cqe"`
	_       uint32
	cookie  uintptr `c:"cq_context"`
	channel uintptr `c:"channel"`
	vector  uint32  `c:"comp_vector"`
	_       uint32
	wcFlags uint64  `c:"wc_flags"`
	mask    uint32  `c:"comp_mask"`
	flags   uint32  `c:"flags"`
	domain  uintptr `c:"parent_domain"`
}

// cPollAttr is struct ibv_poll_cq_attr.
type cPollAttr struct {
	mask uint32 `c:"comp_mask"`
}

// cValuesEx is struct ibv_values_ex.
type cValuesEx struct {
	mask uint32 `c:"comp_mask"`
	_    uint32
	sec  int64 `c:"raw_clock.tv_sec"`
	nsec int64 `c:"raw_clock.tv_nsec"`
}

// What a completion queue with times is asked for, and the mask of ibv_values_ex.
const (
	wcExStandard   = 1<<0 | 1<<2 // length and number of the queue pair
	wcExDeviceTime = 1 << 7
	wcExWallTime   = 1 << 11
	valuesRawClock = 1 << 0
)

// cFlowAttr is struct ibv_flow_attr; its specifications follow it without a gap. Values are
// big-endian.
type cFlowAttr struct {
	mask     uint32 `c:"comp_mask"`
	typ      uint32 `c:"type"`
	size     uint16 `c:"size"`
	priority uint16 `c:"priority"`
	specs    uint8  `c:"num_of_specs"`
	port     uint8  `c:"port"`
	_        uint16
	flags    uint32 `c:"flags"`
}

// cFlow is struct ibv_flow.
type cFlow struct {
	mask    uint32 `c:"comp_mask"`
	_       uint32
	context uintptr `c:"context"`
	handle  uint32  `c:"handle"`
	_       uint32
}

// Types of flows and of their specifications.
const (
	flowNormal      = 0
	flowAllDefault  = 1
	flowSpecEth     = 0x20
	flowSpecIPv4    = 0x30
	flowSpecIPv6    = 0x31
	flowSpecIPv4Ext = 0x32
	flowSpecTCP     = 0x40
	flowSpecUDP     = 0x41
)

type cEthFilter struct {
	dst  [6]byte `c:"dst_mac"`
	src  [6]byte `c:"src_mac"`
	typ  [2]byte `c:"ether_type"`
	vlan [2]byte `c:"vlan_tag"`
}

type cFlowEth struct {
	typ  uint32     `c:"type"`
	size uint16     `c:"size"`
	val  cEthFilter `c:"val"`
	mask cEthFilter `c:"mask"`
}

type cIPv4Filter struct {
	src [4]byte `c:"src_ip"`
	dst [4]byte `c:"dst_ip"`
}

type cFlowIPv4 struct {
	typ  uint32 `c:"type"`
	size uint16 `c:"size"`
	_    uint16
	val  cIPv4Filter `c:"val"`
	mask cIPv4Filter `c:"mask"`
}

type cIPv4ExtFilter struct {
	src   [4]byte `c:"src_ip"`
	dst   [4]byte `c:"dst_ip"`
	proto uint8   `c:"proto"`
	tos   uint8   `c:"tos"`
	ttl   uint8   `c:"ttl"`
	flags uint8   `c:"flags"`
}

type cFlowIPv4Ext struct {
	typ  uint32 `c:"type"`
	size uint16 `c:"size"`
	_    uint16
	val  cIPv4ExtFilter `c:"val"`
	mask cIPv4ExtFilter `c:"mask"`
}

type cIPv6Filter struct {
	src   [16]byte `c:"src_ip"`
	dst   [16]byte `c:"dst_ip"`
	label uint32   `c:"flow_label"`
	next  uint8    `c:"next_hdr"`
	class uint8    `c:"traffic_class"`
	hops  uint8    `c:"hop_limit"`
	_     uint8
}

type cFlowIPv6 struct {
	typ  uint32 `c:"type"`
	size uint16 `c:"size"`
	_    uint16
	val  cIPv6Filter `c:"val"`
	mask cIPv6Filter `c:"mask"`
}

type cPortsFilter struct {
	dst [2]byte `c:"dst_port"`
	src [2]byte `c:"src_port"`
}

type cFlowPorts struct {
	typ  uint32       `c:"type"`
	size uint16       `c:"size"`
	val  cPortsFilter `c:"val"`
	mask cPortsFilter `c:"mask"`
}
