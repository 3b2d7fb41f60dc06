/* Reliable connections, when all is well. */
#include "check.h"

static void same(size_t off_l, size_t off_r, size_t n)
{
	MUST(!memcmp(L.buf + off_l, R.buf + off_r, n), "the bytes differ");
}

static void send(void)
{
	pair();
	fill(L.buf, 5000, 1);
	ZERO(recv_at(&R, 2, 100, 8000));
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 5000, 0, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 2 && wc.byte_len == 5000 &&
	     wc.qp_num == R.qp->qp_num && !(wc.wc_flags & IBV_WC_WITH_IMM), "%s, opcode %d, %u bytes, flags %x", st(wc.status), wc.opcode,
	     wc.byte_len, wc.wc_flags);
	same(0, 100, 5000);
	unpair();
}

static void send_imm(void)
{
	pair();
	fill(L.buf, 64, 2);
	ZERO(recv_at(&R, 2, 0, 64));
	ZERO(post(&L, IBV_WR_SEND_WITH_IMM, 1, 0, 64, 0, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && (wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == 0x01020304, "%s, flags %x, imm %x",
	     st(wc.status), wc.wc_flags, wc.imm_data);
	same(0, 0, 64);
	unpair();
}

static void send_inline(void)
{
	char text[32] = "inline data needs no region";
	pair();
	ZERO(recv_at(&R, 2, 0, 64));
	struct ibv_sge sg = {(uintptr_t)text, sizeof(text), 0};
	ZERO(post_to(&L, IBV_WR_SEND, 1, sg, 0, 0, IBV_SEND_INLINE | IBV_SEND_SIGNALED));
	memset(text, 'x', sizeof(text)); /* it is copied already */
	want(L.cq, 1, IBV_WC_SUCCESS);
	want(R.cq, 2, IBV_WC_SUCCESS);
	MUST(!strcmp(R.buf, "inline data needs no region"), "it says \"%.30s\"", R.buf);
	unpair();
}

static void sge_lists(void)
{
	struct ibv_sge from[4], to[3];
	pair();
	fill(L.buf, 10000, 3);
	for (int i = 0; i < 4; i++)
		from[i] = sge(&L, (size_t)i * 2000, 1000 + (uint32_t)i * 7);
	to[0] = sge(&R, 0, 1);
	to[1] = sge(&R, 5000, 3000);
	to[2] = sge(&R, 20000, 3000);
	struct ibv_recv_wr *bad, rw = {.wr_id = 2, .sg_list = to, .num_sge = 3};
	ZERO(ibv_post_recv(R.qp, &rw, &bad));
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = from, .num_sge = 4, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	ZERO(send_wr(L.qp, &wr));
	want(L.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.byte_len == 4042, "%s, %u bytes", st(wc.status), wc.byte_len);
	char a[4042], b[4042];
	size_t n = 0;
	for (int i = 0; i < 4; n += from[i++].length)
		memcpy(a + n, (void *)(uintptr_t)from[i].addr, from[i].length);
	memcpy(b, R.buf, 1);
	memcpy(b + 1, R.buf + 5000, 3000);
	memcpy(b + 3001, R.buf + 20000, 1041);
	MUST(!memcmp(a, b, sizeof(a)), "the bytes differ");
	MUST(R.buf[20000 + 1041] == 0 && R.buf[1] == 0, "bytes beyond the message were written");
	unpair();
}

static void rdma_write(void)
{
	pair();
	fill(L.buf, 70000, 4);
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 70000, 11, 0));
	struct ibv_wc wc = wait_wc(L.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE && wc.wr_id == 1, "%s, opcode %d", st(wc.status), wc.opcode);
	same(0, 11, 70000);
	MUST(none(R.cq), "the responder saw a completion");
	unpair();
}

static void write_imm(void)
{
	pair();
	fill(L.buf, 3000, 5);
	struct ibv_recv_wr *bad, rw = {.wr_id = 2};
	ZERO(ibv_post_recv(R.qp, &rw, &bad)); /* no memory is needed for a notification */
	ZERO(post(&L, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 3000, 4096, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == 0x01020304 && wc.byte_len == 3000 &&
	     (wc.wc_flags & IBV_WC_WITH_IMM), "%s, opcode %d, %u bytes", st(wc.status), wc.opcode, wc.byte_len);
	same(0, 4096, 3000);
	unpair();
}

static void rdma_read(void)
{
	pair();
	fill(R.buf, 70000, 6);
	ZERO(post(&L, IBV_WR_RDMA_READ, 1, 5, 70000 - 9, 9, 0));
	struct ibv_wc wc = wait_wc(L.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 70000 - 9, "%s, opcode %d, %u bytes",
	     st(wc.status), wc.opcode, wc.byte_len);
	same(5, 9, 70000 - 9);
	unpair();
}

static void atomics(void)
{
	uint64_t *near, *far;
	if (dev_attr.atomic_cap == IBV_ATOMIC_NONE)
		absent(EOPNOTSUPP);
	pair();
	near = (uint64_t *)(void *)L.buf;
	far = (uint64_t *)(void *)R.buf;
	far[1] = 1000;
	ZERO(post(&L, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8, 8, 0));
	struct ibv_wc wc = wait_wc(L.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_FETCH_ADD && wc.byte_len == 8, "%s, opcode %d, %u bytes", st(wc.status),
	     wc.opcode, wc.byte_len);
	MUST(near[0] == 1000 && far[1] == 1005, "fetch and add: %llu, %llu", (unsigned long long)near[0], (unsigned long long)far[1]);
	ZERO(post(&L, IBV_WR_ATOMIC_CMP_AND_SWP, 2, 0, 8, 8, 0)); /* compares with 5: no */
	wc = wait_wc(L.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_COMP_SWAP, "%s, opcode %d", st(wc.status), wc.opcode);
	MUST(near[0] == 1005 && far[1] == 1005, "a failed compare and swap changed something");
	far[1] = 5;
	ZERO(post(&L, IBV_WR_ATOMIC_CMP_AND_SWP, 3, 0, 8, 8, 0));
	want(L.cq, 3, IBV_WC_SUCCESS);
	MUST(near[0] == 5 && far[1] == 77, "compare and swap: %llu, %llu", (unsigned long long)near[0], (unsigned long long)far[1]);
	unpair();
}

static void zero_length(void)
{
	pair();
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
	unpair();
}

static void chain(void)
{
	struct ibv_send_wr wr[32] = {0};
	struct ibv_sge sg[32];
	pair();
	fill(L.buf, 32 * 100, 7);
	for (int i = 0; i < 32; i++) {
		sg[i] = sge(&L, (size_t)i * 100, 100);
		wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i, .sg_list = &sg[i], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.next = i < 31 ? &wr[i + 1] : NULL, .send_flags = i == 31 ? IBV_SEND_SIGNALED : 0,
			.wr = {.rdma = {(uintptr_t)R.buf + (size_t)i * 100, R.mr->rkey}}};
	}
	ZERO(send_wr(L.qp, wr));
	want(L.cq, 31, IBV_WC_SUCCESS);
	MUST(none(L.cq), "an unsignaled request completed");
	same(0, 0, 3200);
	unpair();
}

/* Unsignaled requests give their slots back with the next signaled one: many rounds through a small queue. */
static void unsignaled(void)
{
	opt.wr = 8;
	pair();
	for (uint32_t i = 0; i < 200; i++) {
		size_t at = i % 4 * 4; /* what may still be under way is not touched */
		*(uint32_t *)(void *)(L.buf + at) = i;
		unsigned flags = i % 4 == 3 ? IBV_SEND_SIGNALED : 0;
		ZERO(post_to(&L, IBV_WR_RDMA_WRITE, i, sge(&L, at, 4), (uintptr_t)R.buf, R.mr->rkey, flags));
		if (flags)
			want(L.cq, i, IBV_WC_SUCCESS);
	}
	MUST(*(uint32_t *)(void *)R.buf == 199, "the last write is not the last");
	unpair();
}

static void sig_all(void)
{
	opt.sig_all = true;
	pair();
	ZERO(post_to(&L, IBV_WR_RDMA_WRITE, 1, sge(&L, 0, 4), (uintptr_t)R.buf, R.mr->rkey, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	unpair();
}

/* A fenced write after a read must not overtake it; receives are taken in order; completions come in order. */
static void order(void)
{
	pair();
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
	unpair();
}

static void megabyte(void)
{
	pair();
	fill(L.buf, BUF, 8);
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, BUF, 0, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	same(0, 0, BUF);
	unpair();
}

static void both_ways(void)
{
	pair();
	fill(L.buf, 1000, 9);
	fill(R.buf + 5000, 1000, 10);
	ZERO(recv_at(&L, 3, 2000, 1000));
	ZERO(recv_at(&R, 4, 2000, 1000));
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 1000, 0, 0));
	ZERO(post(&R, IBV_WR_SEND, 2, 5000, 1000, 0, 0));
	for (int i = 0; i < 2; i++) {
		struct ibv_wc a = wait_wc(L.cq), b = wait_wc(R.cq);
		MUST(a.status == IBV_WC_SUCCESS && b.status == IBV_WC_SUCCESS, "%s and %s", st(a.status), st(b.status));
	}
	same(0, 2000, 1000);
	same(2000, 5000, 1000);
	unpair();
}

static void reset_reuse(void)
{
	pair();
	ZERO(recv_at(&R, 5, 0, 64)); /* forgotten by the reset */
	for (int i = 0; i < 3; i++) {
		ZERO(to_state(L.qp, IBV_QPS_RESET));
		ZERO(to_state(R.qp, IBV_QPS_RESET));
		connect_qps(L.qp, R.qp);
		ZERO(recv_at(&R, 2, 0, 64));
		ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
		want(L.cq, 1, IBV_WC_SUCCESS);
		want(R.cq, 2, IBV_WC_SUCCESS);
	}
	unpair();
}

static void iova(void)
{
	pair();
	struct ibv_mr *mr = ibv_reg_mr_iova(R.pd, R.buf + 4096, 4096, 0x7000000000, ALL);
	if (!mr) {
		int err = errno;
		unpair();
		absent(err);
	}
	fill(L.buf, 100, 11);
	ZERO(post_to(&L, IBV_WR_RDMA_WRITE, 1, sge(&L, 0, 100), 0x7000000000 + 10, mr->rkey, IBV_SEND_SIGNALED));
	want(L.cq, 1, IBV_WC_SUCCESS);
	same(0, 4096 + 10, 100);
	ZERO(ibv_dereg_mr(mr));
	unpair();
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

static void uc_read(void)
{
	opt.type = IBV_QPT_UC;
	pair();
	R.buf[0] = 'r';
	int e = post(&L, IBV_WR_RDMA_READ, 4, 0, 100, 0, 0);
	if (!e)
		MUST(wait_wc(L.cq).status != IBV_WC_SUCCESS && L.buf[0] == 0, "a read on an unreliable connection");
	say("at post: %s", e ? errname(e) : "taken");
	unpair();
}

const struct check checks_rc[] = {
	{"rc-send", send}, {"rc-send-imm", send_imm}, {"rc-send-inline", send_inline}, {"rc-sge-lists", sge_lists}, {"rc-write", rdma_write},
	{"rc-write-imm", write_imm}, {"rc-read", rdma_read}, {"rc-atomics", atomics}, {"rc-zero-length", zero_length}, {"rc-chain", chain},
	{"rc-unsignaled", unsignaled}, {"rc-sig-all", sig_all}, {"rc-order", order}, {"rc-megabyte", megabyte}, {"rc-both-ways", both_ways},
	{"rc-reset-reuse", reset_reuse}, {"rc-iova", iova}, {"uc", uc}, {"uc-read", uc_read}, {NULL, NULL}};
