package ibv

//lint:file-ignore U1000 a structure has all its fields, also those that no code reads

import "github.com/penstock-io/penstock/internal/dl"

// cMLX5Init is struct mlx5dv_qp_init_attr.
type cMLX5Init struct {
	mask    uint64 `c:"comp_mask"`
	flags   uint32 `c:"create_flags"`
	_       uint32
	dcType  uint32 `c:"dc_init_attr.dc_type"`
	_       uint32
	key     uint64 `c:"dc_init_attr.dct_access_key"` // of a target
	sendOps uint64 `c:"send_ops_flags"`
}

// cQPEx is struct ibv_qp_ex: the queue pair, and behind it the functions that make requests of it.
type cQPEx struct {
	base      cQPWhole `c:"qp_base"`
	mask      uint64   `c:"comp_mask"`
	wrID      uint64   `c:"wr_id"`
	wrFlags   uint32   `c:"wr_flags"`
	_         uint32
	cmpSwap   dl.Func `c:"wr_atomic_cmp_swp"`
	fetchAdd  dl.Func `c:"wr_atomic_fetch_add"`
	bindMW    dl.Func `c:"wr_bind_mw"`
	localInv  dl.Func `c:"wr_local_inv"`
	read      dl.Func `c:"wr_rdma_read"`
	write     dl.Func `c:"wr_rdma_write"`
	writeImm  dl.Func `c:"wr_rdma_write_imm"`
	send      dl.Func `c:"wr_send"`
	sendImm   dl.Func `c:"wr_send_imm"`
	sendInv   dl.Func `c:"wr_send_inv"`
	sendTSO   dl.Func `c:"wr_send_tso"`
	setUD     dl.Func `c:"wr_set_ud_addr"`
	setXRC    dl.Func `c:"wr_set_xrc_srqn"`
	setInline dl.Func `c:"wr_set_inline_data"`
	setBufs   dl.Func `c:"wr_set_inline_data_list"`
	setSGE    dl.Func `c:"wr_set_sge"`
	setSGEs   dl.Func `c:"wr_set_sge_list"`
	start     dl.Func `c:"wr_start"`
	complete  dl.Func `c:"wr_complete"`
	abort     dl.Func `c:"wr_abort"`
}

// cQPWhole is struct ibv_qp with what the library needs to wait for acknowledged events.
type cQPWhole struct {
	cQP
	mutex     [mutexSize]byte
	cond      [48]byte // pthread_cond_t
	completed uint32
	_         uint32
}

// cMLX5Ex is the beginning of struct mlx5dv_qp_ex.
type cMLX5Ex struct {
	mask  uint64  `c:"comp_mask"`
	setDC dl.Func `c:"wr_set_dc_addr"`
}
