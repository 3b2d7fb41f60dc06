/* Datagrams: address handles, the route header, and everything that is dropped without a word. */
#include "check.h"

static struct ibv_ah *ah;

static void ud_pair(void)
{
	opt.type = IBV_QPT_UD;
	pair();
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}};
	ah = PTR(ibv_create_ah(L.pd, &a));
}

static void ud_done(void)
{
	ZERO(ibv_destroy_ah(ah));
	unpair();
}

static int say_to(uint64_t id, uint32_t len, uint32_t qpn, uint32_t qkey, enum ibv_wr_opcode op)
{
	struct ibv_sge sg = sge(&L, 0, len);
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sg, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED,
		.imm_data = 0x01020304, .wr = {.ud = {ah, qpn, qkey}}};
	return send_wr(L.qp, &wr);
}

static int hello(uint64_t id, uint32_t len) { return say_to(id, len, R.qp->qp_num, 0x11111111, IBV_WR_SEND); }

static void send(void)
{
	static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	ud_pair();
	fill(L.buf, 500, 1);
	ZERO(recv_at(&R, 2, 0, 600));
	ZERO(hello(1, 500));
	want(L.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 540 && (wc.wc_flags & IBV_WC_GRH) &&
	     wc.src_qp == L.qp->qp_num, "%s, %u bytes, flags %x, from 0x%x", st(wc.status), wc.byte_len, wc.wc_flags, wc.src_qp);
	MUST(!memcmp(L.buf, R.buf + 40, 500), "the bytes differ");
	const uint8_t *h = (const uint8_t *)R.buf;
	if (!memcmp(gid.raw, mapped, 12)) {
		MUST(h[20] == 0x45 && h[29] == 17, "no IPv4 header at 20");
		MUST(!memcmp(h + 32, gid.raw + 12, 4) && !memcmp(h + 36, gid.raw + 12, 4), "the addresses in the IPv4 header are others");
		say("IPv4 header");
	} else {
		MUST(h[0] >> 4 == 6 && !memcmp(h + 8, gid.raw, 16) && !memcmp(h + 24, gid.raw, 16), "the route header is wrong");
		say("GRH");
	}
	ud_done();
}

static void imm(void)
{
	ud_pair();
	ZERO(recv_at(&R, 2, 0, 600));
	ZERO(say_to(1, 10, R.qp->qp_num, 0x11111111, IBV_WR_SEND_WITH_IMM));
	want(L.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && (wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == 0x01020304, "%s, flags %x", st(wc.status),
	     wc.wc_flags);
	ud_done();
}

/* The first datagram must vanish; the second shows that the queue pair lives and that no receive was used up. */
static void then_one(void)
{
	ZERO(recv_at(&R, 20, 0, 600));
	L.buf[0] = 'z';
	ZERO(hello(21, 1));
	want(L.cq, 21, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS && wc.wr_id == 20 && R.buf[40] == 'z', "after the drop: %llu with %s", (unsigned long long)wc.wr_id,
	     st(wc.status));
}

static void no_receive(void)
{
	ud_pair();
	ZERO(hello(1, 10));
	want(L.cq, 1, IBV_WC_SUCCESS);
	then_one();
	ud_done();
}

/* A receive is there; what must be dropped must not use it up. */
static void not_for(uint32_t qpn, uint32_t qkey)
{
	ud_pair();
	ZERO(recv_at(&R, 2, 0, 600));
	L.buf[0] = 'x';
	ZERO(say_to(1, 10, qpn ? qpn : R.qp->qp_num, qkey, IBV_WR_SEND));
	want(L.cq, 1, IBV_WC_SUCCESS);
	L.buf[1000] = 'z';
	struct ibv_sge sg = sge(&L, 1000, 1);
	struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr = {.ud = {ah, R.qp->qp_num, 0x11111111}}};
	ZERO(send_wr(L.qp, &wr));
	want(L.cq, 3, IBV_WC_SUCCESS);
	want(R.cq, 2, IBV_WC_SUCCESS);
	MUST(R.buf[40] == 'z', "it was delivered");
	ud_done();
}

static void wrong_qkey(void) { not_for(0, 0x2222); }
static void wrong_qpn(void) { not_for(0xabcdef, 0x11111111); }

static void own_qkey(void)
{
	ud_pair(); /* the highest bit asks for the sender's own key */
	ZERO(say_to(1, 10, R.qp->qp_num, 0x80000000, IBV_WR_SEND));
	want(L.cq, 1, IBV_WC_SUCCESS);
	ZERO(recv_at(&R, 2, 0, 600));
	ZERO(recv_at(&R, 3, 0, 600));
	ZERO(say_to(4, 10, R.qp->qp_num, 0x80000000, IBV_WR_SEND));
	want(L.cq, 4, IBV_WC_SUCCESS);
	ZERO(say_to(5, 20, R.qp->qp_num, 0x11111111, IBV_WR_SEND));
	want(L.cq, 5, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS, "%s", st(wc.status));
	say("%s", wc.byte_len == 50 ? "delivered" : "dropped");
	ud_done();
}

static void too_long(void)
{
	ud_pair();
	ZERO(hello(1, 8192));
	struct ibv_wc wc = wait_wc(L.cq);
	say("%s", st(wc.status));
	if (wc.status == IBV_WC_SUCCESS)
		then_one();
	ud_done();
}

static void small_receive(void)
{
	ud_pair();
	ZERO(recv_at(&R, 2, 0, 49));
	ZERO(hello(1, 10));
	want(L.cq, 1, IBV_WC_SUCCESS);
	/* Is it an error of the receive, or nothing at all? A second receive and a second datagram tell. */
	ZERO(recv_at(&R, 3, 0, 600));
	ZERO(hello(4, 10));
	want(L.cq, 4, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	say("receive %llu: %s", (unsigned long long)wc.wr_id, st(wc.status));
	ud_done();
}

static void reply(void)
{
	ud_pair();
	ZERO(recv_at(&R, 2, 0, 600));
	ZERO(recv_at(&L, 3, 1000, 600));
	ZERO(hello(1, 10));
	want(L.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.status == IBV_WC_SUCCESS, "%s", st(wc.status));
	struct ibv_ah *back = PTR(ibv_create_ah_from_wc(R.pd, &wc, (struct ibv_grh *)(void *)R.buf, 1));
	struct ibv_sge sg = sge(&R, 40, 10);
	struct ibv_send_wr wr = {.wr_id = 4, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr = {.ud = {back, wc.src_qp, 0x11111111}}};
	ZERO(send_wr(R.qp, &wr));
	want(R.cq, 4, IBV_WC_SUCCESS);
	want(L.cq, 3, IBV_WC_SUCCESS);
	ZERO(ibv_destroy_ah(back));
	ud_done();
}

static void refused(void)
{
	ud_pair();
	int e = say_to(1, 10, R.qp->qp_num, 0x11111111, IBV_WR_RDMA_WRITE);
	if (!e)
		MUST(wait_wc(L.cq).status != IBV_WC_SUCCESS, "a write by datagram");
	say("write at post: %s, ", e ? errname(e) : "taken");
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 255, .hop_limit = 64}};
	struct ibv_ah *h = ibv_create_ah(L.pd, &a);
	MUST(!h, "an address handle with GID 255");
	a = (struct ibv_ah_attr){.port_num = 1};
	h = ibv_create_ah(L.pd, &a);
	MUST(!h, "an address handle without a GRH on Ethernet");
	say("handle without GRH: %s", errname(errno));
	ud_done();
}

static void ah_busy(void)
{
	ud_pair();
	ZERO(ibv_destroy_qp(L.qp));
	L.qp = NULL;
	ZERO(ibv_dereg_mr(L.mr));
	int e = ibv_dealloc_pd(L.pd);
	MUST(e, "a domain with an address handle was freed");
	say("%s", errname(e));
	L.mr = PTR(ibv_reg_mr(L.pd, L.buf, BUF, ALL));
	ud_done();
}

const struct check checks_ud[] = {
	{"ud-send", send}, {"ud-imm", imm}, {"ud-no-receive", no_receive}, {"ud-wrong-qkey", wrong_qkey}, {"ud-wrong-qpn", wrong_qpn},
	{"ud-own-qkey", own_qkey}, {"ud-too-long", too_long}, {"ud-small-receive", small_receive}, {"ud-reply", reply}, {"ud-refused", refused},
	{"ud-ah-busy", ah_busy}, {NULL, NULL}};
