/* Queue pairs and their states, address handles. */
#include "verbs_fake.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_QPN = 0x11 };

struct fake_qp *fake_qp_find(struct fake_device *dev, uint32_t qpn)
{
	uint32_t i = qpn - FIRST_QPN;
	return i < dev->qps_len ? dev->qps[i] : NULL;
}

static uint32_t qpn_take(struct fake_device *dev, struct fake_qp *qp)
{
	for (uint32_t tries = 0; tries < MAX_QPS; tries++) {
		uint32_t i = dev->qps_next;
		dev->qps_next = (dev->qps_next + 1) % MAX_QPS;
		if (i >= dev->qps_len) {
			uint32_t len = dev->qps_len ? dev->qps_len * 2 : 64;
			struct fake_qp **p = realloc(dev->qps, len * sizeof(*p));
			if (!p)
				return 0;
			memset(p + dev->qps_len, 0, (len - dev->qps_len) * sizeof(*p));
			dev->qps = p;
			dev->qps_len = len;
		}
		if (!dev->qps[i]) {
			dev->qps[i] = qp;
			return i + FIRST_QPN;
		}
	}
	return 0;
}

static int check_create(struct fake_context *ctx, const struct ibv_qp_init_attr_ex *a, bool send, bool recv)
{
	struct fake_cq *scq = (struct fake_cq *)a->send_cq, *rcq = (struct fake_cq *)a->recv_cq;
	struct fake_srq *srq = (struct fake_srq *)a->srq;
	const struct ibv_device_attr *d = &config.attr;
	if (send && (!ALIVE(scq, K_CQ, "ibv_create_qp: send_cq") || scq->o.ctx != ctx))
		return EINVAL;
	if (recv && (!ALIVE(rcq, K_CQ, "ibv_create_qp: recv_cq") || rcq->o.ctx != ctx))
		return EINVAL;
	if (srq && (!ALIVE(srq, K_SRQ, "ibv_create_qp: srq") || srq->o.ctx != ctx || srq->type != IBV_SRQT_BASIC))
		return EINVAL;
	if (send && (a->cap.max_send_wr > (uint32_t)d->max_qp_wr || a->cap.max_send_sge > (uint32_t)d->max_sge ||
		     a->cap.max_inline_data > (uint32_t)config.max_inline))
		return EINVAL;
	if (recv && !srq && (a->cap.max_recv_wr > (uint32_t)d->max_qp_wr || a->cap.max_recv_sge > (uint32_t)d->max_sge))
		return EINVAL;
	return 0;
}

struct ibv_qp *fake_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
	struct fake_context *ctx = CTX(c);
	struct fake_pd *pd = (a->comp_mask & IBV_QP_INIT_ATTR_PD) ? (struct fake_pd *)a->pd : NULL;
	struct fake_xrcd *x = (a->comp_mask & IBV_QP_INIT_ATTR_XRCD) ? (struct fake_xrcd *)a->xrcd : NULL;
	bool send = a->qp_type != IBV_QPT_XRC_RECV, recv = a->qp_type != IBV_QPT_XRC_RECV && a->qp_type != IBV_QPT_XRC_SEND;
	struct fake_qp *qp = NULL;
	lock();
	int err = fake_call(CALL_ibv_create_qp);
	if (!err && !ALIVE(ctx, K_CONTEXT, "ibv_create_qp"))
		err = EINVAL;
	if (!err && (a->comp_mask & ~known))
		err = EOPNOTSUPP;
	switch ((int)a->qp_type) {
	case IBV_QPT_RC:
	case IBV_QPT_UC:
		break;
	case IBV_QPT_UD:
		if (!err && (config.absent & ABSENT_UD))
			err = EOPNOTSUPP;
		break;
	case IBV_QPT_XRC_SEND:
	case IBV_QPT_XRC_RECV:
		if (!err && (config.absent & ABSENT_XRC))
			err = EOPNOTSUPP;
		break;
	case IBV_QPT_RAW_PACKET:
		if (!err && !config.raw)
			err = EOPNOTSUPP;
		else if (!err && config.infiniband)
			err = EINVAL;
		break;
	default:
		if (!err)
			err = EOPNOTSUPP;
	}
	if (!err && send && (!ALIVE(pd, K_PD, "ibv_create_qp") || pd->o.ctx != ctx))
		err = EINVAL;
	if (!err && !send && !ALIVE(x, K_XRCD, "ibv_create_qp"))
		err = EINVAL;
	if (!err)
		err = check_create(ctx, a, send, recv);
	if (!err && !(qp = NEW(struct fake_qp, K_QP, ctx)))
		err = ENOMEM;
	if (qp) {
		struct ibv_qp *b = &qp->ibv;
		qp->dev = ctx->dev;
		qp->cap = a->cap;
		qp->type = a->qp_type;
		qp->sig_all = a->sq_sig_all != 0;
		qp->srq = (struct fake_srq *)(recv ? a->srq : NULL);
		qp->scq = (struct fake_cq *)(send ? a->send_cq : NULL);
		qp->rcq = (struct fake_cq *)(recv ? a->recv_cq : NULL);
		qp->xrcd = send ? NULL : x;
		if (!recv || qp->srq)
			qp->cap.max_recv_wr = qp->cap.max_recv_sge = 0;
		if (!send)
			qp->cap.max_send_wr = qp->cap.max_send_sge = qp->cap.max_inline_data = 0;
		uint32_t n = qp->cap.max_send_wr;
		qp->sq = calloc(n + 1, sizeof(*qp->sq));
		qp->sq_sges = calloc((size_t)n * qp->cap.max_send_sge + 1, sizeof(*qp->sq_sges));
		qp->sq_inline = calloc((size_t)n * qp->cap.max_inline_data + 1, 1);
		if (!qp->sq || !qp->sq_sges || !qp->sq_inline || fake_rq_open(&qp->rq, qp->cap.max_recv_wr, qp->cap.max_recv_sge) ||
		    !(b->qp_num = qpn_take(ctx->dev, qp))) {
			free(qp->sq);
			free(qp->sq_sges);
			free(qp->sq_inline);
			fake_rq_close(&qp->rq);
			fake_bury(&qp->o);
			qp = NULL;
			err = ENOMEM;
		}
	}
	if (qp) {
		struct ibv_qp *b = &qp->ibv;
		for (uint32_t i = 0; i < qp->cap.max_send_wr; i++) {
			qp->sq[i].wr.sg_list = qp->sq_sges + (size_t)i * qp->cap.max_send_sge;
			qp->sq[i].inlined = qp->sq_inline + (size_t)i * qp->cap.max_inline_data;
		}
		b->context = c;
		b->qp_context = a->qp_context;
		b->pd = send ? a->pd : NULL;
		b->send_cq = send ? a->send_cq : NULL;
		b->recv_cq = recv ? a->recv_cq : NULL;
		b->srq = recv ? a->srq : NULL;
		b->handle = b->qp_num;
		b->state = IBV_QPS_RESET;
		b->qp_type = a->qp_type;
		pthread_mutex_init(&b->mutex, NULL);
		pthread_cond_init(&b->cond, NULL);
		if (pd)
			pd->qps++;
		if (qp->scq)
			qp->scq->qps++;
		if (qp->rcq)
			qp->rcq->qps++;
		if (qp->srq)
			qp->srq->qps++;
		if (qp->xrcd)
			qp->xrcd->users++;
		a->cap = qp->cap;
	}
	unlock();
	if (err)
		errno = err;
	return qp ? &qp->ibv : NULL;
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct ibv_qp_init_attr_ex x = {.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
	_Static_assert(offsetof(struct ibv_qp_init_attr_ex, comp_mask) == offsetof(struct ibv_qp_init_attr, sq_sig_all) + sizeof(int),
		       "the old structure is the beginning of the new one");
	memcpy(&x, a, offsetof(struct ibv_qp_init_attr_ex, comp_mask));
	if (a->qp_type == IBV_QPT_XRC_RECV) {
		errno = EINVAL;
		return NULL;
	}
	struct ibv_qp *qp = fake_create_qp_ex(pd->context, &x);
	if (qp)
		a->cap = x.cap;
	return qp;
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *ibv)
{
	(void)ibv; /* none of ours takes ibv_wr_* */
	return NULL;
}

/* ---- states */

#define S (IBV_QP_STATE)
#define CUR (IBV_QP_CUR_STATE)

struct transition {
	unsigned types; /* 1 << type */
	enum ibv_qp_state from, to;
	int must, may;
};

#define RC (1u << IBV_QPT_RC)
#define UC (1u << IBV_QPT_UC)
#define UD (1u << IBV_QPT_UD)
#define XS (1u << IBV_QPT_XRC_SEND)
#define XR (1u << IBV_QPT_XRC_RECV)
#define RP (1u << IBV_QPT_RAW_PACKET)
#define CONN (RC | UC | XS | XR)
#define INIT_MUST (IBV_QP_PKEY_INDEX | IBV_QP_PORT)
#define RTR_MUST (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define RTR_MAY (IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX)
#define RTS_MAY (CUR | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE)
#define RETRIES (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY)
#define ANY ((enum ibv_qp_state)-1)

/* The table of the InfiniBand specification, 11.2.5.2, as the Linux kernel has it. */
static const struct transition transitions[] = {
	{CONN, IBV_QPS_RESET, IBV_QPS_INIT, INIT_MUST | IBV_QP_ACCESS_FLAGS, 0},
	{UD, IBV_QPS_RESET, IBV_QPS_INIT, INIT_MUST | IBV_QP_QKEY, 0},
	{CONN, IBV_QPS_INIT, IBV_QPS_INIT, 0, INIT_MUST | IBV_QP_ACCESS_FLAGS},
	{UD, IBV_QPS_INIT, IBV_QPS_INIT, 0, INIT_MUST | IBV_QP_QKEY},
	{RC | XR, IBV_QPS_INIT, IBV_QPS_RTR, RTR_MUST | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, RTR_MAY},
	{UC | XS, IBV_QPS_INIT, IBV_QPS_RTR, RTR_MUST, RTR_MAY},
	{UD, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
	{RC | XS, IBV_QPS_RTR, IBV_QPS_RTS, RETRIES | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, RTS_MAY | IBV_QP_MIN_RNR_TIMER},
	{XR, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_SQ_PSN, RTS_MAY | IBV_QP_MIN_RNR_TIMER},
	{UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, RTS_MAY},
	{UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, CUR | IBV_QP_QKEY},
	{RC | XR, IBV_QPS_RTS, IBV_QPS_RTS, 0, RTS_MAY | IBV_QP_MIN_RNR_TIMER},
	{UC | XS, IBV_QPS_RTS, IBV_QPS_RTS, 0, RTS_MAY},
	{UD, IBV_QPS_RTS, IBV_QPS_RTS, 0, CUR | IBV_QP_QKEY},
	{CONN | UD, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
	{RC | XR, IBV_QPS_SQD, IBV_QPS_RTS, 0, RTS_MAY | IBV_QP_MIN_RNR_TIMER},
	{UC | XS, IBV_QPS_SQD, IBV_QPS_RTS, 0, RTS_MAY},
	{UD, IBV_QPS_SQD, IBV_QPS_RTS, 0, CUR | IBV_QP_QKEY},
	{RC, IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PORT | IBV_QP_AV | RETRIES | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
	 IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
	{UC, IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE},
	{UD, IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
	{UC, IBV_QPS_SQE, IBV_QPS_RTS, 0, CUR | IBV_QP_ACCESS_FLAGS},
	{UD, IBV_QPS_SQE, IBV_QPS_RTS, 0, CUR | IBV_QP_QKEY},
	/* Raw packets, as drivers/infiniband/core/verbs.c has them. */
	{RP, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, 0},
	{RP, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PORT},
	{RP, IBV_QPS_INIT, IBV_QPS_RTR, 0, 0},
	{RP, IBV_QPS_RTR, IBV_QPS_RTS, 0, 0},
	{RP, IBV_QPS_RTS, IBV_QPS_RTS, 0, 0},
	{CONN | UD | RP, ANY, IBV_QPS_RESET, 0, 0},
	{CONN | UD | RP, ANY, IBV_QPS_ERR, 0, 0},
};

static int check_transition(struct fake_qp *qp, enum ibv_qp_state to, int mask)
{
	for (size_t i = 0; i < sizeof(transitions) / sizeof(*transitions); i++) {
		const struct transition *t = &transitions[i];
		if (!(t->types >> qp->type & 1) || t->to != to || (t->from != ANY && t->from != qp->state))
			continue;
		if ((mask & t->must) != t->must || (mask & ~(t->must | t->may | S)))
			return EINVAL;
		return 0;
	}
	return EINVAL;
}

static int check_values(struct fake_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	if ((mask & CUR) && a->cur_qp_state != qp->state)
		return EINVAL;
	if ((mask & IBV_QP_PORT) && (a->port_num < 1 || a->port_num > PORTS))
		return EINVAL;
	if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index != 0)
		return EINVAL;
	if ((mask & IBV_QP_PATH_MTU) && (a->path_mtu < IBV_MTU_256 || a->path_mtu > (config.infiniband ? IBV_MTU_4096 : IBV_MTU_1024)))
		return EINVAL;
	if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > config.attr.max_qp_init_rd_atom)
		return EINVAL;
	if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > config.attr.max_qp_rd_atom)
		return EINVAL;
	if (((mask & IBV_QP_TIMEOUT) && a->timeout > 31) || ((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7) ||
	    ((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7) || ((mask & IBV_QP_MIN_RNR_TIMER) && a->min_rnr_timer > 31))
		return EINVAL;
	if (mask & (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE))
		return EOPNOTSUPP;
	return (mask & IBV_QP_AV) ? fake_check_av(qp->dev, &a->ah_attr) : 0;
}

static void reset(struct fake_qp *qp)
{
	fake_unwire(qp);
	fake_count(CALL_drops, qp->partial);
	qp->partial = false;
	fake_cq_forget(qp, NULL);
	fake_windows_of(qp);
	qp->sq_post = qp->sq_done = qp->sq_free = 0;
	qp->rq.post = qp->rq.done = qp->rq.busy = 0;
	qp->not_before = 0;
	qp->tries = qp->rnr_tries = 0;
	qp->landed = qp->est = qp->last_wqe = false;
	memset(&qp->attr, 0, sizeof(qp->attr));
}

EXPORT int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *a, int mask)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;
	lock();
	int err = fake_call(CALL_ibv_modify_qp);
	if (!err && !ALIVE(qp, K_QP, "ibv_modify_qp"))
		err = EINVAL;
	enum ibv_qp_state to = err ? IBV_QPS_ERR : (mask & S) ? a->qp_state : qp->state;
	if (!err)
		err = check_transition(qp, to, mask);
	if (!err)
		err = check_values(qp, a, mask);
	if (err) {
		unlock();
		return err;
	}
	enum ibv_qp_state from = qp->state;
	struct ibv_qp_attr *q = &qp->attr;
#define TAKE(bit, field) if (mask & (bit)) q->field = a->field
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_QKEY, qkey);
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	if (mask & IBV_QP_RQ_PSN)
		qp->rq_psn = a->rq_psn & 0xffffff;
	if (mask & IBV_QP_SQ_PSN)
		qp->sq_psn = a->sq_psn & 0xffffff;
	if (to == IBV_QPS_ERR && from != IBV_QPS_ERR) {
		fake_qp_error(qp, IBV_QPS_ERR);
	} else if (to == IBV_QPS_RESET) {
		reset(qp);
		qp->state = to;
	} else {
		qp->state = to;
		if (to == IBV_QPS_SQD && from == IBV_QPS_RTS && (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) && a->en_sqd_async_notify)
			fake_async(qp->o.ctx, qp, IBV_EVENT_SQ_DRAINED);
		if (to == IBV_QPS_RTS)
			fake_kick(qp);
	}
	ibv->state = to;
	unlock();
	return 0;
}

EXPORT int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;
	(void)mask;
	lock();
	int err = fake_call(CALL_ibv_query_qp);
	if (!err && !ALIVE(qp, K_QP, "ibv_query_qp"))
		err = EINVAL;
	if (!err) {
		*a = qp->attr;
		a->qp_state = a->cur_qp_state = ibv->state = qp->state;
		a->cap = qp->cap;
		a->sq_psn = qp->sq_psn;
		a->rq_psn = qp->rq_psn;
		memset(init, 0, sizeof(*init));
		init->qp_context = ibv->qp_context;
		init->send_cq = ibv->send_cq;
		init->recv_cq = ibv->recv_cq;
		init->srq = ibv->srq;
		init->cap = qp->cap;
		init->qp_type = ibv->qp_type;
		init->sq_sig_all = qp->sig_all;
	}
	unlock();
	return err;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *ibv)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;
	lock();
	int err = fake_call(CALL_ibv_destroy_qp);
	if (!err && !ALIVE(qp, K_QP, "ibv_destroy_qp"))
		err = EINVAL;
	if (!err && qp->flows) {
		fake_violation("ibv_destroy_qp: qp 0x%x has %d flows", ibv->qp_num, qp->flows);
		err = EBUSY;
	}
	if (err) {
		unlock();
		return err;
	}
	/* From here it is off the wire: nothing more lands through it. */
	reset(qp);
	qp->state = IBV_QPS_RESET;
	events_forget(&qp->o.ctx->async, qp);
	unlock();
	if (!fake_wait_acks(&ibv->mutex, &ibv->cond, &ibv->events_completed, &qp->async_events, "ibv_destroy_qp"))
		return EBUSY;
	lock();
	fake_unwire(qp);
	qp->dev->qps[ibv->qp_num - FIRST_QPN] = NULL;
	if (ibv->pd)
		((struct fake_pd *)ibv->pd)->qps--;
	if (qp->scq)
		qp->scq->qps--;
	if (qp->rcq)
		qp->rcq->qps--;
	if (qp->srq)
		qp->srq->qps--;
	if (qp->xrcd)
		qp->xrcd->users--;
	free(qp->sq);
	free(qp->sq_sges);
	free(qp->sq_inline);
	fake_rq_close(&qp->rq);
	fake_bury(&qp->o);
	unlock();
	return 0;
}

/* ---- address handles */

EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *ibv, struct ibv_ah_attr *attr)
{
	struct fake_pd *pd = (struct fake_pd *)ibv;
	struct fake_ah *ah = NULL;
	lock();
	int err = fake_call(CALL_ibv_create_ah);
	if (!err && !ALIVE(pd, K_PD, "ibv_create_ah"))
		err = EINVAL;
	if (!err)
		err = fake_check_av(pd->o.ctx->dev, attr);
	if (!err && !(ah = NEW(struct fake_ah, K_AH, pd->o.ctx)))
		err = ENOMEM;
	if (ah) {
		ah->ibv.context = ibv->context;
		ah->ibv.pd = ibv;
		ah->ibv.handle = (uint32_t)ah->o.serial;
		ah->attr = *attr;
		pd->ahs++;
	}
	unlock();
	if (err)
		errno = err;
	return ah ? &ah->ibv : NULL;
}

EXPORT int ibv_destroy_ah(struct ibv_ah *ibv)
{
	struct fake_ah *ah = (struct fake_ah *)ibv;
	lock();
	int err = fake_call(CALL_ibv_destroy_ah);
	if (!err && !ALIVE(ah, K_AH, "ibv_destroy_ah"))
		err = EINVAL;
	if (!err) {
		((struct fake_pd *)ah->ibv.pd)->ahs--;
		fake_bury(&ah->o);
	}
	unlock();
	return err;
}
