/* What goes wrong on a reliable connection, and with which status. */
#include "check.h"

#include <sched.h>
#include <time.h>

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

static void stale_rkey(void)
{
	uint32_t key = R.mr->rkey;
	ZERO(ibv_dereg_mr(R.mr));
	R.mr = PTR(ibv_reg_mr(R.pd, R.buf, BUF, ALL));
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, key, IBV_WC_REM_ACCESS_ERR);
}

static void no_atomic_right(void)
{
	opt.mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	pair();
	expect(IBV_WR_ATOMIC_FETCH_AND_ADD, sge(&L, 0, 8), (uintptr_t)R.buf, R.mr->rkey, IBV_WC_REM_ACCESS_ERR);
	unpair();
}

static void other_pd(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	struct ibv_mr *mr = PTR(ibv_reg_mr(pd, R.buf, BUF, ALL));
	expect(IBV_WR_RDMA_WRITE, sge(&L, 0, 64), (uintptr_t)R.buf, mr->rkey, IBV_WC_REM_ACCESS_ERR);
	ZERO(ibv_dereg_mr(mr));
	ZERO(ibv_dealloc_pd(pd));
}

static void read_sink(void)
{
	struct ibv_mr *mr = PTR(ibv_reg_mr(L.pd, L.buf, 4096, 0));
	struct ibv_sge s = {(uintptr_t)L.buf, 64, mr->lkey};
	expect(IBV_WR_RDMA_READ, s, (uintptr_t)R.buf, R.mr->rkey, IBV_WC_LOC_PROT_ERR);
	ZERO(ibv_dereg_mr(mr));
}

static void recv_lkey(void)
{
	struct ibv_sge s = {(uintptr_t)R.buf, 64, R.mr->lkey + 0x1000};
	struct ibv_recv_wr *bad, rw = {.wr_id = 5, .sg_list = &s, .num_sge = 1};
	ZERO(ibv_post_recv(R.qp, &rw, &bad));
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
	struct ibv_wc l = wait_wc(L.cq), r = wait_wc(R.cq);
	MUST(l.status != IBV_WC_SUCCESS && r.status != IBV_WC_SUCCESS, "%s and %s", st(l.status), st(r.status));
	say("%s, receiver %s", st(l.status), st(r.status));
}

static void atomic_unaligned(void)
{
	int e = post_to(&L, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, sge(&L, 0, 8), (uintptr_t)R.buf + 4, R.mr->rkey, IBV_SEND_SIGNALED);
	if (e) {
		say("at post: %s", errname(e));
	} else {
		struct ibv_wc wc = wait_wc(L.cq);
		MUST(wc.status != IBV_WC_SUCCESS, "an unaligned atomic succeeded");
		say("%s", st(wc.status));
	}
}

static void rnr_some(void)
{
	opt.rnr_retry = 3;
	opt.min_rnr = 10; /* 0.64 ms */
	pair();
	expect(IBV_WR_SEND, sge(&L, 0, 64), 0, 0, IBV_WC_RNR_RETRY_EXC_ERR);
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

static void flush_receive_late(void)
{
	struct ibv_wc wc;
	ZERO(to_state(R.qp, IBV_QPS_ERR));
	ZERO(recv_at(&R, 10, 0, 64));
	bool soon = wait_wc_for(R.cq, &wc, 2);
	MUST(!soon || wc.status == IBV_WC_WR_FLUSH_ERR, "%s", st(wc.status));
	say("%s", soon ? "flushed" : "stays");
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
	struct ibv_send_wr *bad = NULL, wr[2] = {{.wr_id = 1, .next = &wr[1], .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED},
						 {.wr_id = 2, .opcode = (enum ibv_wr_opcode)99, .send_flags = IBV_SEND_SIGNALED}};
	int e = ibv_post_send(L.qp, wr, &bad);
	MUST(!e || bad == &wr[1], "bad_wr is not the second");
	want(L.cq, 1, IBV_WC_SUCCESS);
	say("at post: %s", e ? errname(e) : "taken");
}

const struct check checks_errors[] = { {"err-rkey-stale", stale_rkey, true},
	{"err-atomic-right", no_atomic_right, false}, {"err-other-pd", other_pd, true}, {"err-read-sink", read_sink, true},
	{"err-recv-lkey", recv_lkey, true}, {"err-atomic-unaligned", atomic_unaligned, true}, {"err-rnr-some", rnr_some, false}, {"err-rnr-write-imm", rnr_write_imm, false},
	{"err-retry-error-state", retry_error_state, false}, {"err-wrong-qpn", wrong_qpn, false}, {"err-wrong-psn", wrong_psn, false},
	{"err-not-connected-back", not_connected_back, false}, {"err-not-my-peer", not_my_peer, false}, {"flush-receive-late", flush_receive_late, true}, {"post-states", post_states, false}, {"refuse-at-post", refuse_at_post, true},
	{"queue-full", queue_full, false}, {"bad-opcode", bad_opcode, true}, {NULL, NULL, false}};
