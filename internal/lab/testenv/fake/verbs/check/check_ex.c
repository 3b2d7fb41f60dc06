/* The extended interfaces: ibv_cq_ex and ibv_wr_*. */
#include "check.h"

#include <sched.h>
#include <time.h>

static struct ibv_cq_ex *cqx;

static void start(enum ibv_qp_type type)
{
	struct ibv_cq_init_attr_ex ca = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS};
	opt.type = type;
	side_open(&L, ALL);
	side_open(&R, ALL);
	cqx = ibv_create_cq_ex(ctx, &ca);
	if (!cqx)
		absent(errno);
	struct ibv_qp_init_attr_ex qa = {.qp_type = type, .send_cq = ibv_cq_ex_to_cq(cqx), .recv_cq = L.cq, .pd = L.pd,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = type == IBV_QPT_UD ? IBV_QP_EX_WITH_SEND : IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
			IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM};
	L.qp = ibv_create_qp_ex(ctx, &qa);
	if (!L.qp)
		absent(errno);
	R.qp = make_qp(&R);
	connect_qps(L.qp, R.qp);
}

static void stop(void)
{
	ZERO(ibv_destroy_qp(L.qp));
	L.qp = NULL;
	ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(cqx)));
	unpair();
}

static void poll_some(int n, uint64_t id)
{
	struct ibv_poll_cq_attr pa = {0};
	time_t until = time(NULL) + 60;
	while (n > 0) {
		int e = ibv_start_poll(cqx, &pa);
		if (e == ENOENT) {
			MUST(time(NULL) < until, "no completion within 60 s");
			sched_yield();
			continue;
		}
		ZERO(e);
		do {
			MUST(cqx->status == IBV_WC_SUCCESS && cqx->wr_id == id, "%s, %llu expected %llu", st((int)cqx->status),
			     (unsigned long long)cqx->wr_id, (unsigned long long)id);
			MUST(ibv_wc_read_qp_num(cqx) == L.qp->qp_num, "of another queue pair");
			id++;
			n--;
		} while (n > 0 && (e = ibv_next_poll(cqx)) == 0);
		ibv_end_poll(cqx);
	}
}

static void rc(void)
{
	uint64_t *far, *near;
	start(IBV_QPT_RC);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(L.qp);
	MUST(q && !ibv_qp_to_qp_ex(R.qp), "ibv_qp_to_qp_ex");
	fill(L.buf, 1000, 1);
	ZERO(recv_at(&R, 1, 4096, 4096));
	ZERO(recv_at(&R, 2, 8192, 4096));
	ibv_wr_start(q);
	q->wr_flags = IBV_SEND_SIGNALED;
	q->wr_id = 10;
	ibv_wr_rdma_write(q, R.mr->rkey, (uintptr_t)R.buf);
	ibv_wr_set_sge(q, L.mr->lkey, (uintptr_t)L.buf, 1000);
	q->wr_id = 11;
	ibv_wr_send(q);
	struct ibv_sge two[2] = {sge(&L, 0, 10), sge(&L, 20, 10)};
	ibv_wr_set_sge_list(q, 2, two);
	q->wr_id = 12;
	q->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE; /* Soft-RoCE wants to be told */
	ibv_wr_send_imm(q, 0x01020304);
	ibv_wr_set_inline_data(q, L.buf, 16);
	q->wr_id = 13;
	q->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_fetch_add(q, R.mr->rkey, (uintptr_t)R.buf + 65536, 42);
	ibv_wr_set_sge(q, L.mr->lkey, (uintptr_t)L.buf + 65536, 8);
	q->wr_id = 14;
	ibv_wr_rdma_read(q, R.mr->rkey, (uintptr_t)R.buf + 65536);
	ibv_wr_set_sge(q, L.mr->lkey, (uintptr_t)L.buf + 65544, 8);
	ZERO(ibv_wr_complete(q));
	poll_some(5, 10);
	near = (uint64_t *)(void *)(L.buf + 65536);
	far = (uint64_t *)(void *)(R.buf + 65536);
	MUST(!memcmp(L.buf, R.buf, 1000), "write: the bytes differ");
	MUST(!memcmp(L.buf, R.buf + 4096, 10) && !memcmp(L.buf + 20, R.buf + 4106, 10), "send: the bytes differ");
	MUST(!memcmp(L.buf, R.buf + 8192, 16), "inline: the bytes differ");
	MUST(far[0] == 42 && near[0] == 0 && near[1] == 42, "atomic and read: %d %d %d", (int)far[0], (int)near[0], (int)near[1]);
	want(R.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.byte_len == 16 && wc.imm_data == 0x01020304, "%s, %u bytes", st(wc.status), wc.byte_len);
	stop();
}

static void abort_batch(void)
{
	start(IBV_QPT_RC);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(L.qp);
	memset(L.buf, 'n', 8);
	ibv_wr_start(q);
	q->wr_flags = IBV_SEND_SIGNALED;
	q->wr_id = 1;
	ibv_wr_rdma_write(q, R.mr->rkey, (uintptr_t)R.buf);
	ibv_wr_set_sge(q, L.mr->lkey, (uintptr_t)L.buf, 8);
	ibv_wr_abort(q);
	ibv_wr_start(q);
	q->wr_id = 2;
	ibv_wr_rdma_write(q, R.mr->rkey, (uintptr_t)R.buf + 64);
	ibv_wr_set_sge(q, L.mr->lkey, (uintptr_t)L.buf, 8);
	ZERO(ibv_wr_complete(q));
	poll_some(1, 2);
	MUST(R.buf[0] == 0 && R.buf[64] == 'n', "an aborted request was executed");
	stop();
}

static void ud(void)
{
	start(IBV_QPT_UD);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(L.qp);
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}};
	struct ibv_ah *ah = PTR(ibv_create_ah(L.pd, &a));
	ZERO(recv_at(&R, 1, 0, 100));
	memset(L.buf, 'u', 20);
	ibv_wr_start(q);
	q->wr_flags = IBV_SEND_SIGNALED;
	q->wr_id = 5;
	ibv_wr_send(q);
	ibv_wr_set_ud_addr(q, ah, R.qp->qp_num, 0x11111111);
	ibv_wr_set_sge(q, L.mr->lkey, (uintptr_t)L.buf, 20);
	ZERO(ibv_wr_complete(q));
	poll_some(1, 5);
	want(R.cq, 1, IBV_WC_SUCCESS);
	MUST(R.buf[40] == 'u', "the bytes differ");
	ZERO(ibv_destroy_ah(ah));
	stop();
}

const struct check checks_ex[] = {{"ex-rc", rc}, {"ex-abort", abort_batch}, {"ex-ud", ud}, {NULL, NULL}};
