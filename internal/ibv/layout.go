package ibv

//lint:file-ignore U1000 a structure has all its fields, also those that no code reads

import "github.com/penstock-io/penstock/internal/dl"

// The structures of <infiniband/verbs.h> as Go types: the whole of what this package believes of
// the library's binary interface. A tag names the field in C. TestLayouts compares every offset and
// size with the installed header; what a running library shows of them is compared when a device is
// opened and when an object is made (check.go).
//
// libibverbs keeps these layouts within libibverbs.so.1, since programs are compiled with them.
// Integers are little-endian.

// cDevice is struct ibv_device. The library makes it.
type cDevice struct {
	_         [2]uintptr
	nodeType  int32     `c:"node_type"`
	transport int32     `c:"transport_type"`
	name      [64]byte  `c:"name"`
	devName   [64]byte  `c:"dev_name"`
	devPath   [256]byte `c:"dev_path"`
	ibdevPath [256]byte `c:"ibdev_path"`
}

// cOps is struct ibv_context_ops: functions that the header calls without going through a symbol.
type cOps struct {
	_           [7]uintptr
	allocMW     dl.Func `c:"alloc_mw"`
	_           uintptr
	deallocMW   dl.Func `c:"dealloc_mw"`
	_           uintptr
	pollCQ      dl.Func `c:"poll_cq"`
	reqNotifyCQ dl.Func `c:"req_notify_cq"`
	_           [7]uintptr
	postSRQRecv dl.Func `c:"post_srq_recv"`
	_           [4]uintptr
	postSend    dl.Func `c:"post_send"`
	postRecv    dl.Func `c:"post_recv"`
	_           [5]uintptr
}

// cContext is struct ibv_context. mutexSize is the size of the C library's pthread_mutex_t, which
// differs between processors.
type cContext struct {
	device         uintptr         `c:"device"`
	ops            cOps            `c:"ops"`
	cmdFD          int32           `c:"cmd_fd"`
	asyncFD        int32           `c:"async_fd"`
	numCompVectors int32           `c:"num_comp_vectors"`
	_              int32           // padding
	mutex          [mutexSize]byte `c:"mutex"`
	abiCompat      uintptr         `c:"abi_compat"`
}

// cExtended is struct verbs_context up to its last field, the struct ibv_context: it lies before
// the context in memory and grows at its front. The field sz says how much of it is there, and
// counts from the end (see extended in memory_unsafe.go).
type cExtended struct {
	queryPort     dl.Func     `c:"query_port"`
	_             [23]uintptr // advise_mr to create_wq
	queryRTValues dl.Func     `c:"query_rt_values"`
	createCQEx    dl.Func     `c:"create_cq_ex"`
	_             uintptr     // priv
	queryDeviceEx dl.Func     `c:"query_device_ex"`
	destroyFlow   dl.Func     `c:"ibv_destroy_flow"`
	_             uintptr     // ABI_placeholder2
	createFlow    dl.Func     `c:"ibv_create_flow"`
	_             uintptr     // ABI_placeholder1
	openQP        dl.Func     `c:"open_qp"`
	createQPEx    dl.Func     `c:"create_qp_ex"`
	getSRQNum     dl.Func     `c:"get_srq_num"`
	createSRQEx   dl.Func     `c:"create_srq_ex"`
	openXRCD      dl.Func     `c:"open_xrcd"`
	closeXRCD     dl.Func     `c:"close_xrcd"`
	_             uint64      // _ABI_placeholder3
	sz            uintptr     `c:"sz"`
}

// cPD is struct ibv_pd, cMR struct ibv_mr, cMW struct ibv_mw, cAH the beginning of struct ibv_ah.
type cPD struct {
	context uintptr `c:"context"`
	handle  uint32  `c:"handle"`
	_       uint32
}

type cMR struct {
	context uintptr `c:"context"`
	pd      uintptr `c:"pd"`
	addr    uintptr `c:"addr"`
	length  uint64  `c:"length"`
	handle  uint32  `c:"handle"`
	lkey    uint32  `c:"lkey"`
	rkey    uint32  `c:"rkey"`
	_       uint32
}

type cMW struct {
	context uintptr `c:"context"`
	pd      uintptr `c:"pd"`
	rkey    uint32  `c:"rkey"`
	handle  uint32  `c:"handle"`
	typ     uint32  `c:"type"`
	_       uint32
}

type cAH struct {
	context uintptr `c:"context"`
	pd      uintptr `c:"pd"`
	handle  uint32  `c:"handle"`
	_       uint32
}

// cChannel is struct ibv_comp_channel.
type cChannel struct {
	context uintptr `c:"context"`
	fd      int32   `c:"fd"`
	refs    int32   `c:"refcnt"`
}

// cCQ, cSRQ and cQP are struct ibv_cq, ibv_srq and ibv_qp before the mutex.
type cCQ struct {
	context uintptr `c:"context"`
	channel uintptr `c:"channel"`
	cookie  uintptr `c:"cq_context"`
	handle  uint32  `c:"handle"`
	cqe     int32   `c:"cqe"`
}

type cSRQ struct {
	context uintptr `c:"context"`
	cookie  uintptr `c:"srq_context"`
	pd      uintptr `c:"pd"`
	handle  uint32  `c:"handle"`
	_       uint32
}

type cQP struct {
	context uintptr `c:"context"`
	cookie  uintptr `c:"qp_context"`
	pd      uintptr `c:"pd"`
	sendCQ  uintptr `c:"send_cq"`
	recvCQ  uintptr `c:"recv_cq"`
	srq     uintptr `c:"srq"`
	handle  uint32  `c:"handle"`
	num     uint32  `c:"qp_num"`
	state   uint32  `c:"state"`
	typ     uint32  `c:"qp_type"`
}

// cXRCD is struct ibv_xrcd.
type cXRCD struct {
	context uintptr `c:"context"`
}

// cXRCDInit is struct ibv_xrcd_init_attr.
type cXRCDInit struct {
	mask  uint32 `c:"comp_mask"`
	fd    int32  `c:"fd"`
	flags int32  `c:"oflags"`
}

// cDeviceAttr is struct ibv_device_attr.
type cDeviceAttr struct {
	firmware           [64]byte `c:"fw_ver"`
	nodeGUID           uint64   `c:"node_guid"` // big-endian
	sysImageGUID       uint64   `c:"sys_image_guid"`
	maxMRSize          uint64   `c:"max_mr_size"`
	pageSizes          uint64   `c:"page_size_cap"`
	vendorID           uint32   `c:"vendor_id"`
	vendorPart         uint32   `c:"vendor_part_id"`
	hwVersion          uint32   `c:"hw_ver"`
	maxQP              int32    `c:"max_qp"`
	maxQPWR            int32    `c:"max_qp_wr"`
	flags              uint32   `c:"device_cap_flags"`
	maxSGE             int32    `c:"max_sge"`
	maxSGERead         int32    `c:"max_sge_rd"`
	maxCQ              int32    `c:"max_cq"`
	maxCQE             int32    `c:"max_cqe"`
	maxMR              int32    `c:"max_mr"`
	maxPD              int32    `c:"max_pd"`
	maxQPRdAtomic      int32    `c:"max_qp_rd_atom"`
	_                  int32    // max_ee_rd_atom
	maxResRdAtomic     int32    `c:"max_res_rd_atom"`
	maxQPInitRdAtomic  int32    `c:"max_qp_init_rd_atom"`
	_                  int32    // max_ee_init_rd_atom
	atomics            uint32   `c:"atomic_cap"`
	_                  [2]int32 // max_ee, max_rdd
	maxMW              int32    `c:"max_mw"`
	_                  int32    // max_raw_ipv6_qp
	maxRawPacketQP     int32    `c:"max_raw_ethy_qp"`
	maxMulticast       int32    `c:"max_mcast_grp"`
	maxMulticastAttach int32    `c:"max_mcast_qp_attach"`
	_                  int32    // max_total_mcast_qp_attach
	maxAH              int32    `c:"max_ah"`
	_                  [2]int32 // max_fmr, max_map_per_fmr
	maxSRQ             int32    `c:"max_srq"`
	maxSRQWR           int32    `c:"max_srq_wr"`
	maxSRQSGE          int32    `c:"max_srq_sge"`
	maxPKeys           uint16   `c:"max_pkeys"`
	ackDelay           uint8    `c:"local_ca_ack_delay"`
	ports              uint8    `c:"phys_port_cnt"`
	_                  uint32
}

// cDeviceAttrEx is struct ibv_device_attr_ex.
type cDeviceAttrEx struct {
	orig          cDeviceAttr `c:"orig_attr"`
	mask          uint32      `c:"comp_mask"`
	_             uint32
	odp           uint64    `c:"odp_caps.general_caps"`
	odpRC         uint32    `c:"odp_caps.per_transport_caps.rc_odp_caps"`
	odpUC         uint32    `c:"odp_caps.per_transport_caps.uc_odp_caps"`
	odpUD         uint32    `c:"odp_caps.per_transport_caps.ud_odp_caps"`
	_             uint32    // the end of odp_caps
	timestampMask uint64    `c:"completion_timestamp_mask"`
	coreClock     uint64    `c:"hca_core_clock"` // kHz
	flagsEx       uint64    `c:"device_cap_flags_ex"`
	tso           [2]uint32 `c:"tso_caps"`
	rss           [4]uint64 `c:"rss_caps"`
	maxWQ         uint32    `c:"max_wq_type_rq"`
	pacing        [3]uint32 `c:"packet_pacing_caps"`
	raw           uint32    `c:"raw_packet_caps"`
	tm            [5]uint32 `c:"tm_caps"`
	cqModeration  [2]uint16 `c:"cq_mod_caps"`
	_             uint32
	maxDM         uint64    `c:"max_dm_size"`
	pciAtomics    [3]uint16 `c:"pci_atomic_caps"`
	_             uint16
	odpXRC        uint32 `c:"xrc_odp_caps"`
	portsEx       uint32 `c:"phys_port_cnt_ex"`
}

// cPortAttr is struct ibv_port_attr.
type cPortAttr struct {
	state      uint32 `c:"state"`
	maxMTU     uint32 `c:"max_mtu"`
	activeMTU  uint32 `c:"active_mtu"`
	gids       int32  `c:"gid_tbl_len"`
	flags      uint32 `c:"port_cap_flags"`
	maxMessage uint32 `c:"max_msg_sz"`
	badPKeys   uint32 `c:"bad_pkey_cntr"`
	badQKeys   uint32 `c:"qkey_viol_cntr"`
	pkeys      uint16 `c:"pkey_tbl_len"`
	lid        uint16 `c:"lid"`
	smLID      uint16 `c:"sm_lid"`
	lmc        uint8  `c:"lmc"`
	maxVL      uint8  `c:"max_vl_num"`
	smSL       uint8  `c:"sm_sl"`
	subnet     uint8  `c:"subnet_timeout"`
	initReply  uint8  `c:"init_type_reply"`
	width      uint8  `c:"active_width"`
	speed      uint8  `c:"active_speed"`
	physState  uint8  `c:"phys_state"`
	link       uint8  `c:"link_layer"`
	portFlags  uint8  `c:"flags"`
	flags2     uint16 `c:"port_cap_flags2"`
}

// cGIDEntry is struct ibv_gid_entry.
type cGIDEntry struct {
	gid     [16]byte `c:"gid"`
	index   uint32   `c:"gid_index"`
	port    uint32   `c:"port_num"`
	typ     uint32   `c:"gid_type"`
	ifindex uint32   `c:"ndev_ifindex"`
}

// cAsyncEvent is struct ibv_async_event.
type cAsyncEvent struct {
	element uintptr `c:"element"`
	typ     uint32  `c:"event_type"`
	_       uint32
}

// cQPCap is struct ibv_qp_cap.
type cQPCap struct {
	sendWRs  uint32 `c:"max_send_wr"`
	recvWRs  uint32 `c:"max_recv_wr"`
	sendSGEs uint32 `c:"max_send_sge"`
	recvSGEs uint32 `c:"max_recv_sge"`
	inline   uint32 `c:"max_inline_data"`
}

// cQPInit is struct ibv_qp_init_attr; cQPInitEx, which begins like it, struct ibv_qp_init_attr_ex.
type cQPInit struct {
	cookie uintptr `c:"qp_context"`
	sendCQ uintptr `c:"send_cq"`
	recvCQ uintptr `c:"recv_cq"`
	srq    uintptr `c:"srq"`
	cap    cQPCap  `c:"cap"`
	typ    uint32  `c:"qp_type"`
	sigAll int32   `c:"sq_sig_all"`
	_      uint32
}

type cQPInitEx struct {
	cookie      uintptr `c:"qp_context"`
	sendCQ      uintptr `c:"send_cq"`
	recvCQ      uintptr `c:"recv_cq"`
	srq         uintptr `c:"srq"`
	cap         cQPCap  `c:"cap"`
	typ         uint32  `c:"qp_type"`
	sigAll      int32   `c:"sq_sig_all"`
	mask        uint32  `c:"comp_mask"`
	pd          uintptr `c:"pd"`
	xrcd        uintptr `c:"xrcd"`
	createFlags uint32  `c:"create_flags"`
	tsoHeader   uint16  `c:"max_tso_header"`
	_           uint16
	indTable    uintptr   `c:"rwq_ind_tbl"`
	rxHash      [3]uint64 `c:"rx_hash_conf"`
	sourceQPN   uint32    `c:"source_qpn"`
	_           uint32
	sendOps     uint64 `c:"send_ops_flags"`
}

// cAHAttr is struct ibv_ah_attr, with struct ibv_global_route in it.
type cAHAttr struct {
	dgid         [16]byte `c:"grh.dgid"`
	flowLabel    uint32   `c:"grh.flow_label"`
	sgidIndex    uint8    `c:"grh.sgid_index"`
	hopLimit     uint8    `c:"grh.hop_limit"`
	trafficClass uint8    `c:"grh.traffic_class"`
	_            uint8
	dlid         uint16 `c:"dlid"`
	sl           uint8  `c:"sl"`
	pathBits     uint8  `c:"src_path_bits"`
	rate         uint8  `c:"static_rate"`
	global       uint8  `c:"is_global"`
	port         uint8  `c:"port_num"`
	_            uint8
}

// cQPAttr is struct ibv_qp_attr.
type cQPAttr struct {
	state         uint32  `c:"qp_state"`
	curState      uint32  `c:"cur_qp_state"`
	pathMTU       uint32  `c:"path_mtu"`
	migState      uint32  `c:"path_mig_state"`
	qkey          uint32  `c:"qkey"`
	rqPSN         uint32  `c:"rq_psn"`
	sqPSN         uint32  `c:"sq_psn"`
	destQPN       uint32  `c:"dest_qp_num"`
	access        uint32  `c:"qp_access_flags"`
	cap           cQPCap  `c:"cap"`
	ah            cAHAttr `c:"ah_attr"`
	alt           cAHAttr `c:"alt_ah_attr"`
	pkeyIndex     uint16  `c:"pkey_index"`
	altPKeyIndex  uint16  `c:"alt_pkey_index"`
	sqdNotify     uint8   `c:"en_sqd_async_notify"`
	sqDraining    uint8   `c:"sq_draining"`
	maxRdAtomic   uint8   `c:"max_rd_atomic"`
	maxDestAtomic uint8   `c:"max_dest_rd_atomic"`
	minRNRTimer   uint8   `c:"min_rnr_timer"`
	port          uint8   `c:"port_num"`
	timeout       uint8   `c:"timeout"`
	retryCount    uint8   `c:"retry_cnt"`
	rnrRetry      uint8   `c:"rnr_retry"`
	altPort       uint8   `c:"alt_port_num"`
	altTimeout    uint8   `c:"alt_timeout"`
	rateLimit     uint32  `c:"rate_limit"`
	_             uint32
}

// cSRQAttr is struct ibv_srq_attr, cSRQInit struct ibv_srq_init_attr, cSRQInitEx struct
// ibv_srq_init_attr_ex.
type cSRQAttr struct {
	maxWR  uint32 `c:"max_wr"`
	maxSGE uint32 `c:"max_sge"`
	limit  uint32 `c:"srq_limit"`
}

type cSRQInit struct {
	cookie uintptr  `c:"srq_context"`
	attr   cSRQAttr `c:"attr"`
	_      uint32
}

type cSRQInitEx struct {
	cookie uintptr   `c:"srq_context"`
	attr   cSRQAttr  `c:"attr"`
	mask   uint32    `c:"comp_mask"`
	typ    uint32    `c:"srq_type"`
	pd     uintptr   `c:"pd"`
	xrcd   uintptr   `c:"xrcd"`
	cq     uintptr   `c:"cq"`
	tm     [2]uint32 `c:"tm_cap"`
}

// cSendWR is struct ibv_send_wr. The union wr is four words: word 0 a remote address or an address
// handle, word 1 a remote key, the operand of an atomic, or the number of a queue pair with its key
// in the upper half, word 2 the value to swap in.
type cSendWR struct {
	id        uint64  `c:"wr_id"`
	next      uintptr `c:"next"`
	sges      uintptr `c:"sg_list"`
	numSGE    int32   `c:"num_sge"`
	opcode    uint32  `c:"opcode"`
	flags     uint32  `c:"send_flags"`
	imm       uint32  `c:"imm_data"` // big-endian; or a key to invalidate, as it is
	word0     uint64  `c:"wr.atomic.remote_addr"`
	word1     uint64  `c:"wr.atomic.compare_add"`
	swap      uint64  `c:"wr.atomic.swap"`
	atomicKey uint32  `c:"wr.atomic.rkey"`
	_         uint32
	xrcSRQ    uint32 `c:"qp_type.xrc.remote_srqn"`
	_         uint32
	mw        uintptr `c:"bind_mw.mw"`
	mwKey     uint32  `c:"bind_mw.rkey"`
	_         uint32
	bind      cBind `c:"bind_mw.bind_info"`
}

// cBind is struct ibv_mw_bind_info.
type cBind struct {
	mr     uintptr `c:"mr"`
	addr   uint64  `c:"addr"`
	length uint64  `c:"length"`
	access uint32  `c:"mw_access_flags"`
	_      uint32
}

// cRecvWR is struct ibv_recv_wr.
type cRecvWR struct {
	id     uint64  `c:"wr_id"`
	next   uintptr `c:"next"`
	sges   uintptr `c:"sg_list"`
	numSGE int32   `c:"num_sge"`
	_      uint32
}

// SGE is one piece of memory of a request: Length bytes at Addr, in the region whose key is LKey.
// Its layout is that of struct ibv_sge.
type SGE struct {
	Addr   uint64 `c:"addr"`
	Length uint32 `c:"length"`
	LKey   uint32 `c:"lkey"`
}

// WC is a completion; its layout is that of struct ibv_wc. Only ID, Status, QPN and VendorErr mean
// something in one that failed.
type WC struct {
	id        uint64 `c:"wr_id"`
	status    uint32 `c:"status"`
	opcode    uint32 `c:"opcode"`
	vendorErr uint32 `c:"vendor_err"`
	length    uint32 `c:"byte_len"`
	imm       uint32 `c:"imm_data"` // big-endian; or the key that was invalidated, as it is
	qpn       uint32 `c:"qp_num"`
	srcQP     uint32 `c:"src_qp"`
	flags     uint32 `c:"wc_flags"`
	pkeyIndex uint16 `c:"pkey_index"`
	slid      uint16 `c:"slid"`
	sl        uint8  `c:"sl"`
	pathBits  uint8  `c:"dlid_path_bits"`
}
