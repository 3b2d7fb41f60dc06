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

const struct check checks_windows[] = { {"mw-other-qp", other_qp, false}, {"mw-bad-binds", bad_binds, false}, {NULL, NULL, false}};
