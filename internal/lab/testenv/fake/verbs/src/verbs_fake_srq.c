/* Receive queues, shared receive queues, extended connection domains. */
#include "verbs_fake.h"

#include <stdlib.h>
#include <string.h>

int fake_rq_open(struct rq *rq, uint32_t wrs, uint32_t sges)
{
	rq->size = wrs;
	rq->max_sge = sges;
	rq->ring = calloc((size_t)wrs + 1, sizeof(*rq->ring));
	rq->sges = calloc((size_t)wrs * sges + 1, sizeof(*rq->sges));
	if (!rq->ring || !rq->sges)
		return ENOMEM;
	for (uint32_t i = 0; i < wrs; i++)
		rq->ring[i].sge = rq->sges + (size_t)i * sges;
	return 0;
}

void fake_rq_close(struct rq *rq)
{
	free(rq->ring);
	free(rq->sges);
	rq->ring = NULL;
	rq->sges = NULL;
}

int fake_rq_post(struct rq *rq, struct ibv_recv_wr *wr)
{
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return EINVAL;
	if (rq->busy >= rq->size)
		return ENOMEM;
	struct rqe *r = &rq->ring[rq->post++ % rq->size];
	rq->busy++;
	r->wr_id = wr->wr_id;
	r->nsge = wr->num_sge;
	if (wr->num_sge)
		memcpy(r->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(*r->sge));
	fake_count(CALL_recv_requests, 1);
	return 0;
}

struct fake_srq *fake_srq_find(struct fake_device *dev, uint32_t number)
{
	for (struct obj *o = fake_first(K_SRQ); o; o = o->next) {
		struct fake_srq *s = container(o, struct fake_srq, o);
		if (s->number == number && o->ctx->dev == dev)
			return s;
	}
	return NULL;
}

/* fake_srq_taken follows every receive taken: below the limit the user is told, once per arming. */
void fake_srq_taken(struct fake_srq *srq)
{
	if (srq->limit && srq->rq.post - srq->rq.done < srq->limit) {
		srq->limit = 0;
		fake_async(srq->o.ctx, srq, IBV_EVENT_SRQ_LIMIT_REACHED);
	}
}

struct ibv_srq *fake_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a)
{
	struct fake_context *ctx = CTX(c);
	struct fake_pd *pd = (a->comp_mask & IBV_SRQ_INIT_ATTR_PD) ? (struct fake_pd *)a->pd : NULL;
	bool xrc = (a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) && a->srq_type == IBV_SRQT_XRC;
	struct fake_srq *srq = NULL;
	lock();
	int err = fake_call(CALL_ibv_create_srq);
	if (!err && (!ALIVE(ctx, K_CONTEXT, "ibv_create_srq") || !ALIVE(pd, K_PD, "ibv_create_srq")))
		err = EINVAL;
	if (!err && ((config.absent & ABSENT_SRQ) || (xrc && (config.absent & ABSENT_XRC))))
		err = EOPNOTSUPP;
	if (!err && (a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) && a->srq_type != IBV_SRQT_BASIC && !xrc)
		err = EOPNOTSUPP;
	if (!err && xrc && ((a->comp_mask & (IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ)) !=
			    (IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ) ||
			    !ALIVE((struct fake_xrcd *)a->xrcd, K_XRCD, "ibv_create_srq") ||
			    !ALIVE((struct fake_cq *)a->cq, K_CQ, "ibv_create_srq")))
		err = EINVAL;
	if (!err && (a->attr.max_wr == 0 || a->attr.max_wr > (uint32_t)config.attr.max_srq_wr ||
		     a->attr.max_sge > (uint32_t)config.attr.max_srq_sge))
		err = EINVAL;
	if (!err && !(srq = NEW(struct fake_srq, K_SRQ, ctx)))
		err = ENOMEM;
	if (srq && fake_rq_open(&srq->rq, a->attr.max_wr, a->attr.max_sge)) {
		fake_rq_close(&srq->rq);
		fake_bury(&srq->o);
		srq = NULL;
		err = ENOMEM;
	}
	if (srq) {
		srq->ibv.context = c;
		srq->ibv.srq_context = a->srq_context;
		srq->ibv.pd = &pd->ibv;
		srq->ibv.handle = (uint32_t)srq->o.serial;
		srq->number = (uint32_t)srq->o.serial & 0xffffff;
		pthread_mutex_init(&srq->ibv.mutex, NULL);
		pthread_cond_init(&srq->ibv.cond, NULL);
		srq->type = xrc ? IBV_SRQT_XRC : IBV_SRQT_BASIC;
		if (xrc) {
			srq->xrcd = (struct fake_xrcd *)a->xrcd;
			srq->xrcd->users++;
			srq->cq = (struct fake_cq *)a->cq;
			srq->cq->srqs++;
		}
		pd->srqs++;
	}
	unlock();
	if (err)
		errno = err;
	return srq ? &srq->ibv : NULL;
}

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	struct ibv_srq_init_attr_ex x = {.comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = pd, .srq_context = a->srq_context, .attr = a->attr};
	return fake_create_srq_ex(pd->context, &x);
}

EXPORT int ibv_modify_srq(struct ibv_srq *ibv, struct ibv_srq_attr *a, int mask)
{
	struct fake_srq *srq = (struct fake_srq *)ibv;
	lock();
	int err = fake_call(CALL_ibv_modify_srq);
	if (!err && !ALIVE(srq, K_SRQ, "ibv_modify_srq"))
		err = EINVAL;
	if (!err && (mask & IBV_SRQ_MAX_WR))
		err = EOPNOTSUPP;
	if (!err && (mask & IBV_SRQ_LIMIT) && a->srq_limit > srq->rq.size)
		err = EINVAL;
	if (!err && (mask & IBV_SRQ_LIMIT))
		srq->limit = a->srq_limit;
	unlock();
	return err;
}

EXPORT int ibv_query_srq(struct ibv_srq *ibv, struct ibv_srq_attr *a)
{
	struct fake_srq *srq = (struct fake_srq *)ibv;
	lock();
	int err = fake_call(CALL_ibv_query_srq);
	if (!err && !ALIVE(srq, K_SRQ, "ibv_query_srq"))
		err = EINVAL;
	if (!err)
		*a = (struct ibv_srq_attr){.max_wr = srq->rq.size, .max_sge = srq->rq.max_sge, .srq_limit = srq->limit};
	unlock();
	return err;
}

EXPORT int ibv_destroy_srq(struct ibv_srq *ibv)
{
	struct fake_srq *srq = (struct fake_srq *)ibv;
	lock();
	int err = fake_call(CALL_ibv_destroy_srq);
	if (!err && !ALIVE(srq, K_SRQ, "ibv_destroy_srq"))
		err = EINVAL;
	if (!err && srq->qps)
		err = EBUSY;
	if (err) {
		unlock();
		return err;
	}
	events_forget(&srq->o.ctx->async, srq);
	fake_cq_forget(NULL, srq);
	srq->limit = 0;
	srq->number = 0; /* XRC: no longer found */
	unlock();
	if (!fake_wait_acks(&ibv->mutex, &ibv->cond, &ibv->events_completed, &srq->async_events, "ibv_destroy_srq"))
		return EBUSY;
	lock();
	((struct fake_pd *)ibv->pd)->srqs--;
	if (srq->xrcd)
		srq->xrcd->users--;
	if (srq->cq)
		srq->cq->srqs--;
	fake_rq_close(&srq->rq);
	fake_bury(&srq->o);
	unlock();
	return 0;
}

int fake_get_srq_num(struct ibv_srq *ibv, uint32_t *num)
{
	struct fake_srq *srq = (struct fake_srq *)ibv;
	lock();
	int err = ALIVE(srq, K_SRQ, "ibv_get_srq_num") && srq->type == IBV_SRQT_XRC ? 0 : EINVAL;
	if (!err)
		*num = srq->number;
	unlock();
	return err;
}

int fake_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_srq *srq = (struct fake_srq *)ibv;
	lock();
	int err = fake_call(CALL_ibv_post_srq_recv);
	if (!err && !ALIVE(srq, K_SRQ, "ibv_post_srq_recv"))
		err = EINVAL;
	while (!err && wr && !(err = fake_rq_post(&srq->rq, wr)))
		wr = wr->next;
	if (err)
		*bad = wr;
	unlock();
	return err;
}

/* ---- extended connection domains. Sharing one between processes through a file is not possible here: the descriptor must be -1. */

struct ibv_xrcd *fake_open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a)
{
	struct fake_context *ctx = CTX(c);
	struct fake_xrcd *x = NULL;
	lock();
	int err = fake_call(CALL_ibv_open_xrcd);
	if (!err && !ALIVE(ctx, K_CONTEXT, "ibv_open_xrcd"))
		err = EINVAL;
	if (!err && ((config.absent & ABSENT_XRC) || a->fd != -1))
		err = EOPNOTSUPP;
	if (!err && !(x = NEW(struct fake_xrcd, K_XRCD, ctx)))
		err = ENOMEM;
	if (x)
		x->ibv.context = c;
	unlock();
	if (err)
		errno = err;
	return x ? &x->ibv : NULL;
}

int fake_close_xrcd(struct ibv_xrcd *ibv)
{
	struct fake_xrcd *x = (struct fake_xrcd *)ibv;
	lock();
	int err = fake_call(CALL_ibv_close_xrcd);
	if (!err && !ALIVE(x, K_XRCD, "ibv_close_xrcd"))
		err = EINVAL;
	if (!err && x->users)
		err = EBUSY;
	if (!err)
		fake_bury(&x->o);
	unlock();
	return err;
}
