/* Reliable connections, when all is well. */
#include "check.h"

static void same(size_t off_l, size_t off_r, size_t n)
{
	MUST(!memcmp(L.buf + off_l, R.buf + off_r, n), "the bytes differ");
}

static void zero_length(void)
{
	ZERO(recv_at(&R, 2, 0, 64));
	struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	ZERO(send_wr(L.qp, &wr));
	want(L.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.byte_len == 0, "%s, %u bytes", st(wc.status), wc.byte_len);
	wr.opcode = IBV_WR_RDMA_WRITE; /* neither address nor key mean anything */
	wr.wr_id = 3;
	ZERO(send_wr(L.qp, &wr));
	want(L.cq, 3, IBV_WC_SUCCESS);
}

/* A fenced write after a read must not overtake it; receives are taken in order; completions come in order. */
static void order(void)
{
	memset(R.buf, 'a', 60000);
	memset(L.buf + 100000, 'b', 60000);
	for (uint64_t i = 0; i < 8; i++)
		ZERO(recv_at(&R, 100 + i, 200000 + i * 64, 64));
	ZERO(post(&L, IBV_WR_RDMA_READ, 1, 0, 60000, 0, 0));
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 2, 100000, 60000, 0, IBV_SEND_FENCE));
	for (uint64_t i = 0; i < 8; i++) {
		L.buf[500000 + i] = (char)i;
		ZERO(post(&L, IBV_WR_SEND, 10 + i, 500000 + i, 1, 0, 0));
	}
	want(L.cq, 1, IBV_WC_SUCCESS);
	want(L.cq, 2, IBV_WC_SUCCESS);
	for (uint64_t i = 0; i < 8; i++)
		want(L.cq, 10 + i, IBV_WC_SUCCESS);
	for (uint64_t i = 0; i < 8; i++) {
		want(R.cq, 100 + i, IBV_WC_SUCCESS);
		MUST(R.buf[200000 + i * 64] == (char)i, "message %d came out of order", (int)i);
	}
	MUST(L.buf[0] == 'a' && L.buf[59999] == 'a', "the write overtook the read");
	MUST(R.buf[0] == 'b' && R.buf[59999] == 'b', "the write is not there");
}

static void megabyte(void)
{
	fill(L.buf, BUF, 8);
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, BUF, 0, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	same(0, 0, BUF);
}

static void uc(void)
{
	opt.type = IBV_QPT_UC;
	pair();
	fill(L.buf, 5000, 12);
	ZERO(post(&L, IBV_WR_SEND, 9, 0, 100, 0, 0)); /* nobody receives: it is lost, and that is all */
	want(L.cq, 9, IBV_WC_SUCCESS);
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 5000, 0, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	ZERO(recv_at(&R, 2, 10000, 5000));
	ZERO(post(&L, IBV_WR_SEND, 3, 0, 3000, 0, 0));
	want(L.cq, 3, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.wr_id == 2 && wc.byte_len == 3000, "%s, %u bytes", st(wc.status), wc.byte_len);
	same(0, 0, 5000);
	same(0, 10000, 3000);
	unpair();
}

const struct check checks_rc[] = { {"rc-zero-length", zero_length, true}, {"rc-order", order, true}, {"rc-megabyte", megabyte, true}, {"uc", uc, false}, {NULL, NULL, false}};
