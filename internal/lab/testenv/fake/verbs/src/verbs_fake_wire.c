/* The wire: when a request is executed, by whom, how often it is tried, and what its completion does to the queue pair. */
#include "verbs_fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One thread runs while a device is open. It does what time does: retry timers, delayed completions, and in mode wire all. */
struct wire {
	pthread_t thread;
	pthread_cond_t wake;
	bool stop;
};

static struct wire *wire;
static int wire_users;
static struct fake_qp *active;

static void activate(struct fake_qp *qp)
{
	if (qp->active)
		return;
	qp->active = true;
	qp->active_next = NULL;
	struct fake_qp **p = &active;
	while (*p)
		p = &(*p)->active_next;
	*p = qp;
}

void fake_unwire(struct fake_qp *qp)
{
	for (struct fake_qp **p = &active; *p; p = &(*p)->active_next)
		if (*p == qp) {
			*p = qp->active_next;
			break;
		}
	qp->active = false;
}

/* ---- completions of the send side */

static enum ibv_wc_opcode wc_opcode(enum ibv_wr_opcode op)
{
	switch (op) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_BIND_MW:
		return IBV_WC_BIND_MW;
	case IBV_WR_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
	default:
		return IBV_WC_SEND;
	}
}

static void push_send(struct fake_qp *qp, struct wqe *w, enum ibv_wc_status status, uint32_t len)
{
	struct cqe e = {.qp = qp, .sq_upto = ++qp->sq_done};
	if (status == IBV_WC_SUCCESS && !qp->sig_all && !(w->wr.send_flags & IBV_SEND_SIGNALED))
		return; /* its slot comes back with the next completion that is polled */
	e.wc.wr_id = w->wr.wr_id;
	e.wc.status = status;
	e.wc.opcode = wc_opcode(w->wr.opcode);
	e.wc.qp_num = qp->ibv.qp_num;
	e.wc.byte_len = len;
	fake_push(qp->scq, &e, status != IBV_WC_SUCCESS);
}

static struct wqe *head(struct fake_qp *qp) { return &qp->sq[qp->sq_done % qp->cap.max_send_wr]; }

/* fake_flush ends what is queued on a queue pair in error. */
void fake_flush(struct fake_qp *qp)
{
	while (qp->scq && qp->sq_done != qp->sq_post)
		push_send(qp, head(qp), IBV_WC_WR_FLUSH_ERR, 0);
	if (qp->state != IBV_QPS_ERR || qp->srq || !qp->rcq)
		return;
	while (qp->rq.done != qp->rq.post) {
		struct cqe e = {.qp = qp, .rq = true};
		e.wc.wr_id = qp->rq.ring[qp->rq.done++ % qp->rq.size].wr_id;
		e.wc.status = IBV_WC_WR_FLUSH_ERR;
		e.wc.qp_num = qp->ibv.qp_num;
		fake_push(qp->rcq, &e, true);
	}
}

/* fake_qp_error brings a queue pair into ERR, or into SQE, where receives go on. */
void fake_qp_error(struct fake_qp *qp, enum ibv_qp_state state)
{
	if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET)
		if (qp->state == state || state == IBV_QPS_SQE)
			return;
	qp->state = state;
	qp->landed = false;
	qp->not_before = 0;
	fake_flush(qp);
	if (state == IBV_QPS_ERR && qp->srq && !qp->last_wqe) {
		struct rq *rq = &qp->srq->rq;
		qp->last_wqe = true;
		if (config.partial && rq->done != rq->post) { /* a message was in the middle of arriving */
			qp->partial_id = rq->ring[rq->done++ % rq->size].wr_id;
			qp->partial = true;
			qp->not_before = now_ns() + 3000000;
			fake_srq_taken(qp->srq);
			activate(qp);
			fake_wire_poke();
			return;
		}
		fake_async(qp->o.ctx, qp, IBV_EVENT_QP_LAST_WQE_REACHED);
	}
}

/* give_up ends the receive that a queue pair in error had begun to fill, and says that it was the last one. */
static void give_up(struct fake_qp *qp)
{
	struct cqe e = {.srq = qp->srq};
	qp->partial = false;
	e.wc.wr_id = qp->partial_id;
	e.wc.status = IBV_WC_WR_FLUSH_ERR;
	e.wc.qp_num = qp->ibv.qp_num;
	fake_push(qp->rcq, &e, true);
	fake_async(qp->o.ctx, qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

static void complete(struct fake_qp *qp, struct wqe *w, enum ibv_wc_status status, uint32_t len)
{
	qp->tries = qp->rnr_tries = 0;
	qp->not_before = 0;
	qp->landed = false;
	if (qp->fate.drop) {
		qp->sq_done++;
		fake_count(CALL_drops, 1);
	} else
		push_send(qp, w, status, len);
	memset(&qp->fate, 0, sizeof(qp->fate));
	if (status != IBV_WC_SUCCESS)
		fake_qp_error(qp, qp->type == IBV_QPT_UD || qp->type == IBV_QPT_UC ? IBV_QPS_SQE : IBV_QPS_ERR);
}

/* ---- one step */

enum step { IDLE, WAITING, DID };

static uint64_t timeout_ns(const struct fake_qp *qp) { return 4096ull << qp->attr.timeout; }

static enum step wait(struct fake_qp *qp, uint64_t now, uint64_t ns)
{
	qp->not_before = now + (config.instant ? 0 : ns);
	return WAITING;
}

/* step executes the request at the head of a send queue. force: do not wait for a time to come. */
static enum step step(struct fake_qp *qp, uint64_t now, bool force)
{
	uint32_t len = 0;
	uint8_t rnr_timer = 0;
	if (qp->partial) {
		if (!force && qp->not_before > now)
			return WAITING;
		give_up(qp);
		return DID;
	}
	if (qp->state != IBV_QPS_RTS || qp->sq_done == qp->sq_post)
		return IDLE;
	struct wqe *w = head(qp);
	if (w->due > qp->not_before)
		qp->not_before = w->due;
	if (!force && qp->not_before > now)
		return WAITING;
	if (qp->landed) {
		complete(qp, w, IBV_WC_SUCCESS, qp->landed_len);
		return DID;
	}
	if (!w->counted) {
		w->counted = true;
		qp->fate = fake_fate(SIDE_SEND);
	}
	if (qp->fate.status != IBV_WC_SUCCESS) {
		complete(qp, w, qp->fate.status, 0);
		return DID;
	}
	int st = fake_execute(qp, w, &len, &rnr_timer);
	switch (st) {
	case ST_RNR:
		fake_count(CALL_rnr_naks, 1);
		if (qp->attr.rnr_retry == 7 || qp->rnr_tries < qp->attr.rnr_retry) {
			qp->rnr_tries++;
			/* "instant" must not spin where the number of tries has no end. */
			if (config.instant && qp->attr.rnr_retry == 7) {
				qp->not_before = now + 100000;
				return WAITING;
			}
			return wait(qp, now, fake_rnr_ns(rnr_timer));
		}
		complete(qp, w, IBV_WC_RNR_RETRY_EXC_ERR, 0);
		return DID;
	case ST_TIMEOUT:
		if (qp->attr.timeout == 0) { /* no timer: it waits for an answer for ever */
			qp->not_before = now + 1000000;
			return WAITING;
		}
		if (qp->tries++ <= qp->attr.retry_cnt) {
			fake_count(CALL_retries, qp->tries > 1);
			return wait(qp, now, timeout_ns(qp));
		}
		complete(qp, w, IBV_WC_RETRY_EXC_ERR, 0);
		return DID;
	case ST_SEQ:
		fake_count(CALL_retries, qp->attr.retry_cnt);
		complete(qp, w, IBV_WC_RETRY_EXC_ERR, 0);
		return DID;
	}
	if (st == IBV_WC_SUCCESS)
		fake_count(CALL_bytes, len);
	if (st == IBV_WC_SUCCESS && qp->fate.delay_ns) {
		qp->landed = true;
		qp->landed_len = len;
		qp->not_before = now + qp->fate.delay_ns;
		return WAITING;
	}
	complete(qp, w, (enum ibv_wc_status)st, len);
	return DID;
}

void fake_kick(struct fake_qp *qp)
{
	enum step s = WAITING;
	if (qp->state != IBV_QPS_RTS || qp->sq_done == qp->sq_post)
		return;
	if (config.mode == MODE_POST) {
		if (qp->active)
			return; /* its head waits for a time */
		do
			s = step(qp, now_ns(), false);
		while (s == DID || (s == WAITING && config.instant && qp->not_before <= now_ns()));
	}
	if (s == WAITING) {
		activate(qp);
		if (wire && config.mode != MODE_PUMP)
			pthread_cond_signal(&wire->wake);
	}
}

/* fake_wire_poke wakes the thread after a change that may concern it. */
void fake_wire_poke(void)
{
	if (wire)
		pthread_cond_signal(&wire->wake);
}

/* fake_pump executes up to n requests, of the active queue pairs in turn, whatever the time; a retry counts as one. */
int fake_pump(int n)
{
	int did = 0;
	uint64_t now = now_ns();
	while (did < n && active) {
		struct fake_qp *qp = active;
		fake_unwire(qp);
		enum step s = step(qp, now, true);
		if (s != IDLE) {
			did++;
			activate(qp);
		}
	}
	return did;
}

static void *wire_run(void *arg)
{
	struct wire *me = arg;
	lock();
	while (!me->stop) {
		uint64_t now = now_ns(), next = UINT64_MAX;
		for (struct fake_qp *qp = active, *after; qp && config.mode != MODE_PUMP; qp = after) {
			enum step s;
			after = qp->active_next;
			do
				s = step(qp, now, false);
			while (s == DID);
			if (s == IDLE)
				fake_unwire(qp);
			else if (qp->not_before < next)
				next = qp->not_before;
		}
		if (me->stop)
			break;
		if (next == UINT64_MAX)
			pthread_cond_wait(&me->wake, &the_lock);
		else if (next > now) {
			struct timespec ts = {.tv_sec = (time_t)(next / 1000000000u), .tv_nsec = (long)(next % 1000000000u)};
			pthread_cond_timedwait(&me->wake, &the_lock, &ts);
		} else { /* let others in */
			unlock();
			lock();
		}
	}
	unlock();
	return NULL;
}

int fake_wire_start(void)
{
	if (wire_users++ > 0)
		return 0;
	struct wire *w = calloc(1, sizeof(*w));
	if (!w) {
		wire_users--;
		return ENOMEM;
	}
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&w->wake, &a);
	pthread_condattr_destroy(&a);
	int err = pthread_create(&w->thread, NULL, wire_run, w);
	if (err) {
		free(w);
		wire_users--;
		return err;
	}
	wire = w;
	return 0;
}

/* fake_wire_stop ends the thread with the last device. It lets the lock go while it waits. */
void fake_wire_stop(void)
{
	if (wire_users == 0 || --wire_users > 0)
		return;
	struct wire *w = wire;
	wire = NULL;
	w->stop = true;
	pthread_cond_signal(&w->wake);
	unlock();
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->wake);
	free(w);
	lock();
}

/* penstock_fake_pump executes up to n send requests in mode pump and says how many it did; a retry counts as one. */
EXPORT int penstock_fake_pump(int n);
EXPORT int penstock_fake_pump(int n)
{
	lock();
	int did = fake_pump(n);
	unlock();
	return did;
}
