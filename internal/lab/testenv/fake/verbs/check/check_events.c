/* Completion channels, asynchronous events, shared receive queues, overflow. */
#include "check.h"

#include <fcntl.h>

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

const struct check checks_events[] = { {"event-comm-est", comm_est, false}, {"srq-last-wqe", srq_last_wqe, false}, {"srq-full", srq_full, false}, {NULL, NULL, false}};
