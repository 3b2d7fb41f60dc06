/* Completion channels, asynchronous events, shared receive queues, overflow. */
#include "check.h"

#include <fcntl.h>

static void take_event(struct side *s)
{
	struct ibv_cq *cq;
	void *user;
	MUST(readable(s->ch->fd, 60000), "no event within 60 s");
	ZERO(ibv_get_cq_event(s->ch, &cq, &user));
	MUST(cq == s->cq && user == s, "the event is of another queue");
	ibv_ack_cq_events(cq, 1);
}

static void event(void)
{
	pair();
	ZERO(ibv_req_notify_cq(R.cq, 0));
	ZERO(recv_at(&R, 2, 0, 64));
	MUST(!readable(R.ch->fd, 0), "an event without a completion");
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
	take_event(&R);
	want(R.cq, 2, IBV_WC_SUCCESS);
	want(L.cq, 1, IBV_WC_SUCCESS);
	/* One arming, one event. */
	ZERO(recv_at(&R, 3, 0, 64));
	ZERO(post(&L, IBV_WR_SEND, 4, 0, 64, 0, 0));
	want(R.cq, 3, IBV_WC_SUCCESS);
	MUST(!readable(R.ch->fd, 0), "a second event of one arming");
	want(L.cq, 4, IBV_WC_SUCCESS);
	unpair();
}

static void event_nonblocking(void)
{
	struct ibv_cq *cq;
	void *user;
	pair();
	MUST(fcntl(R.ch->fd, F_SETFL, fcntl(R.ch->fd, F_GETFL) | O_NONBLOCK) == 0, "fcntl");
	errno = 0;
	MUST(ibv_get_cq_event(R.ch, &cq, &user) == -1 && errno == EAGAIN, "%s", errname(errno));
	unpair();
}

/* Arming after the completion says nothing of it: whoever arms must poll once more. */
static void event_late(void)
{
	pair();
	ZERO(recv_at(&R, 2, 0, 64));
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	want(R.cq, 2, IBV_WC_SUCCESS);
	ZERO(recv_at(&R, 3, 0, 64));
	ZERO(post(&L, IBV_WR_SEND, 4, 0, 64, 0, 0));
	want(L.cq, 4, IBV_WC_SUCCESS); /* the acknowledgement: the receive is complete, and not polled */
	ZERO(ibv_req_notify_cq(R.cq, 0));
	bool late = readable(R.ch->fd, 200);
	want(R.cq, 3, IBV_WC_SUCCESS);
	say("%s", late ? "an event for what was there" : "no event");
	if (late)
		take_event(&R);
	unpair();
}

static void event_solicited(void)
{
	pair();
	ZERO(ibv_req_notify_cq(R.cq, 1));
	ZERO(recv_at(&R, 2, 0, 64));
	ZERO(recv_at(&R, 3, 0, 64));
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
	want(R.cq, 2, IBV_WC_SUCCESS);
	MUST(!readable(R.ch->fd, 100), "an event for an unsolicited message");
	ZERO(post(&L, IBV_WR_SEND, 4, 0, 64, 0, IBV_SEND_SOLICITED));
	take_event(&R);
	want(R.cq, 3, IBV_WC_SUCCESS);
	unpair();
}

static void event_sender(void)
{
	pair();
	ZERO(ibv_req_notify_cq(L.cq, 0));
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	take_event(&L);
	want(L.cq, 1, IBV_WC_SUCCESS);
	unpair();
}

/* An event that nobody took does not keep its queue from being destroyed. */
static void event_untaken(void)
{
	pair();
	ZERO(ibv_req_notify_cq(L.cq, 0));
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	MUST(readable(L.ch->fd, 60000), "no event");
	ZERO(ibv_destroy_qp(L.qp));
	L.qp = NULL;
	ZERO(ibv_destroy_cq(L.cq));
	MUST(!readable(L.ch->fd, 0), "the event of a destroyed queue is still there");
	L.cq = PTR(ibv_create_cq(ctx, 10, NULL, NULL, 0));
	unpair();
}

static void comm_est(void)
{
	struct ibv_async_event ev;
	side_open(&L, ALL);
	side_open(&R, ALL);
	L.qp = make_qp(&L);
	R.qp = make_qp(&R);
	ZERO(to_init(L.qp, ALL));
	ZERO(to_init(R.qp, ALL));
	ZERO(to_rtr(L.qp, R.qp->qp_num, &gid, 7));
	ZERO(to_rtr(R.qp, L.qp->qp_num, &gid, 7)); /* and not to RTS */
	ZERO(to_rts(L.qp, 7));
	ZERO(recv_at(&R, 2, 0, 64));
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	want(R.cq, 2, IBV_WC_SUCCESS);
	bool got = next_event(&ev, 500);
	say("%s", got ? ibv_event_type_str(ev.event_type) : "no event");
	if (got)
		ibv_ack_async_event(&ev);
	unpair();
}

static void overflow(void)
{
	struct ibv_async_event ev;
	bool seen = false;
	opt.cqe = 4;
	pair();
	int n = L.cq->cqe;
	MUST(n < 60, "a queue for 4 holds %d", n);
	for (int i = 0; i <= n; i++) {
		int e = post(&L, IBV_WR_RDMA_WRITE, (uint64_t)i, 0, 4, 0, 0);
		MUST(!e || i == n, "request %d: %s", i, errname(e));
	}
	while (!seen && next_event(&ev, 60000)) {
		seen = ev.event_type == IBV_EVENT_CQ_ERR && ev.element.cq == L.cq;
		ibv_ack_async_event(&ev);
	}
	say("%s", seen ? "CQ_ERR" : "no event");
	while (next_event(&ev, 50))
		ibv_ack_async_event(&ev);
	unpair();
}

static void srq(void)
{
	opt.srq = true;
	pair();
	struct ibv_qp *l2, *r2;
	l2 = make_qp(&L);
	r2 = make_qp(&R);
	connect_qps(l2, r2);
	for (uint64_t i = 0; i < 4; i++)
		ZERO(recv_at(&R, 10 + i, i * 64, 64));
	for (int i = 0; i < 4; i++) {
		struct ibv_send_wr wr = {.wr_id = (uint64_t)i, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .num_sge = 1};
		struct ibv_sge sg = sge(&L, 0, 64);
		wr.sg_list = &sg;
		ZERO(send_wr(i % 2 ? l2 : L.qp, &wr));
		want(L.cq, (uint64_t)i, IBV_WC_SUCCESS);
		struct ibv_wc wc = wait_wc(R.cq);
		MUST(wc.status == IBV_WC_SUCCESS && wc.wr_id == 10 + (uint64_t)i && wc.qp_num == (i % 2 ? r2 : R.qp)->qp_num, "receive %d: %s, %llu",
		     i, st(wc.status), (unsigned long long)wc.wr_id);
	}
	int e = ibv_destroy_srq(R.srq);
	MUST(e, "a queue in use was destroyed");
	say("busy %s", errname(e));
	ZERO(ibv_destroy_qp(l2));
	ZERO(ibv_destroy_qp(r2));
	unpair();
}

static void srq_limit(void)
{
	struct ibv_async_event ev;
	bool seen = false;
	opt.srq = true;
	pair();
	for (uint64_t i = 0; i < 6; i++)
		ZERO(recv_at(&R, 10 + i, 0, 64));
	struct ibv_srq_attr a = {.srq_limit = 5};
	ZERO(ibv_modify_srq(R.srq, &a, IBV_SRQ_LIMIT));
	ZERO(ibv_query_srq(R.srq, &a));
	MUST(a.srq_limit == 5, "the limit is %u", a.srq_limit);
	for (uint64_t i = 0; i < 4; i++) {
		ZERO(post(&L, IBV_WR_SEND, i, 0, 64, 0, 0));
		want(L.cq, i, IBV_WC_SUCCESS);
		want(R.cq, 10 + i, IBV_WC_SUCCESS);
	}
	int n = 0;
	while (next_event(&ev, n ? 100 : 60000)) {
		seen |= ev.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && ev.element.srq == R.srq;
		n += ev.event_type == IBV_EVENT_SRQ_LIMIT_REACHED;
		ibv_ack_async_event(&ev);
	}
	MUST(seen && n == 1, "%d events", n);
	unpair();
}

static void srq_last_wqe(void)
{
	struct ibv_async_event ev;
	bool seen = false;
	opt.srq = true;
	pair();
	ZERO(recv_at(&R, 1, 0, 64));
	ZERO(to_state(R.qp, IBV_QPS_ERR));
	while (!seen && next_event(&ev, 500)) {
		seen |= ev.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && ev.element.qp == R.qp;
		ibv_ack_async_event(&ev);
	}
	MUST(none(R.cq), "a receive of the shared queue was flushed");
	say("%s", seen ? "last WQE reached" : "no event");
	unpair();
}

static void srq_full(void)
{
	opt.srq = true;
	opt.wr = 8;
	pair();
	int n = 0, e = 0;
	while (n < 1000 && !(e = recv_at(&R, (uint64_t)n, 0, 4)))
		n++;
	MUST(e && n >= 8, "%d receives were taken", n);
	say("%s", errname(e));
	unpair();
}

const struct check checks_events[] = {
	{"event", event}, {"event-nonblocking", event_nonblocking}, {"event-late", event_late}, {"event-solicited", event_solicited},
	{"event-sender", event_sender}, {"event-untaken", event_untaken}, {"event-comm-est", comm_est}, {"cq-overflow", overflow}, {"srq", srq},
	{"srq-limit", srq_limit}, {"srq-last-wqe", srq_last_wqe}, {"srq-full", srq_full}, {NULL, NULL}};
