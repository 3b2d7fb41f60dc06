/* The ibv_wr_ interface: requests are collected between wr_start and wr_complete, then posted as one list. */
#include "verbs_fake.h"

#include <stdlib.h>
#include <string.h>

#define QP(q) ((struct fake_qp *)(q))

static struct ibv_send_wr scrap; /* where a failed batch writes to */

/* add begins a request of the batch. What goes wrong is kept for wr_complete. */
static struct ibv_send_wr *add(struct ibv_qp_ex *q, enum ibv_wr_opcode op)
{
	struct fake_qp *qp = QP(q);
	if (!qp->batch.open && !qp->batch.err)
		qp->batch.err = EINVAL;
	if (!qp->batch.err && qp->batch.n >= (int)qp->cap.max_send_wr)
		qp->batch.err = ENOMEM;
	if (qp->batch.err)
		return &scrap;
	struct ibv_send_wr *wr = &qp->batch.wr[qp->batch.n];
	memset(wr, 0, sizeof(*wr));
	wr->wr_id = q->wr_id;
	wr->opcode = op;
	wr->send_flags = q->wr_flags & ~(unsigned)IBV_SEND_INLINE;
	wr->sg_list = qp->batch.sge + (size_t)qp->batch.n * qp->cap.max_send_sge;
	if (qp->batch.n++ > 0)
		wr[-1].next = wr;
	return wr;
}

static struct ibv_send_wr *last(struct ibv_qp_ex *q)
{
	struct fake_qp *qp = QP(q);
	if (!qp->batch.err && qp->batch.n == 0)
		qp->batch.err = EINVAL; /* a setter before the request it belongs to */
	return qp->batch.err ? &scrap : &qp->batch.wr[qp->batch.n - 1];
}

static void rdma(struct ibv_send_wr *wr, uint32_t rkey, uint64_t addr)
{
	wr->wr.rdma.rkey = rkey;
	wr->wr.rdma.remote_addr = addr;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	struct ibv_send_wr *wr = add(q, IBV_WR_ATOMIC_CMP_AND_SWP);
	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.remote_addr = addr;
	wr->wr.atomic.compare_add = compare;
	wr->wr.atomic.swap = swap;
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr, uint64_t value)
{
	struct ibv_send_wr *wr = add(q, IBV_WR_ATOMIC_FETCH_AND_ADD);
	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.remote_addr = addr;
	wr->wr.atomic.compare_add = value;
}

static void wr_bind_mw(struct ibv_qp_ex *q, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct ibv_send_wr *wr = add(q, IBV_WR_BIND_MW);
	wr->bind_mw.mw = mw;
	wr->bind_mw.rkey = rkey;
	wr->bind_mw.bind_info = *info;
}

static void wr_local_inv(struct ibv_qp_ex *q, uint32_t rkey) { add(q, IBV_WR_LOCAL_INV)->invalidate_rkey = rkey; }
static void wr_rdma_read(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr) { rdma(add(q, IBV_WR_RDMA_READ), rkey, addr); }
static void wr_rdma_write(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr) { rdma(add(q, IBV_WR_RDMA_WRITE), rkey, addr); }

static void wr_rdma_write_imm(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct ibv_send_wr *wr = add(q, IBV_WR_RDMA_WRITE_WITH_IMM);
	rdma(wr, rkey, addr);
	wr->imm_data = imm;
}

static void wr_send(struct ibv_qp_ex *q) { add(q, IBV_WR_SEND); }
static void wr_send_imm(struct ibv_qp_ex *q, __be32 imm) { add(q, IBV_WR_SEND_WITH_IMM)->imm_data = imm; }
static void wr_send_inv(struct ibv_qp_ex *q, uint32_t rkey) { add(q, IBV_WR_SEND_WITH_INV)->invalidate_rkey = rkey; }

static void wr_set_ud_addr(struct ibv_qp_ex *q, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct ibv_send_wr *wr = last(q);
	wr->wr.ud.ah = ah;
	wr->wr.ud.remote_qpn = qpn;
	wr->wr.ud.remote_qkey = qkey;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *q, uint32_t srqn) { last(q)->qp_type.xrc.remote_srqn = srqn; }

static void set_list(struct ibv_qp_ex *q, size_t n, const struct ibv_sge *list)
{
	struct ibv_send_wr *wr = last(q);
	struct fake_qp *qp = QP(q);
	if (n > qp->cap.max_send_sge && !qp->batch.err)
		qp->batch.err = EINVAL;
	if (qp->batch.err)
		return;
	memcpy(wr->sg_list, list, n * sizeof(*list));
	wr->num_sge = (int)n;
}

static void wr_set_sge(struct ibv_qp_ex *q, uint32_t lkey, uint64_t addr, uint32_t len)
{
	struct ibv_sge s = {addr, len, lkey};
	set_list(q, 1, &s);
}

static void wr_set_sge_list(struct ibv_qp_ex *q, size_t n, const struct ibv_sge *list) { set_list(q, n, list); }

/* Inline data is copied at post time, which is wr_complete: until then it must stay, a little more than a real provider asks. */
static void wr_set_inline_data_list(struct ibv_qp_ex *q, size_t n, const struct ibv_data_buf *list)
{
	struct ibv_sge s[32];
	if (n > sizeof(s) / sizeof(*s)) {
		QP(q)->batch.err = EINVAL;
		return;
	}
	for (size_t i = 0; i < n; i++)
		s[i] = (struct ibv_sge){(uintptr_t)list[i].addr, (uint32_t)list[i].length, 0};
	set_list(q, n, s);
	last(q)->send_flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *q, void *addr, size_t len)
{
	struct ibv_data_buf b = {addr, len};
	wr_set_inline_data_list(q, 1, &b);
}

/* Between wr_start and wr_complete the queue pair belongs to its caller, as a real provider's lock would have it. */
static void wr_start(struct ibv_qp_ex *q)
{
	struct fake_qp *qp = QP(q);
	if (qp->batch.open) {
		lock();
		fake_violation("ibv_wr_start: qp 0x%x is started already", q->qp_base.qp_num);
		unlock();
	}
	qp->batch.open = true;
	qp->batch.n = qp->batch.err = 0;
}

static int wr_complete(struct ibv_qp_ex *q)
{
	struct fake_qp *qp = QP(q);
	struct ibv_send_wr *bad;
	int err = qp->batch.open ? qp->batch.err : EINVAL;
	qp->batch.open = false;
	if (err || qp->batch.n == 0)
		return err;
	return fake_post_send(&q->qp_base, qp->batch.wr, &bad);
}

static void wr_abort(struct ibv_qp_ex *q) { QP(q)->batch.open = false; }

/* fake_wr_interface fills the functions that were asked for, as ops says, and the setters. */
void fake_wr_interface(struct fake_qp *qp, uint64_t ops)
{
	struct ibv_qp_ex *q = &qp->ibv;
	qp->batch.cap = (int)qp->cap.max_send_wr;
	qp->batch.wr = calloc((size_t)qp->cap.max_send_wr + 1, sizeof(*qp->batch.wr));
	qp->batch.sge = calloc((size_t)qp->cap.max_send_wr * qp->cap.max_send_sge + 1, sizeof(*qp->batch.sge));
	if (!qp->batch.wr || !qp->batch.sge)
		return;
#define OP(bit, name) if (ops & (bit)) q->name = name
	OP(IBV_QP_EX_WITH_RDMA_WRITE, wr_rdma_write);
	OP(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, wr_rdma_write_imm);
	OP(IBV_QP_EX_WITH_SEND, wr_send);
	OP(IBV_QP_EX_WITH_SEND_WITH_IMM, wr_send_imm);
	OP(IBV_QP_EX_WITH_RDMA_READ, wr_rdma_read);
	OP(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp);
	OP(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add);
	OP(IBV_QP_EX_WITH_LOCAL_INV, wr_local_inv);
	OP(IBV_QP_EX_WITH_BIND_MW, wr_bind_mw);
	OP(IBV_QP_EX_WITH_SEND_WITH_INV, wr_send_inv);
	q->wr_set_ud_addr = wr_set_ud_addr;
	q->wr_set_xrc_srqn = wr_set_xrc_srqn;
	q->wr_set_inline_data = wr_set_inline_data;
	q->wr_set_inline_data_list = wr_set_inline_data_list;
	q->wr_set_sge = wr_set_sge;
	q->wr_set_sge_list = wr_set_sge_list;
	q->wr_start = wr_start;
	q->wr_complete = wr_complete;
	q->wr_abort = wr_abort;
}
