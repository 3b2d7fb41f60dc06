/* Memory windows, of type 1 (ibv_bind_mw) and 2B (bound and invalidated by requests), and extended connections. */
#include "check.h"

static struct ibv_mw *mw;
static struct ibv_mr *mr; /* of R, that windows may be bound to */

static void open_window(enum ibv_mw_type type)
{
	pair();
	mr = PTR(ibv_reg_mr(R.pd, R.buf, BUF, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
	mw = ibv_alloc_mw(R.pd, type);
	if (!mw) {
		int err = errno;
		ZERO(ibv_dereg_mr(mr));
		unpair();
		absent(err);
	}
}

static void close_window(void)
{
	if (mw)
		ZERO(ibv_dealloc_mw(mw));
	ZERO(ibv_dereg_mr(mr));
	unpair();
}

static struct ibv_mw_bind_info part(unsigned access)
{
	return (struct ibv_mw_bind_info){.mr = mr, .addr = (uintptr_t)R.buf + 4096, .length = 4096, .mw_access_flags = access};
}

static int bind2(uint32_t key, struct ibv_mw_bind_info info)
{
	struct ibv_send_wr wr = {.wr_id = 50, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {.mw = mw, .rkey = key, .bind_info = info}};
	return send_wr(R.qp, &wr);
}

static int write_at(uint64_t id, size_t off, uint32_t len, uint32_t key)
{
	return post_to(&L, IBV_WR_RDMA_WRITE, id, sge(&L, 0, len), (uintptr_t)R.buf + off, key, IBV_SEND_SIGNALED);
}

static void again(void)
{
	ZERO(to_state(L.qp, IBV_QPS_RESET));
	ZERO(to_state(R.qp, IBV_QPS_RESET));
	struct ibv_wc wc;
	while (ibv_poll_cq(R.cq, 1, &wc) == 1 || ibv_poll_cq(L.cq, 1, &wc) == 1)
		;
	connect_qps(L.qp, R.qp);
}

static void type1(void)
{
	open_window(IBV_MW_TYPE_1);
	uint32_t before = mw->rkey;
	struct ibv_mw_bind b = {.wr_id = 50, .send_flags = IBV_SEND_SIGNALED, .bind_info = part(IBV_ACCESS_REMOTE_WRITE)};
	ZERO(ibv_bind_mw(R.qp, mw, &b));
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 50, "bind: %s", st(wc.status));
	MUST(mw->rkey != before, "the key is the old one");
	fill(L.buf, 4096, 1);
	ZERO(write_at(1, 4096, 4096, mw->rkey));
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(!memcmp(L.buf, R.buf + 4096, 4096), "the bytes differ");
	close_window();
}

static void type2(void)
{
	open_window(IBV_MW_TYPE_2);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	ZERO(bind2(key, part(IBV_ACCESS_REMOTE_WRITE)));
	want(R.cq, 50, IBV_WC_SUCCESS);
	fill(L.buf, 4096, 2);
	ZERO(write_at(1, 4096, 4096, key));
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(!memcmp(L.buf, R.buf + 4096, 4096), "the bytes differ");
	/* Invalidated, it is dead. */
	struct ibv_send_wr wr = {.wr_id = 51, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key};
	ZERO(send_wr(R.qp, &wr));
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_LOCAL_INV, "invalidate: %s", st(wc.status));
	memset(R.buf + 4096, 'q', 64);
	ZERO(write_at(2, 4096, 64, key));
	want(L.cq, 2, IBV_WC_REM_ACCESS_ERR);
	MUST(R.buf[4096] == 'q', "a write landed after the window was invalidated");
	close_window();
}

static void outside(void)
{
	open_window(IBV_MW_TYPE_2);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	ZERO(bind2(key, part(IBV_ACCESS_REMOTE_WRITE)));
	want(R.cq, 50, IBV_WC_SUCCESS);
	fill(L.buf, 16, 3);
	ZERO(write_at(1, 4095, 2, key));
	struct ibv_wc wc = wait_wc(L.cq);
	say("%s, %s", st(wc.status), R.buf[4095] ? "written" : "untouched");
	close_window();
}

static void rights(void)
{
	open_window(IBV_MW_TYPE_2);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	ZERO(bind2(key, part(IBV_ACCESS_REMOTE_READ)));
	want(R.cq, 50, IBV_WC_SUCCESS);
	ZERO(post_to(&L, IBV_WR_RDMA_READ, 1, sge(&L, 0, 64), (uintptr_t)R.buf + 4096, key, IBV_SEND_SIGNALED));
	want(L.cq, 1, IBV_WC_SUCCESS);
	ZERO(write_at(2, 4096, 2, key));
	want(L.cq, 2, IBV_WC_REM_ACCESS_ERR);
	close_window();
}

/* A window of type 2B works only through the queue pair that bound it. */
static void other_qp(void)
{
	open_window(IBV_MW_TYPE_2);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	ZERO(bind2(key, part(IBV_ACCESS_REMOTE_WRITE)));
	want(R.cq, 50, IBV_WC_SUCCESS);
	struct ibv_qp *l1 = L.qp, *l2 = make_qp(&L), *r2 = make_qp(&R);
	connect_qps(l2, r2);
	L.qp = l2;
	ZERO(write_at(1, 4096, 64, key));
	struct ibv_wc wc = wait_wc(L.cq);
	say("%s", st(wc.status));
	ZERO(ibv_destroy_qp(l2));
	ZERO(ibv_destroy_qp(r2));
	L.qp = l1;
	close_window();
}

static void send_inv(void)
{
	open_window(IBV_MW_TYPE_2);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	ZERO(bind2(key, part(IBV_ACCESS_REMOTE_WRITE)));
	want(R.cq, 50, IBV_WC_SUCCESS);
	ZERO(recv_at(&R, 60, 0, 64));
	struct ibv_sge sg = sge(&L, 0, 8);
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV,
		.send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key};
	ZERO(send_wr(L.qp, &wr));
	want(L.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.wr_id == 60, "receive: %s", st(wc.status));
	say("flag %s", (wc.wc_flags & IBV_WC_WITH_INV) && wc.invalidated_rkey == key ? "set" : "not set");
	ZERO(write_at(2, 4096, 64, key));
	want(L.cq, 2, IBV_WC_REM_ACCESS_ERR);
	close_window();
}

static void bad_binds(void)
{
	struct ibv_wc wc;
	open_window(IBV_MW_TYPE_2);
	struct ibv_mr *plain = PTR(ibv_reg_mr(R.pd, R.buf, BUF, ALL));
	for (int i = 0; i < 4; i++) {
		struct ibv_mw_bind_info info = part(IBV_ACCESS_REMOTE_WRITE);
		uint32_t key = ibv_inc_rkey(mw->rkey);
		if (i == 0)
			info.mr = plain; /* without the right to bind */
		else if (i == 1)
			info.length = BUF;
		else if (i == 2)
			key += 0x100; /* of another window */
		else
			key = mw->rkey; /* not new */
		int e = bind2(key, info);
		if (e) {
			say("%s%s at post", i ? ", " : "", errname(e));
		} else {
			wc = wait_wc(R.cq);
			say("%s%s", i ? ", " : "", st(wc.status));
		}
		again();
	}
	ZERO(ibv_dereg_mr(plain));
	close_window();
}

static void bound_busy(void)
{
	open_window(IBV_MW_TYPE_2);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	ZERO(bind2(key, part(IBV_ACCESS_REMOTE_WRITE)));
	want(R.cq, 50, IBV_WC_SUCCESS);
	int e = ibv_dereg_mr(mr);
	MUST(e, "a region with a bound window was deregistered");
	say("%s", errname(e));
	ZERO(ibv_dealloc_mw(mw)); /* a bound window may go */
	mw = NULL;
	ZERO(write_at(1, 4096, 64, key));
	want(L.cq, 1, IBV_WC_REM_ACCESS_ERR);
	close_window();
}

/* One XRC SRQ behind a target queue pair. */
static void xrc(void)
{
	struct ibv_xrcd_init_attr xa = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = 0100 /* O_CREAT */};
	struct ibv_xrcd *x = ibv_open_xrcd(ctx, &xa);
	if (!x)
		absent(errno);
	side_open(&L, ALL);
	side_open(&R, ALL);
	struct ibv_srq_init_attr_ex sa = {.attr = {.max_wr = 16, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = R.pd, .xrcd = x, .cq = R.cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ};
	R.srq = PTR(ibv_create_srq_ex(ctx, &sa));
	uint32_t number;
	ZERO(ibv_get_srq_num(R.srq, &number));
	struct ibv_qp_init_attr_ex ra = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = x};
	R.qp = PTR(ibv_create_qp_ex(ctx, &ra));
	struct ibv_qp_init_attr_ex la = {.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = L.pd, .send_cq = L.cq,
		.cap = {.max_send_wr = 16, .max_send_sge = 1}};
	L.qp = PTR(ibv_create_qp_ex(ctx, &la));
	ZERO(to_init(L.qp, ALL));
	ZERO(to_init(R.qp, ALL));
	ZERO(to_rtr(L.qp, R.qp->qp_num, &gid, 7));
	ZERO(to_rtr(R.qp, L.qp->qp_num, &gid, 7));
	ZERO(to_rts(L.qp, 7));
	ZERO(recv_at(&R, 2, 0, 64));
	fill(L.buf, 64, 1);
	struct ibv_sge sg = sge(&L, 0, 64);
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.qp_type = {.xrc = {number}}};
	ZERO(send_wr(L.qp, &wr));
	want(L.cq, 1, IBV_WC_SUCCESS);
	want(R.cq, 2, IBV_WC_SUCCESS);
	MUST(!memcmp(L.buf, R.buf, 64), "the bytes differ");
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr_id = 3;
	wr.wr.rdma.remote_addr = (uintptr_t)R.buf + 4096;
	wr.wr.rdma.rkey = R.mr->rkey;
	ZERO(send_wr(L.qp, &wr));
	want(L.cq, 3, IBV_WC_SUCCESS);
	MUST(!memcmp(L.buf, R.buf + 4096, 64), "the bytes of the write differ");
	MUST(ibv_close_xrcd(x), "a domain in use was closed");
	unpair();
	ZERO(ibv_close_xrcd(x));
}

const struct check checks_windows[] = {
	{"mw-type1", type1}, {"mw-type2", type2}, {"mw-outside", outside}, {"mw-rights", rights}, {"mw-other-qp", other_qp},
	{"mw-send-inv", send_inv}, {"mw-bad-binds", bad_binds}, {"mw-bound-busy", bound_busy}, {"xrc", xrc}, {NULL, NULL}};
