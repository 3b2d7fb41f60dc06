/* What goes wrong on a reliable connection, and with which status. */
#include "check.h"

#include <sched.h>
#include <time.h>

static int event_of(struct ibv_qp *qp);

/* expect posts one request that must fail, and sees that what follows is flushed. or is a status that some devices give instead. */
static void expect_or(enum ibv_wr_opcode op, struct ibv_sge sg, uint64_t addr, uint32_t rkey, int status, int or)
{
	int e = post_to(&L, op, 1, sg, addr, rkey, 0); /* errors complete also unsignaled requests */
	MUST(!e, "ibv_post_send: %s", errname(e));
	struct ibv_wc wc = wait_wc(L.cq);
	MUST(wc.wr_id == 1 && ((int)wc.status == status || (int)wc.status == or), "%s, expected %s", st(wc.status), st(status));
	say("%s", st(wc.status));
	MUST(state_of(L.qp) == IBV_QPS_ERR, "the queue pair is in state %d after an error", state_of(L.qp));
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 2, 0, 4, 0, 0));
	want(L.cq, 2, IBV_WC_WR_FLUSH_ERR);
}

static void expect(enum ibv_wr_opcode op, struct ibv_sge sg, uint64_t addr, uint32_t rkey, int status)
{
	expect_or(op, sg, addr, rkey, status, status);
}

/* The responder of a bad request stops too, a little after its answer. */
static void responder_stops(void)
{
	time_t until = time(NULL) + 60;
	while (state_of(R.qp) != IBV_QPS_ERR && time(NULL) < until)
		sched_yield();
	MUST(state_of(R.qp) == IBV_QPS_ERR, "the responder is in state %d", state_of(R.qp));
	int e = event_of(R.qp);
	say(", %s", e < 0 ? "no event" : ibv_event_type_str((enum ibv_event_type)e));
}

static void bad_rkey(void)
{
	pair();
	memset(R.buf, 'r', 64);
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey + 0x1000, IBV_WC_REM_ACCESS_ERR);
	MUST(R.buf[0] == 'r', "it was written all the same");
	responder_stops();
	unpair();
}

static void stale_rkey(void)
{
	pair();
	uint32_t key = R.mr->rkey;
	ZERO(ibv_dereg_mr(R.mr));
	R.mr = PTR(ibv_reg_mr(R.pd, R.buf, BUF, ALL));
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, key, IBV_WC_REM_ACCESS_ERR);
	unpair();
}

static void bounds(void)
{
	pair();
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 65), (uintptr_t)R.buf + BUF - 64, R.mr->rkey, IBV_WC_REM_ACCESS_ERR);
	unpair();
}

static void bounds_read(void)
{
	pair();
	expect(IBV_WR_RDMA_READ, sge(&L, 0, 64), (uintptr_t)R.buf - 1, R.mr->rkey, IBV_WC_REM_ACCESS_ERR);
	responder_stops();
	unpair();
}

static void bounds_wrap(void)
{
	pair();
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), UINT64_MAX - 8, R.mr->rkey, IBV_WC_REM_ACCESS_ERR);
	unpair();
}

static void no_write_right(void)
{
	opt.mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
	pair();
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_REM_ACCESS_ERR);
	unpair();
}

static void no_read_right(void)
{
	opt.mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	pair();
	expect(IBV_WR_RDMA_READ, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_REM_ACCESS_ERR);
	unpair();
}

static void no_atomic_right(void)
{
	opt.mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	pair();
	expect(IBV_WR_ATOMIC_FETCH_AND_ADD, sge(&L, 0, 8), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_REM_ACCESS_ERR);
	unpair();
}

static void no_qp_right(void)
{
	opt.qp_access = IBV_ACCESS_REMOTE_READ;
	pair();
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_REM_INV_REQ_ERR);
	responder_stops();
	unpair();
}

static void other_pd(void)
{
	pair();
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	struct ibv_mr *mr = PTR(ibv_reg_mr(pd, R.buf, BUF, ALL));
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, mr->rkey, IBV_WC_REM_ACCESS_ERR);
	ZERO(ibv_dereg_mr(mr));
	ZERO(ibv_dealloc_pd(pd));
	unpair();
}

static void bad_lkey(void)
{
	pair();
	struct ibv_sge s = sge(&L, 0, 64);
	s.lkey += 0x1000;
	expect_or(IBV_WR_RDMA_WRITE, s, (uintptr_t)R.buf, R.mr->rkey, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR);
	unpair();
}

static void lkey_bounds(void)
{
	pair();
	expect(IBV_WR_SEND, sge(&L, BUF - 10, 11), 0, 0, IBV_WC_LOC_PROT_ERR);
	unpair();
}

static void lkey_other_pd(void)
{
	pair();
	struct ibv_sge s = {(uintptr_t)R.buf, 64, R.mr->lkey};
	expect_or(IBV_WR_SEND, s, 0, 0, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR);
	unpair();
}

static void read_sink(void)
{
	pair();
	struct ibv_mr *mr = PTR(ibv_reg_mr(L.pd, L.buf, 4096, 0));
	struct ibv_sge s = {(uintptr_t)L.buf, 64, mr->lkey};
	expect(IBV_WR_RDMA_READ, s, (uintptr_t)R.buf, R.mr->rkey, IBV_WC_LOC_PROT_ERR);
	ZERO(ibv_dereg_mr(mr));
	unpair();
}

static void recv_small(void)
{
	pair();
	ZERO(recv_at(&R, 5, 0, 63));
	ZERO(recv_at(&R, 6, 0, 63));
	expect_or(IBV_WR_SEND, sge(&L, 0, 64), 0, 0, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.wr_id == 5 && wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR, "the receive: %s", st(wc.status));
	say(", receiver %s", st(wc.status));
	want(R.cq, 6, IBV_WC_WR_FLUSH_ERR);
	responder_stops();
	unpair();
}

static void recv_lkey(void)
{
	pair();
	struct ibv_sge s = {(uintptr_t)R.buf, 64, R.mr->lkey + 0x1000};
	struct ibv_recv_wr *bad, rw = {.wr_id = 5, .sg_list = &s, .num_sge = 1};
	ZERO(ibv_post_recv(R.qp, &rw, &bad));
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
	struct ibv_wc l = wait_wc(L.cq), r = wait_wc(R.cq);
	MUST(l.status != IBV_WC_SUCCESS && r.status != IBV_WC_SUCCESS, "%s and %s", st(l.status), st(r.status));
	say("%s, receiver %s", st(l.status), st(r.status));
	unpair();
}

static void atomic_unaligned(void)
{
	pair();
	int e = post_to(&L, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, sge(&L, 0, 8), (uintptr_t)R.buf + 4, R.mr->rkey, IBV_SEND_SIGNALED);
	if (e) {
		say("at post: %s", errname(e));
	} else {
		struct ibv_wc wc = wait_wc(L.cq);
		MUST(wc.status != IBV_WC_SUCCESS, "an unaligned atomic succeeded");
		say("%s", st(wc.status));
	}
	unpair();
}

static void rnr_error(void)
{
	opt.rnr_retry = 0;
	pair();
	expect(IBV_WR_SEND, sge(&L, 0, 64), 0, 0, IBV_WC_RNR_RETRY_EXC_ERR);
	unpair();
}

static void rnr_some(void)
{
	opt.rnr_retry = 3;
	opt.min_rnr = 10; /* 0.64 ms */
	pair();
	expect(IBV_WR_SEND, sge(&L, 0, 64), 0, 0, IBV_WC_RNR_RETRY_EXC_ERR);
	unpair();
}

static void rnr_waits(void)
{
	pair();
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
	MUST(none(L.cq), "a send without a receive completed");
	ZERO(recv_at(&R, 2, 0, 64));
	want(L.cq, 1, IBV_WC_SUCCESS);
	want(R.cq, 2, IBV_WC_SUCCESS);
	unpair();
}

static void rnr_write_imm(void)
{
	opt.rnr_retry = 0;
	pair();
	expect(IBV_WR_RDMA_WRITE_WITH_IMM, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_RNR_RETRY_EXC_ERR);
	unpair();
}

static void quick(void)
{
	opt.timeout = 10; /* 4 ms */
	opt.retry_cnt = 2;
}

static void retry_gone(void)
{
	quick();
	pair();
	ZERO(to_state(R.qp, IBV_QPS_RESET));
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_RETRY_EXC_ERR);
	unpair();
}

static void retry_error_state(void)
{
	quick();
	pair();
	ZERO(to_state(R.qp, IBV_QPS_ERR));
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_RETRY_EXC_ERR);
	unpair();
}

static void half(const union ibv_gid *dgid, uint32_t qpn, uint32_t psn)
{
	quick();
	side_open(&L, ALL);
	side_open(&R, ALL);
	L.qp = make_qp(&L);
	R.qp = make_qp(&R);
	ZERO(to_init(L.qp, ALL));
	ZERO(to_init(R.qp, ALL));
	ZERO(to_rtr(L.qp, qpn ? qpn : R.qp->qp_num, dgid, 7));
	ZERO(to_rtr(R.qp, L.qp->qp_num, &gid, 7));
	ZERO(to_rts(L.qp, psn));
	ZERO(to_rts(R.qp, 7));
}

static void wrong_qpn(void)
{
	half(&gid, 0xabcdef, 7);
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_RETRY_EXC_ERR);
	unpair();
}

static void wrong_psn(void)
{
	half(&gid, 0, 1007); /* ahead of what the responder expects */
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_RETRY_EXC_ERR);
	unpair();
}

static void not_connected_back(void)
{
	quick();
	side_open(&L, ALL);
	side_open(&R, ALL);
	L.qp = make_qp(&L);
	R.qp = make_qp(&R);
	ZERO(to_init(L.qp, ALL));
	ZERO(to_init(R.qp, ALL)); /* and stays there */
	ZERO(to_rtr(L.qp, R.qp->qp_num, &gid, 7));
	ZERO(to_rts(L.qp, 7));
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_RETRY_EXC_ERR);
	unpair();
}

/* A third queue pair writes to one that is connected with another. */
static void not_my_peer(void)
{
	quick();
	pair();
	struct ibv_qp *l = L.qp, *third = make_qp(&L);
	ZERO(to_init(third, ALL));
	ZERO(to_rtr(third, R.qp->qp_num, &gid, 7));
	ZERO(to_rts(third, 7));
	L.qp = third;
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	struct ibv_wc wc;
	bool done = wait_wc_for(L.cq, &wc, 5);
	say("%s", done ? st(wc.status) : "no completion");
	ZERO(ibv_destroy_qp(third));
	L.qp = l;
	unpair();
}

static void flushed(struct ibv_cq *cq, uint64_t first, int n)
{
	bool seen[20] = {false};
	for (int i = 0; i < n; i++) {
		struct ibv_wc wc = wait_wc(cq);
		MUST(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id - first < 20 && !seen[wc.wr_id - first], "%llu with %s",
		     (unsigned long long)wc.wr_id, st(wc.status));
		seen[wc.wr_id - first] = true;
	}
}

static void flush_receives(void)
{
	pair();
	for (uint64_t i = 0; i < 4; i++)
		ZERO(recv_at(&R, 10 + i, 0, 64));
	ZERO(to_state(R.qp, IBV_QPS_ERR));
	flushed(R.cq, 10, 4);
	unpair();
}

static void flush_receive_late(void)
{
	struct ibv_wc wc;
	pair();
	ZERO(to_state(R.qp, IBV_QPS_ERR));
	ZERO(recv_at(&R, 10, 0, 64));
	bool soon = wait_wc_for(R.cq, &wc, 2);
	MUST(!soon || wc.status == IBV_WC_WR_FLUSH_ERR, "%s", st(wc.status));
	say("%s", soon ? "flushed" : "stays");
	unpair();
}

static void flush_sends(void)
{
	pair();
	ZERO(post(&R, IBV_WR_SEND, 10, 0, 64, 0, 0)); /* nobody receives: it waits */
	ZERO(post_to(&R, IBV_WR_SEND, 11, sge(&R, 0, 64), 0, 0, 0)); /* unsignaled */
	ZERO(to_state(R.qp, IBV_QPS_ERR));
	flushed(R.cq, 10, 2);
	unpair();
}

static void flush_send_late(void)
{
	pair();
	ZERO(to_state(R.qp, IBV_QPS_ERR));
	ZERO(post(&R, IBV_WR_SEND, 10, 0, 64, 0, 0));
	flushed(R.cq, 10, 1);
	unpair();
}

static void post_states(void)
{
	side_open(&L, ALL);
	L.qp = make_qp(&L);
	struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	int e = send_wr(L.qp, &wr);
	say("reset: send %s, ", e ? errname(e) : "taken");
	e = recv_at(&L, 2, 0, 64);
	say("receive %s", e ? errname(e) : "taken");
	side_close(&L);
	side_open(&L, ALL);
	L.qp = make_qp(&L);
	ZERO(to_init(L.qp, ALL));
	e = send_wr(L.qp, &wr);
	say("; init: send %s, ", e ? errname(e) : "taken");
	ZERO(recv_at(&L, 2, 0, 64));
	say("receive taken");
	side_close(&L);
}

static void refuse_at_post(void)
{
	struct ibv_sge sg[65];
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	pair();
	ZERO(ibv_query_qp(L.qp, &a, IBV_QP_CAP, &i));
	MUST(i.cap.max_send_sge < 64 && i.cap.max_inline_data < 4096, "limits are larger than this check");
	for (int k = 0; k < 65; k++)
		sg[k] = sge(&L, 0, 1);
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = sg, .num_sge = (int)i.cap.max_send_sge + 1, .opcode = IBV_WR_SEND};
	int e = send_wr(L.qp, &wr);
	MUST(e, "one element too many was taken");
	say("sge %s", errname(e));
	e = post_to(&L, IBV_WR_SEND, 2, sge(&L, 0, i.cap.max_inline_data + 1), 0, 0, IBV_SEND_INLINE);
	MUST(e, "one inline byte too many was taken");
	say(", inline %s", errname(e));
	struct ibv_recv_wr *bad, rw = {.wr_id = 3, .sg_list = sg, .num_sge = (int)i.cap.max_recv_sge + 1};
	e = ibv_post_recv(R.qp, &rw, &bad);
	MUST(e && bad == &rw, "one element too many was taken by a receive");
	say(", receive %s", errname(e));
	unpair();
}

/* A queue takes what it was asked for, and at some point no more; bad_wr says where. */
static void queue_full(void)
{
	int n = 0, e = 0;
	opt.wr = 16;
	pair();
	while (n < 1000 && !(e = post(&L, IBV_WR_SEND, (uint64_t)n, 0, 4, 0, 0))) /* nobody receives: they wait */
		n++;
	MUST(n >= 16 && e, "the send queue took %d", n);
	say("send %s", errname(e));
	n = 0;
	while (n < 1000 && !(e = recv_at(&L, (uint64_t)n, 0, 4)))
		n++;
	MUST(n >= 16 && e, "the receive queue took %d", n);
	say(", receive %s", errname(e));
	unpair();
}

/* What is wrong with a request of a chain is said at post, or by its completion; those before it are executed. */
static void bad_opcode(void)
{
	pair();
	struct ibv_send_wr *bad = NULL, wr[2] = {{.wr_id = 1, .next = &wr[1], .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED},
						 {.wr_id = 2, .opcode = (enum ibv_wr_opcode)99, .send_flags = IBV_SEND_SIGNALED}};
	int e = ibv_post_send(L.qp, wr, &bad);
	MUST(!e || bad == &wr[1], "bad_wr is not the second");
	want(L.cq, 1, IBV_WC_SUCCESS);
	say("at post: %s", e ? errname(e) : "taken");
	unpair();
}

static int event_of(struct ibv_qp *qp)
{
	struct ibv_async_event ev;
	int found = -1;
	while (next_event(&ev, 0)) {
		if (ev.event_type != IBV_EVENT_COMM_EST && ev.element.qp == qp)
			found = (int)ev.event_type;
		ibv_ack_async_event(&ev);
	}
	return found;
}

const struct check checks_errors[] = {
	{"err-rkey", bad_rkey}, {"err-rkey-stale", stale_rkey}, {"err-bounds", bounds}, {"err-bounds-read", bounds_read},
	{"err-bounds-wrap", bounds_wrap}, {"err-write-right", no_write_right}, {"err-read-right", no_read_right},
	{"err-atomic-right", no_atomic_right}, {"err-qp-right", no_qp_right}, {"err-other-pd", other_pd}, {"err-lkey", bad_lkey},
	{"err-lkey-bounds", lkey_bounds}, {"err-lkey-other-pd", lkey_other_pd}, {"err-read-sink", read_sink}, {"err-recv-small", recv_small},
	{"err-recv-lkey", recv_lkey}, {"err-atomic-unaligned", atomic_unaligned}, {"err-rnr", rnr_error}, {"err-rnr-some", rnr_some},
	{"rnr-waits", rnr_waits}, {"err-rnr-write-imm", rnr_write_imm}, {"err-retry-gone", retry_gone},
	{"err-retry-error-state", retry_error_state}, {"err-wrong-qpn", wrong_qpn}, {"err-wrong-psn", wrong_psn},
	{"err-not-connected-back", not_connected_back}, {"err-not-my-peer", not_my_peer}, {"flush-receives", flush_receives}, {"flush-receive-late", flush_receive_late},
	{"flush-sends", flush_sends}, {"flush-send-late", flush_send_late}, {"post-states", post_states}, {"refuse-at-post", refuse_at_post},
	{"queue-full", queue_full}, {"bad-opcode", bad_opcode}, {NULL, NULL}};
