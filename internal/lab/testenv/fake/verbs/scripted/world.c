/* Ports, cables, modes, revocation, the report, threads. */
#include "scripted.h"

#include <pthread.h>
#include <stdio.h>

static void quick(void)
{
	opt.timeout = 8;
	opt.retry_cnt = 1;
}

static void cable(void)
{
	struct ibv_async_event ev;
	quick();
	pair();
	script("cable 0 cut");
	MUST(!next_event(&ev, 0), "somebody noticed");
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	want(L.cq, 1, IBV_WC_RETRY_EXC_ERR);
	counted("retries", 1);
	unpair();
	opt.timeout = 20; /* 4 s: mended before the first retry */
	pair();
	memset(L.buf, 'c', 64);
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	MUST(none(L.cq) && R.buf[0] == 0, "it came through a cut cable");
	script("cable 0 mend; timers instant");
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(R.buf[0] == 'c', "the bytes are not there");
	unpair();
}

static void two_devices(void)
{
	int n;
	struct ibv_device **list = PTR(ibv_get_device_list(&n));
	MUST(n == 2 && !list[2], "%d devices", n);
	struct ibv_context *near = ctx, *far = PTR(ibv_open_device(list[1]));
	ibv_free_device_list(list);
	union ibv_gid near_gid = gid, far_gid;
	ZERO(ibv_query_gid(far, 1, gid_index, &far_gid));
	side_open(&L, ALL);
	ctx = far;
	side_open(&R, ALL);
	R.qp = make_qp(&R);
	ctx = near;
	L.qp = make_qp(&L);
	ZERO(to_init(L.qp, ALL));
	ZERO(to_init(R.qp, ALL));
	ZERO(to_rtr(L.qp, R.qp->qp_num, &far_gid, 7));
	ZERO(to_rtr(R.qp, L.qp->qp_num, &near_gid, 7));
	ZERO(to_rts(L.qp, 7));
	memset(L.buf, '2', 64);
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(R.buf[0] == '2', "the bytes are not there");
	script("cable 0 cut; timers instant"); /* at the sender's end */
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 2, 0, 64, 0, 0));
	want(L.cq, 2, IBV_WC_RETRY_EXC_ERR);
	unpair();
	ZERO(ibv_close_device(far));
}

static void pump(void)
{
	script("mode pump");
	pair();
	memset(L.buf, 'p', 64);
	for (uint64_t i = 0; i < 3; i++)
		ZERO(post(&L, IBV_WR_RDMA_WRITE, i, 0, 64, i * 64, 0));
	MUST(none(L.cq) && R.buf[0] == 0, "something happened by itself");
	L.buf[0] = 'q'; /* too early: what is sent is what is there when it is sent */
	MUST(penstock_fake_pump(2) == 2, "two were not pumped");
	MUST(R.buf[0] == 'q' && R.buf[64] == 'q' && R.buf[128] == 0, "not exactly two were executed");
	want(L.cq, 0, IBV_WC_SUCCESS);
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(none(L.cq), "a third completion");
	MUST(penstock_fake_pump(100) == 1 && penstock_fake_pump(100) == 0, "not one was left");
	want(L.cq, 2, IBV_WC_SUCCESS);
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 9, 0, 64, 0, 0));
	script("mode post"); /* what was left behind goes on */
	want(L.cq, 9, IBV_WC_SUCCESS);
	unpair();
}

/* Writes that are under way when a window is invalidated, or the queue pair stopped, do not land afterwards. */
static void revoked(void)
{
	for (int how = 0; how < 3; how++) {
		script("reset");
		pair();
		struct ibv_mr *mr = PTR(ibv_reg_mr(R.pd, R.buf, BUF, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
		struct ibv_mw *mw = PTR(ibv_alloc_mw(R.pd, IBV_MW_TYPE_2));
		uint32_t key = ibv_inc_rkey(mw->rkey);
		struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
			.bind_mw = {mw, key, {mr, (uintptr_t)R.buf, 4096, IBV_ACCESS_REMOTE_WRITE}}};
		ZERO(send_wr(R.qp, &wr));
		want(R.cq, 1, IBV_WC_SUCCESS);
		script("mode pump");
		memset(L.buf, 'z', 64);
		for (uint64_t i = 0; i < 3; i++)
			ZERO(post_to(&L, IBV_WR_RDMA_WRITE, 10 + i, sge(&L, 0, 64), (uintptr_t)R.buf + i * 64, key, IBV_SEND_SIGNALED));
		MUST(penstock_fake_pump(1) == 1 && R.buf[0] == 'z', "the first did not land");
		if (how == 0) {
			ZERO(ibv_dealloc_mw(mw));
			mw = NULL;
		} else if (how == 1) {
			ZERO(to_state(R.qp, IBV_QPS_ERR));
		} else {
			ZERO(ibv_destroy_qp(R.qp)); /* and its windows are free: the region could go */
			R.qp = NULL;
			ZERO(ibv_dereg_mr(mr));
			mr = NULL;
		}
		penstock_fake_pump(100);
		MUST(R.buf[64] == 0 && R.buf[128] == 0, "a write landed after revocation %d", how);
		want(L.cq, 10, IBV_WC_SUCCESS);
		want(L.cq, 11, how == 0 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_RETRY_EXC_ERR);
		want(L.cq, 12, IBV_WC_WR_FLUSH_ERR);
		if (mw)
			ZERO(ibv_dealloc_mw(mw));
		if (mr)
			ZERO(ibv_dereg_mr(mr));
		unpair();
	}
}

static void infinite_rnr_instant(void)
{
	script("timers instant");
	pair();
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0)); /* rnr_retry 7: for ever, and post_send returns */
	MUST(none(L.cq), "it completed");
	ZERO(recv_at(&R, 2, 0, 64));
	want(L.cq, 1, IBV_WC_SUCCESS);
	unpair();
}

static void report(void)
{
	struct ibv_wc wc;
	const char *r = penstock_fake_report();
	MUST(!strcmp(r, "leak context #1 of fake0\n"), "at first: %s", r);
	pair();
	reports("leak qp #");
	struct ibv_mr *mr = PTR(ibv_reg_mr(L.pd, L.buf, 4096, ALL));
	ZERO(ibv_dereg_mr(mr));
	MUST(ibv_dereg_mr(mr), "destroyed twice");
	reports("violation ibv_dereg_mr: mr #");
	struct ibv_qp *qp = L.qp;
	ZERO(ibv_destroy_qp(qp));
	L.qp = make_qp(&L);
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND};
	MUST(send_wr(qp, &wr) == EINVAL, "posted to a queue pair that is gone");
	reports("was destroyed before");
	MUST(ibv_poll_cq((struct ibv_cq *)(void *)L.pd, 1, &wc) < 0, "polled a domain");
	reports("is not a cq");
	MUST(ibv_destroy_ah(NULL) == EINVAL, "destroyed nothing");
	reports("the ah is NULL");
	MUST(send_wr(L.qp, &wr) == EINVAL, "posted in RESET");
	reports("violation ibv_post_send: qp 0x");
	MUST(ibv_close_device(ctx) == EBUSY, "closed a device in use");
	reports("objects of fake0 are not destroyed");
	unpair();
	reports("leak context");
}

static void unacked(void)
{
	struct ibv_cq *cq;
	void *user;
	pair();
	ZERO(ibv_req_notify_cq(L.cq, 0));
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	ZERO(ibv_get_cq_event(L.ch, &cq, &user));
	ZERO(ibv_destroy_qp(L.qp));
	L.qp = NULL;
	MUST(ibv_destroy_cq(L.cq) == EBUSY, "destroyed with an event that is not acknowledged");
	reports("1 events were delivered and never acknowledged");
	ibv_ack_cq_events(cq, 1);
	unpair();
}

static void counts(void)
{
	script("reset");
	for (uint64_t i = 0; i < 5; i++)
		ZERO(post(&L, IBV_WR_RDMA_WRITE, i, 0, 100, 0, 0));
	for (uint64_t i = 0; i < 5; i++)
		want(L.cq, i, IBV_WC_SUCCESS);
	counted("ibv_post_send", 5);
	counted("ibv_poll_cq", 5);
	counted("send_requests", 5);
	counted("completions", 5);
	counted("bytes", 500);
	counted("nothing", UINT64_MAX);
}

/* ---- threads: four pairs at once, one channel, the wire between */

/* Opening and closing the last device starts and ends the thread behind it. */
static void reopen(void)
{
	int n;
	for (int i = 0; i < 50; i++) {
		struct ibv_device **list = PTR(ibv_get_device_list(&n));
		struct ibv_context *c = PTR(ibv_open_device(list[0]));
		ibv_free_device_list(list);
		ZERO(ibv_close_device(c));
	}
}

const struct check checks_world[] = { {"cable", cable, false}, {"two-devices", two_devices, false},
	{"pump", pump, false}, {"revoked", revoked, false}, {"rnr-instant", infinite_rnr_instant, false}, {"report", report, false}, {"unacked", unacked, false},
	{"counts", counts, true}, {"bare-reopen", reopen, false}, {NULL, NULL, false}};
