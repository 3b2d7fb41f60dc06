/* The runner and the helpers of all checks: check [DEVICE [NAME...]]; DEVICE - is the first. */
#include "check.h"

#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct side L, R;
struct ibv_context *ctx;
union ibv_gid gid;
int gid_index = -1;
struct ibv_device_attr dev_attr;
struct ibv_port_attr port_attr;
struct options opt = {.type = IBV_QPT_RC, .wr = 64, .sge = 4, .inl = 64, .cqe = 255, .rnr_retry = 7, .retry_cnt = 7, .timeout = 14,
		      .min_rnr = 1, .qp_access = ALL, .mr_access = ALL, .sq_psn = 7, .rq_psn = 7};

static const char *name_now, *device_now;

__attribute__((format(printf, 2, 0))) static void line(const char *verdict, const char *fmt, va_list ap)
{
	printf("%s %s%s", verdict, name_now, *fmt ? " " : "");
	vprintf(fmt, ap);
	printf("\n");
	exit(*verdict == 'F'); /* through the destructors, for whoever counts leaks */
}

__attribute__((format(printf, 1, 2), noreturn)) static void ok(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	line("ok", fmt, ap);
	abort();
}

static char detail[200];

void say(const char *fmt, ...)
{
	size_t n = strlen(detail);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(detail + n, sizeof(detail) - n, fmt, ap);
	va_end(ap);
}

void fail(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	line("FAIL", fmt, ap);
	abort();
}

void absent(int err)
{
	if (ctx)
		ibv_close_device(ctx);
	printf("absent %s %s\n", name_now, errname(err));
	exit(0);
}

const char *st(int s)
{
	static const char *const names[] = {
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR",
		"LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR"};
	return s >= 0 && s < (int)(sizeof(names) / sizeof(*names)) ? names[s] : "another status";
}

const char *errname(int err)
{
	const char *n = strerrorname_np(err < 0 ? -err : err);
	return n ? n : "an unknown errno";
}

/* ---- building */

void side_open(struct side *s, unsigned mr_access)
{
	s->pd = PTR(ibv_alloc_pd(ctx));
	s->ch = PTR(ibv_create_comp_channel(ctx));
	s->cq = PTR(ibv_create_cq(ctx, opt.cqe, s, s->ch, 0));
	s->buf = mmap(NULL, BUF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(s->buf != MAP_FAILED, "mmap");
	s->mr = PTR(ibv_reg_mr(s->pd, s->buf, BUF, mr_access));
}

void side_close(struct side *s)
{
	if (s->qp)
		ZERO(ibv_destroy_qp(s->qp));
	if (s->srq)
		ZERO(ibv_destroy_srq(s->srq));
	ZERO(ibv_dereg_mr(s->mr));
	ZERO(ibv_destroy_cq(s->cq));
	ZERO(ibv_destroy_comp_channel(s->ch));
	ZERO(ibv_dealloc_pd(s->pd));
	munmap(s->buf, BUF);
	memset(s, 0, sizeof(*s));
}

struct ibv_qp *make_qp(struct side *s)
{
	struct ibv_qp_init_attr a = {.send_cq = s->cq, .recv_cq = s->cq, .srq = s->srq, .qp_type = opt.type, .sq_sig_all = opt.sig_all,
		.cap = {.max_send_wr = opt.wr, .max_recv_wr = opt.wr, .max_send_sge = opt.sge, .max_recv_sge = opt.sge,
			.max_inline_data = opt.inl}};
	return PTR(ibv_create_qp(s->pd, &a));
}

int to_init(struct ibv_qp *qp, unsigned access)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access, .qkey = 0x11111111};
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

int to_rtr(struct ibv_qp *qp, uint32_t dest, const union ibv_gid *dgid, uint32_t psn)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = dest, .rq_psn = psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = opt.min_rnr,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *dgid, .sgid_index = gid_index, .hop_limit = 64}}};
	int mask = IBV_QP_STATE;
	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return ibv_modify_qp(qp, &a, mask);
}

int to_rts(struct ibv_qp *qp, uint32_t psn)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = opt.timeout, .retry_cnt = opt.retry_cnt,
		.rnr_retry = opt.rnr_retry, .max_rd_atomic = 4};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(qp, &a, mask);
}

int to_state(struct ibv_qp *qp, enum ibv_qp_state s)
{
	struct ibv_qp_attr a = {.qp_state = s};
	return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

void connect_qps(struct ibv_qp *a, struct ibv_qp *b)
{
	ZERO(to_init(a, ALL));
	ZERO(to_init(b, opt.qp_access));
	ZERO(to_rtr(a, b->qp_num, &gid, opt.sq_psn));
	ZERO(to_rtr(b, a->qp_num, &gid, opt.rq_psn));
	ZERO(to_rts(a, opt.sq_psn));
	ZERO(to_rts(b, opt.sq_psn));
}

void pair(void)
{
	side_open(&L, ALL);
	side_open(&R, opt.mr_access);
	if (opt.srq) {
		struct ibv_srq_init_attr a = {.attr = {.max_wr = opt.wr, .max_sge = opt.sge}};
		R.srq = ibv_create_srq(R.pd, &a);
		if (!R.srq)
			absent(errno);
	}
	L.qp = make_qp(&L);
	R.qp = make_qp(&R);
	connect_qps(L.qp, R.qp);
}

void unpair(void)
{
	side_close(&L);
	side_close(&R);
}

int state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	ZERO(ibv_query_qp(qp, &a, IBV_QP_STATE, &i));
	return a.qp_state;
}

/* ---- using */

struct ibv_sge sge(struct side *s, size_t off, uint32_t len)
{
	return (struct ibv_sge){(uintptr_t)s->buf + off, len, s->mr->lkey};
}

int send_wr(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int err = ibv_post_send(qp, wr, &bad);
	return err < 0 ? -err : err;
}

int post_to(struct side *s, enum ibv_wr_opcode op, uint64_t id, struct ibv_sge sg, uint64_t addr, uint32_t rkey, unsigned flags)
{
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sg, .num_sge = 1, .opcode = op, .send_flags = flags, .imm_data = 0x01020304};
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 5;
		wr.wr.atomic.swap = 77;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = rkey;
	}
	return send_wr(s->qp, &wr);
}

/* post posts a signaled request of L (or R) with the other side's memory as its target. */
int post(struct side *s, enum ibv_wr_opcode op, uint64_t id, size_t off, uint32_t len, size_t remote_off, unsigned flags)
{
	struct side *far = s == &L ? &R : &L;
	return post_to(s, op, id, sge(s, off, len), (uintptr_t)far->buf + remote_off, far->mr->rkey, flags | IBV_SEND_SIGNALED);
}

int recv_at(struct side *s, uint64_t id, size_t off, uint32_t len)
{
	struct ibv_sge sg = sge(s, off, len);
	struct ibv_recv_wr *bad = NULL, wr = {.wr_id = id, .sg_list = &sg, .num_sge = 1};
	int err = s->srq ? ibv_post_srq_recv(s->srq, &wr, &bad) : ibv_post_recv(s->qp, &wr, &bad);
	return err < 0 ? -err : err;
}

bool wait_wc_for(struct ibv_cq *cq, struct ibv_wc *wc, int seconds)
{
	for (time_t until = time(NULL) + seconds;;) {
		int n = ibv_poll_cq(cq, 1, wc);
		MUST(n >= 0, "poll_cq returned %d", n);
		if (n == 1)
			return true;
		if (time(NULL) > until)
			return false;
		sched_yield();
	}
}

struct ibv_wc wait_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	MUST(wait_wc_for(cq, &wc, 60), "no completion within 60 s");
	return wc;
}

void want(struct ibv_cq *cq, uint64_t id, int status)
{
	struct ibv_wc wc = wait_wc(cq);
	MUST(wc.wr_id == id && (int)wc.status == status, "completion %llu with %s, expected %llu with %s", (unsigned long long)wc.wr_id,
	     st(wc.status), (unsigned long long)id, st(status));
}

bool readable(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return poll(&p, 1, ms) == 1;
}

bool next_event(struct ibv_async_event *ev, int ms)
{
	return readable(ctx->async_fd, ms) && ibv_get_async_event(ctx, ev) == 0;
}

bool none(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	return ibv_poll_cq(cq, 1, &wc) == 0;
}

void fill(char *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (char)(seed = seed * 1103515245u + 12345u, seed >> 16);
}

/* ---- running */

void open_device(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (!list)
		fail("ibv_get_device_list: %s", errname(errno));
	for (int i = 0; i < n; i++)
		if (!device_now || !strcmp(device_now, ibv_get_device_name(list[i]))) {
			ctx = PTR(ibv_open_device(list[i]));
			break;
		}
	MUST(ctx, "no device %s among %d", device_now ? device_now : "at all", n);
	ibv_free_device_list(list);
	ZERO(ibv_query_device(ctx, &dev_attr));
	ZERO(ibv_query_port(ctx, 1, &port_attr));
	/* An IPv4 GID of RoCE v2 when there is one, else the first that is not zero. */
	for (int pass = 0; pass < 2 && gid_index < 0; pass++)
		for (int i = 0; i < port_attr.gid_tbl_len; i++) {
			static const union ibv_gid zero;
			struct ibv_gid_entry e;
			if (ibv_query_gid(ctx, 1, i, &gid) || !memcmp(&gid, &zero, sizeof(gid)))
				continue;
			if (pass || (gid.raw[10] == 0xff && gid.raw[11] == 0xff && !ibv_query_gid_ex(ctx, 1, (uint32_t)i, &e, 0) &&
				     e.gid_type == IBV_GID_TYPE_ROCE_V2)) {
				gid_index = i;
				break;
			}
		}
	MUST(gid_index >= 0, "the port has no GID");
}

static int run(const struct check *c)
{
	int status;
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		name_now = c->name;
		alarm(120);
		if (strncmp(c->name, "bare-", 5))
			open_device();
		if (c->paired)
			pair();
		c->run();
		if (c->paired)
			unpair();
		if (ctx)
			ZERO(ibv_close_device(ctx));
		ok("%s", detail);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid) {
		perror("check: fork");
		return 1;
	}
	if (WIFSIGNALED(status))
		printf("FAIL %s ended by signal %d\n", c->name, WTERMSIG(status));
	else if (WEXITSTATUS(status) > 1)
		printf("FAIL %s ended with status %d\n", c->name, WEXITSTATUS(status));
	return WIFSIGNALED(status) || WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
	int failed = 0, ran = 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && strcmp(argv[1], "-"))
		device_now = argv[1];
	for (size_t i = 0; suites[i]; i++)
		for (const struct check *c = suites[i]; c->name; c++) {
			bool wanted = argc < 3;
			for (int k = 2; k < argc; k++)
				wanted |= !strcmp(argv[k], c->name);
			if (!wanted)
				continue;
			ran++;
			failed += run(c);
		}
	printf("%d checks, %d failed\n", ran, failed);
	return failed != 0 || ran == 0;
}
