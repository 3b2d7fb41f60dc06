/* Completion channels and completion queues. */
#include "verbs_fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct fake_context *ctx = CTX(c);
	struct fake_channel *ch = NULL;
	lock();
	int err = fake_call(CALL_ibv_create_comp_channel);
	if (!err && !ALIVE(ctx, K_CONTEXT, "ibv_create_comp_channel"))
		err = EINVAL;
	if (!err && !(ch = NEW(struct fake_channel, K_CHANNEL, ctx)))
		err = ENOMEM;
	if (ch && (err = events_open(&ch->events)) != 0) {
		fake_bury(&ch->o);
		ch = NULL;
	}
	if (ch) {
		ch->ibv.context = c;
		ch->ibv.fd = ch->events.fd;
	}
	unlock();
	if (err)
		errno = err;
	return ch ? &ch->ibv : NULL;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	struct fake_channel *ch = (struct fake_channel *)ibv;
	lock();
	int err = fake_call(CALL_ibv_destroy_comp_channel);
	if (!err && !ALIVE(ch, K_CHANNEL, "ibv_destroy_comp_channel"))
		err = EINVAL;
	if (!err && ch->ibv.refcnt)
		err = EBUSY;
	if (!err) {
		events_close(&ch->events);
		fake_bury(&ch->o);
	}
	unlock();
	return err;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **context)
{
	struct fake_channel *ch = (struct fake_channel *)ibv;
	struct event e;
	lock();
	int err = fake_call(CALL_ibv_get_cq_event);
	if (!err && !ALIVE(ch, K_CHANNEL, "ibv_get_cq_event"))
		err = EINVAL;
	unlock();
	if (err || !events_get(&ch->events, &e, &err)) {
		errno = err;
		return -1;
	}
	struct fake_cq *f = e.element;
	f->comp_events++;
	*cq = (struct ibv_cq *)&f->ibv;
	*context = f->ibv.cq_context;
	unlock();
	return 0;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	lock();
	fake_call(CALL_ibv_ack_cq_events);
	bool ok = ALIVE((struct fake_cq *)cq, K_CQ, "ibv_ack_cq_events");
	unlock();
	if (!ok || n == 0)
		return;
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += n;
	pthread_cond_broadcast(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* ---- create, resize, destroy */

static struct fake_cq *create(struct ibv_context *c, uint32_t cqe, void *user, struct ibv_comp_channel *channel, uint32_t vector)
{
	struct fake_context *ctx = CTX(c);
	struct fake_cq *cq = NULL;
	int err = fake_call(CALL_ibv_create_cq);
	if (!err && !ALIVE(ctx, K_CONTEXT, "ibv_create_cq"))
		err = EINVAL;
	if (!err && channel && !ALIVE((struct fake_channel *)channel, K_CHANNEL, "ibv_create_cq"))
		err = EINVAL;
	if (!err && (cqe == 0 || cqe > (uint32_t)config.attr.max_cqe || vector >= COMP_VECTORS))
		err = EINVAL;
	if (!err && !(cq = NEW(struct fake_cq, K_CQ, ctx)))
		err = ENOMEM;
	if (cq && !(cq->ring = calloc(cqe, sizeof(*cq->ring)))) {
		fake_bury(&cq->o);
		cq = NULL;
		err = ENOMEM;
	}
	if (!cq) {
		errno = err;
		return NULL;
	}
	cq->size = cqe;
	cq->ibv.context = c;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = user;
	cq->ibv.handle = (uint32_t)cq->o.serial;
	cq->ibv.cqe = (int)cqe;
	pthread_mutex_init(&cq->ibv.mutex, NULL);
	pthread_cond_init(&cq->ibv.cond, NULL);
	if (channel)
		channel->refcnt++;
	return cq;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *user, struct ibv_comp_channel *channel, int vector)
{
	lock();
	struct fake_cq *cq = create(c, cqe > 0 ? (uint32_t)cqe : 0, user, channel, (uint32_t)vector);
	unlock();
	return cq ? (struct ibv_cq *)&cq->ibv : NULL;
}

EXPORT int ibv_resize_cq(struct ibv_cq *ibv, int cqe)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	lock();
	int err = fake_call(CALL_ibv_resize_cq);
	if (!err && (!ALIVE(cq, K_CQ, "ibv_resize_cq") || cqe < 1 || cqe > config.attr.max_cqe || (uint64_t)cqe < cq->put - cq->got))
		err = EINVAL;
	struct cqe *ring = err ? NULL : calloc((size_t)cqe, sizeof(*ring));
	if (!err && !ring)
		err = ENOMEM;
	if (!err) {
		for (uint64_t i = cq->got; i < cq->put; i++)
			ring[i % (uint32_t)cqe] = cq->ring[i % cq->size];
		free(cq->ring);
		cq->ring = ring;
		cq->size = (uint32_t)cqe;
		cq->ibv.cqe = cqe;
	}
	unlock();
	return err;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *ibv)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	lock();
	int err = fake_call(CALL_ibv_destroy_cq);
	if (!err && !ALIVE(cq, K_CQ, "ibv_destroy_cq"))
		err = EINVAL;
	if (!err && (cq->qps || cq->srqs))
		err = EBUSY;
	if (err) {
		unlock();
		return err;
	}
	/* From here no event of this queue is delivered any more; those delivered must be acknowledged. */
	if (cq->ibv.channel)
		events_forget(&((struct fake_channel *)cq->ibv.channel)->events, cq);
	events_forget(&cq->o.ctx->async, cq);
	cq->armed = 0;
	unlock();
	if (!fake_wait_acks(&cq->ibv.mutex, &cq->ibv.cond, &cq->ibv.comp_events_completed, &cq->comp_events, "ibv_destroy_cq") ||
	    !fake_wait_acks(&cq->ibv.mutex, &cq->ibv.cond, &cq->ibv.async_events_completed, &cq->async_events, "ibv_destroy_cq"))
		return EBUSY;
	lock();
	if (cq->ibv.channel)
		cq->ibv.channel->refcnt--;
	free(cq->ring);
	cq->ring = NULL;
	fake_bury(&cq->o);
	unlock();
	return 0;
}

/* ---- in and out */

/* fake_overrun: a completion does not fit. The queue is broken for ever, and so are the queue pairs that use it. */
void fake_overrun(struct fake_cq *cq)
{
	if (cq->overrun)
		return;
	cq->overrun = true;
	fake_async(cq->o.ctx, cq, IBV_EVENT_CQ_ERR);
	for (struct obj *o = fake_first(K_QP); o; o = o->next) {
		struct fake_qp *qp = container(o, struct fake_qp, o);
		if ((qp->scq == cq || qp->rcq == cq) && qp->state != IBV_QPS_RESET && qp->state != IBV_QPS_ERR) {
			fake_async(qp->o.ctx, qp, IBV_EVENT_QP_FATAL);
			fake_qp_error(qp, IBV_QPS_ERR);
		}
	}
}

/* fake_push adds a completion; solicited says that the peer asked for an event with it, or that it is an error. */
void fake_push(struct fake_cq *cq, struct cqe *e, bool solicited)
{
	if (cq->overrun || cq->put - cq->got >= cq->size) {
		fake_count(CALL_drops, 1);
		fake_overrun(cq);
		return;
	}
	struct timespec wall;
	clock_gettime(CLOCK_REALTIME, &wall);
	e->ts = now_ns();
	e->wall = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
	if (e->wc.status != IBV_WC_SUCCESS) {
		/* In a failed completion only wr_id, status, qp_num and vendor_err mean something. */
		e->wc.opcode = (enum ibv_wc_opcode)0x5bad;
		e->wc.byte_len = 0x5badbad;
		e->wc.wc_flags = 0;
		e->wc.vendor_err = 0x100u + (unsigned)e->wc.status;
	}
	cq->ring[cq->put++ % cq->size] = *e;
	fake_count(CALL_completions, 1);
	if (cq->armed && (cq->armed == 2 || solicited)) {
		cq->armed = 0;
		if (cq->ibv.channel)
			events_put(&((struct fake_channel *)cq->ibv.channel)->events, cq, NULL);
	}
}

/* fake_cq_forget: polling the completions of qp or srq no longer gives slots back, because it is reset or gone. */
void fake_cq_forget(struct fake_qp *qp, struct fake_srq *srq)
{
	for (struct obj *o = fake_first(K_CQ); o; o = o->next) {
		struct fake_cq *cq = container(o, struct fake_cq, o);
		if (qp && cq != qp->scq && cq != qp->rcq && !(qp->type == IBV_QPT_XRC_RECV))
			continue;
		for (uint64_t i = cq->got; i < cq->put; i++) {
			struct cqe *e = &cq->ring[i % cq->size];
			if (qp && e->qp == qp)
				e->qp = NULL;
			if (srq && e->srq == srq)
				e->srq = NULL;
		}
	}
}

static bool pop(struct fake_cq *cq, struct cqe *out)
{
	if (cq->got == cq->put)
		return false;
	*out = cq->ring[cq->got++ % cq->size];
	if (out->qp && out->sq_upto > out->qp->sq_free)
		out->qp->sq_free = out->sq_upto;
	if (out->qp && out->rq)
		out->qp->rq.busy--;
	if (out->srq)
		out->srq->rq.busy--;
	return true;
}

int fake_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	struct cqe e;
	int got = 0;
	lock();
	int err = fake_call(CALL_ibv_poll_cq);
	if (!err && (!ALIVE(cq, K_CQ, "ibv_poll_cq") || n < 0))
		err = EINVAL;
	if (err) {
		unlock();
		return -err;
	}
	while (got < n && pop(cq, &e))
		wc[got++] = e.wc;
	unlock();
	return got;
}

int fake_req_notify(struct ibv_cq *ibv, int solicited_only)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	lock();
	int err = fake_call(CALL_ibv_req_notify_cq);
	if (!err && !ALIVE(cq, K_CQ, "ibv_req_notify_cq"))
		err = EINVAL;
	if (!err) {
		int want = solicited_only ? 1 : 2;
		if (want > cq->armed)
			cq->armed = want;
		if (!cq->ibv.channel)
			fake_violation("ibv_req_notify_cq: cq #%llu has no channel", (unsigned long long)cq->o.serial);
	}
	unlock();
	return err;
}

/* ---- the extended interface: start_poll, next_poll, end_poll and readers. Between start and end the queue belongs to its caller. */

static int next(struct ibv_cq_ex *ibv)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	lock();
	bool some = pop(cq, &cq->cur);
	unlock();
	if (!some)
		return ENOENT;
	ibv->wr_id = cq->cur.wc.wr_id;
	ibv->status = cq->cur.wc.status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *ibv, struct ibv_poll_cq_attr *a)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	if (a && a->comp_mask)
		return EINVAL;
	lock();
	int err = fake_call(CALL_ibv_poll_cq);
	if (!err && !ALIVE(cq, K_CQ, "ibv_start_poll"))
		err = EINVAL;
	if (!err && cq->polling) {
		fake_violation("ibv_start_poll: cq #%llu is being polled already", (unsigned long long)cq->o.serial);
		err = EINVAL;
	}
	unlock();
	if (!err)
		err = next(ibv);
	cq->polling = !err; /* ENOENT: end_poll is not called */
	return err;
}

static void end_poll(struct ibv_cq_ex *ibv) { ((struct fake_cq *)ibv)->polling = false; }

#define READER(type, name, value) \
	static type read_##name(struct ibv_cq_ex *ibv) { return ((struct fake_cq *)ibv)->cur.value; }
READER(enum ibv_wc_opcode, opcode, wc.opcode)
READER(uint32_t, vendor_err, wc.vendor_err)
READER(uint32_t, byte_len, wc.byte_len)
READER(__be32, imm_data, wc.imm_data)
READER(uint32_t, qp_num, wc.qp_num)
READER(uint32_t, src_qp, wc.src_qp)
READER(unsigned int, wc_flags, wc.wc_flags)
READER(uint32_t, slid, wc.slid)
READER(uint8_t, sl, wc.sl)
READER(uint8_t, dlid_path_bits, wc.dlid_path_bits)
READER(uint64_t, completion_ts, ts)
READER(uint64_t, completion_wallclock_ns, wall)

struct ibv_cq_ex *fake_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a)
{
	const uint64_t known = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			       (config.absent & ABSENT_WALLCLOCK ? 0 : IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
	if ((a->wc_flags & ~known) || (a->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS) ||
	    ((a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) && (a->flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	lock();
	struct fake_cq *cq = create(c, a->cqe, a->cq_context, a->channel, a->comp_vector);
	if (cq) {
		struct ibv_cq_ex *x = &cq->ibv;
		x->start_poll = start_poll;
		x->next_poll = next;
		x->end_poll = end_poll;
		x->read_opcode = read_opcode;
		x->read_vendor_err = read_vendor_err;
		x->read_wc_flags = read_wc_flags;
		x->read_qp_num = (a->wc_flags & IBV_WC_EX_WITH_QP_NUM) ? read_qp_num : NULL;
		x->read_byte_len = (a->wc_flags & IBV_WC_EX_WITH_BYTE_LEN) ? read_byte_len : NULL;
		x->read_imm_data = (a->wc_flags & IBV_WC_EX_WITH_IMM) ? read_imm_data : NULL;
		x->read_src_qp = (a->wc_flags & IBV_WC_EX_WITH_SRC_QP) ? read_src_qp : NULL;
		x->read_slid = (a->wc_flags & IBV_WC_EX_WITH_SLID) ? read_slid : NULL;
		x->read_sl = (a->wc_flags & IBV_WC_EX_WITH_SL) ? read_sl : NULL;
		x->read_dlid_path_bits = (a->wc_flags & IBV_WC_EX_WITH_DLID_PATH_BITS) ? read_dlid_path_bits : NULL;
		x->read_completion_ts = (a->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) ? read_completion_ts : NULL;
		x->read_completion_wallclock_ns =
			(a->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) ? read_completion_wallclock_ns : NULL;
	}
	unlock();
	return cq ? &cq->ibv : NULL;
}
