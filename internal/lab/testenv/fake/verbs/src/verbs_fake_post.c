/* Posting: what a provider checks in the caller's thread, and the copy of the request into the queue. */
#include "verbs_fake.h"

#include <string.h>

static bool allowed(const struct fake_qp *qp, enum ibv_wr_opcode op)
{
	if (qp->type == IBV_QPT_RAW_PACKET)
		return op == IBV_WR_SEND;
	switch (op) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		return true;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return qp->type != IBV_QPT_UD;
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_BIND_MW:
	case IBV_WR_LOCAL_INV:
		return qp->type != IBV_QPT_UD && !(config.absent & ABSENT_MW);
	case IBV_WR_RDMA_READ:
		return qp->type == IBV_QPT_RC || qp->type == IBV_QPT_XRC_SEND;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return (qp->type == IBV_QPT_RC || qp->type == IBV_QPT_XRC_SEND) && !(config.absent & ABSENT_ATOMICS);
	default:
		return false;
	}
}

static int enqueue(struct fake_qp *qp, struct ibv_send_wr *wr, bool windows1)
{
	if (!allowed(qp, wr->opcode) || wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge)
		return EINVAL;
	if (qp->sq_post - qp->sq_free >= qp->cap.max_send_wr)
		return ENOMEM;
	bool writes = wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	bool sends = wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM || wr->opcode == IBV_WR_SEND_WITH_INV;
	if ((wr->send_flags & IBV_SEND_INLINE) && !writes && !sends)
		return EINVAL;
	if (wr->opcode == IBV_WR_BIND_MW) {
		struct fake_mw *mw = (struct fake_mw *)wr->bind_mw.mw;
		if (!ALIVE(mw, K_MW, "ibv_post_send: bind") || (mw->ibv.type == IBV_MW_TYPE_1) != windows1)
			return EINVAL;
		if (wr->imm_data) /* as the library of Soft-RoCE does; most others look away */
			return EINVAL;
	}
	struct wqe *w = &qp->sq[qp->sq_post % qp->cap.max_send_wr];
	if (qp->type == IBV_QPT_UD) {
		struct fake_ah *ah = (struct fake_ah *)wr->wr.ud.ah;
		if (!ALIVE(ah, K_AH, "ibv_post_send") || ah->ibv.pd != qp->ibv.pd)
			return EINVAL;
		w->av = ah->attr;
	}
	uint64_t total = 0;
	for (int i = 0; i < wr->num_sge; i++)
		total += wr->sg_list[i].length;
	if ((wr->send_flags & IBV_SEND_INLINE) && total > qp->cap.max_inline_data)
		return EINVAL;
	struct ibv_sge *sges = w->wr.sg_list;
	w->wr = *wr;
	w->wr.next = NULL;
	w->wr.sg_list = sges;
	w->inlined_len = 0;
	if (wr->send_flags & IBV_SEND_INLINE)
		for (int i = 0; i < wr->num_sge; i++) {
			if (wr->sg_list[i].length) /* keys of inline data mean nothing */
				memcpy(w->inlined + w->inlined_len, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
			w->inlined_len += wr->sg_list[i].length;
		}
	else if (wr->num_sge)
		memcpy(sges, wr->sg_list, (size_t)wr->num_sge * sizeof(*sges));
	w->counted = false;
	w->due = 0;
	if (config.mode == MODE_WIRE && config.delay_ns) {
		uint64_t d = config.delay_ns;
		if (config.seed) { /* xorshift64: anything from nothing to twice the delay */
			config.seed ^= config.seed << 13;
			config.seed ^= config.seed >> 7;
			config.seed ^= config.seed << 17;
			d = config.seed % (2 * d + 1);
		}
		w->due = now_ns() + d;
	}
	qp->sq_post++;
	fake_count(CALL_send_requests, 1);
	return 0;
}

int fake_post_locked(struct fake_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool windows1)
{
	int err = 0;
	if (qp->state == IBV_QPS_RESET || qp->state == IBV_QPS_INIT || qp->state == IBV_QPS_RTR || !qp->scq) {
		fake_violation("ibv_post_send: qp 0x%x is in state %d", qp->ibv.qp_num, qp->state);
		err = EINVAL;
	}
	while (!err && wr && !(err = enqueue(qp, wr, windows1)))
		wr = wr->next;
	if (err)
		*bad = wr;
	if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_SQE)
		fake_flush(qp);
	else
		fake_kick(qp);
	return err;
}

int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;
	lock();
	int err = fake_call(CALL_ibv_post_send);
	if (!err && !ALIVE(qp, K_QP, "ibv_post_send"))
		err = EINVAL;
	if (err)
		*bad = wr;
	else
		err = fake_post_locked(qp, wr, bad, false);
	unlock();
	return err;
}

int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;
	lock();
	int err = fake_call(CALL_ibv_post_recv);
	if (!err && !ALIVE(qp, K_QP, "ibv_post_recv"))
		err = EINVAL;
	if (!err && (qp->state == IBV_QPS_RESET || qp->srq || !qp->rcq)) {
		fake_violation("ibv_post_recv: qp 0x%x is in state %d%s", ibv->qp_num, qp->state, qp->srq ? " and uses an SRQ" : "");
		err = EINVAL;
	}
	while (!err && wr && !(err = fake_rq_post(&qp->rq, wr)))
		wr = wr->next;
	if (err)
		*bad = wr;
	else if (qp->state == IBV_QPS_ERR)
		fake_flush(qp);
	unlock();
	return err;
}
