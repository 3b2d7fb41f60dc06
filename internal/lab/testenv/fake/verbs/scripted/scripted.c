/* Every line of the script does what it says, and wrong ones say where they are wrong. */
#include "scripted.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

void script(const char *text)
{
	const char *err = penstock_fake_script(text);
	MUST(!err, "\"%s\": %s", text, err);
}

void reports(const char *text)
{
	const char *r = penstock_fake_report();
	MUST(strstr(r, text), "the report has no \"%s\":\n%s", text, r);
	script("reset");
}

void counted(const char *name, uint64_t n)
{
	uint64_t got = penstock_fake_count(name);
	MUST(got == n, "%s: %llu, expected %llu", name, (unsigned long long)got, (unsigned long long)n);
}

static void errors(void)
{
	static const char *const lines[][2] = {
		{"mode", "line 1, column 5: expected mode"},
		{"mode fast", "line 1, column 6: mode \"fast\" is unknown: expected one of post, wire, pump"},
		{"# fine\nmode post\n  nonsense 1", "line 3, column 3: there is no line \"nonsense\""},
		{"fail ibv_reg_mr 0 ENOMEM", "line 1, column 17: count 0 is out of range"},
		{"fail ibv_reg_mr x ENOMEM", "line 1, column 17: count \"x\" is not a number"},
		{"fail ibv_reg_mr 1 EWHAT", "line 1, column 19: errno \"EWHAT\" is unknown"},
		{"fail ibv_regmr 1 ENOMEM", "line 1, column 6: no function \"ibv_regmr\" can fail"},
		{"fail send_requests 1 EIO", "line 1, column 6: no function"},
		{"status send 1 BAD", "line 1, column 15: status \"BAD\" is unknown"},
		{"delay send 1 20", "line 1, column 14: duration \"20\" has no unit"},
		{"delay 20m", "line 1, column 7: duration \"20m\" ends with an unknown unit"},
		{"delay recv 1 20ms", "only the completion of a send can be delayed"},
		{"loss 101%", "line 1, column 6: share of packets 101% is out of range"},
		{"memlock 64T", "line 1, column 9: bytes \"64T\" ends with an unknown unit"},
		{"memlock -1", "line 1, column 9: bytes \"-1\" is not a number"},
		{"limit max_nothing 1", "line 1, column 7: there is no limit \"max_nothing\""},
		{"limit max_inline 513", "out of range: expected 0 to 512"},
		{"port 7 up", "line 1, column 6: device 7 is out of range: expected 0 to 1"},
		{"gid 0 3 nothing v2", "line 1, column 9: \"nothing\" is not an IPv6 address"},
		{"gid 0 99 :: v2", "line 1, column 7: GID index 99 is out of range"},
		{"event 0 QP_FATAL", "line 1, column 9: event \"QP_FATAL\" is unknown"},
		{"mode post post", "line 1, column 11: unexpected \"post\" after the end of the line"},
		{"mode post; reset now", "line 1, column 18: unexpected \"now\""},
	};
	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
		const char *e = penstock_fake_script(lines[i][0]);
		MUST(e, "\"%s\" was taken", lines[i][0]);
		MUST(strstr(e, lines[i][1]), "\"%s\": \"%s\", expected \"%s\"", lines[i][0], e, lines[i][1]);
	}
	/* All or none. */
	MUST(penstock_fake_script("fail ibv_alloc_pd * EIO\nlimit max_sge 1\nnonsense"), "nonsense was taken");
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	ZERO(ibv_dealloc_pd(pd));
	ZERO(ibv_query_device(ctx, &dev_attr));
	MUST(dev_attr.max_sge > 1, "half of a wrong script was obeyed");
}

static void fail_nth(void)
{
	script("fail ibv_alloc_pd 2 ENOSPC  # the second from now\n fail ibv_modify_qp * EPERM");
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	MUST(!ibv_alloc_pd(ctx) && errno == ENOSPC, "the second call: %s", errname(errno));
	ZERO(ibv_dealloc_pd(pd));
	pd = PTR(ibv_alloc_pd(ctx));
	ZERO(ibv_dealloc_pd(pd));
	counted("ibv_alloc_pd", 3);
	side_open(&L, ALL);
	L.qp = make_qp(&L);
	for (int i = 0; i < 3; i++)
		MUST(to_init(L.qp, ALL) == EPERM, "modify_qp was not refused");
	script("reset");
	ZERO(to_init(L.qp, ALL));
	side_close(&L);
}

static void fail_inline(void)
{
	struct ibv_wc wc;
	pair();
	script("fail ibv_post_send 2 ENOMEM; fail ibv_poll_cq 1 EIO; fail ibv_post_recv 1 EINVAL");
	MUST(ibv_poll_cq(L.cq, 1, &wc) < 0, "poll_cq was not refused");
	MUST(recv_at(&R, 1, 0, 64) == EINVAL, "post_recv was not refused");
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	struct ibv_send_wr *bad = NULL, wr = {.wr_id = 2, .opcode = IBV_WR_SEND};
	MUST(ibv_post_send(L.qp, &wr, &bad) == ENOMEM && bad == &wr, "post_send was not refused");
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(none(L.cq), "a refused request completed");
	unpair();
}

static void status_send(void)
{
	pair();
	script("status send 2 REM_OP_ERR");
	memset(L.buf, 's', 64);
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 2, 0, 64, 100, 0));
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 3, 0, 64, 200, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	want(L.cq, 2, IBV_WC_REM_OP_ERR);
	want(L.cq, 3, IBV_WC_WR_FLUSH_ERR);
	MUST(R.buf[0] == 's' && R.buf[100] == 0 && R.buf[200] == 0, "a failed request was executed");
	MUST(state_of(L.qp) == IBV_QPS_ERR && state_of(R.qp) == IBV_QPS_RTS, "states %d and %d", state_of(L.qp), state_of(R.qp));
	unpair();
}

static void status_recv(void)
{
	pair();
	script("status recv 1 LOC_PROT_ERR");
	ZERO(recv_at(&R, 5, 0, 64));
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
	want(R.cq, 5, IBV_WC_LOC_PROT_ERR);
	want(L.cq, 1, IBV_WC_REM_OP_ERR);
	unpair();
}

static void drop(void)
{
	opt.wr = 4;
	pair();
	script("drop send 1; drop recv 2");
	ZERO(recv_at(&R, 5, 0, 64));
	ZERO(recv_at(&R, 6, 0, 64));
	memset(L.buf, 'd', 64);
	ZERO(post(&L, IBV_WR_SEND, 1, 0, 64, 0, 0));
	ZERO(post(&L, IBV_WR_SEND, 2, 0, 64, 0, 0));
	want(L.cq, 2, IBV_WC_SUCCESS);
	want(R.cq, 5, IBV_WC_SUCCESS);
	MUST(none(L.cq) && none(R.cq) && R.buf[0] == 'd', "a dropped completion came");
	counted("drops", 2);
	unpair();
}

/* A completion that never comes keeps its slot of the queue. */
static void drop_keeps_slot(void)
{
	opt.wr = 2;
	pair();
	script("drop send *");
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 4, 0, 0));
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 2, 0, 4, 0, 0));
	MUST(post(&L, IBV_WR_RDMA_WRITE, 3, 0, 4, 0, 0) == ENOMEM, "there was room");
	unpair();
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void delay_completion(void)
{
	pair();
	script("delay send 1 300ms");
	memset(L.buf, 'd', 64);
	double from = seconds();
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	MUST(R.buf[0] == 'd', "the bytes did not land at once");
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 2, 0, 64, 100, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(seconds() - from >= 0.3, "it came too early"); /* never too early, however busy the machine is */
	want(L.cq, 2, IBV_WC_SUCCESS);
	MUST(R.buf[100] == 'd', "what came behind was not executed");
	unpair();
}

static void wire(void)
{
	script("mode wire; delay 200ms");
	pair();
	memset(L.buf, 'w', 64);
	double from = seconds();
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(seconds() - from >= 0.2, "it came too early");
	MUST(R.buf[0] == 'w', "the bytes are not there");
	unpair();
}

static void memlock(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	char *p = mmap(NULL, 3 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	script("memlock 2M");
	struct ibv_mr *a = PTR(ibv_reg_mr(pd, p, 1 << 20, ALL));
	MUST(!ibv_reg_mr(pd, p, (1 << 20) + 1, ALL) && errno == ENOMEM, "%s", errname(errno));
	struct ibv_mr *b = PTR(ibv_reg_mr(pd, p, 1 << 20, ALL));
	MUST(!ibv_reg_mr(pd, p, 1, ALL) && errno == ENOMEM, "%s", errname(errno));
	ZERO(ibv_dereg_mr(a));
	a = PTR(ibv_reg_mr(pd, p, 1 << 20, ALL));
	ZERO(ibv_dereg_mr(a));
	ZERO(ibv_dereg_mr(b));
	ZERO(ibv_dealloc_pd(pd));
	munmap(p, 3 << 20);
}

static void limits(void)
{
	script("limit max_sge 1; limit max_qp_wr 16; limit max_inline 0; limit max_mr 2; limit max_qp_rd_atom 1; limit max_mr_size 1M");
	ZERO(ibv_query_device(ctx, &dev_attr));
	MUST(dev_attr.max_sge == 1 && dev_attr.max_qp_wr == 16 && dev_attr.max_mr == 2 && dev_attr.max_qp_rd_atom == 1 &&
	     dev_attr.max_mr_size == 1 << 20, "the attributes are not as limited");
	side_open(&L, ALL);
	for (int i = 0; i < 4; i++) {
		struct ibv_qp_init_attr a = {.send_cq = L.cq, .recv_cq = L.cq, .qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 0}};
		a.cap.max_send_wr += i == 0;
		a.cap.max_recv_sge += i == 1;
		a.cap.max_inline_data += i == 2;
		struct ibv_qp *qp = ibv_create_qp(L.pd, &a);
		MUST(!qp == (i < 3), "queue pair %d: %s", i, qp ? "made" : errname(errno));
		if (qp)
			ZERO(ibv_destroy_qp(qp));
	}
	struct ibv_mr *second = PTR(ibv_reg_mr(L.pd, L.buf, 4096, ALL));
	MUST(!ibv_reg_mr(L.pd, L.buf, 4096, ALL) && errno == ENOMEM, "a third region: %s", errname(errno));
	ZERO(ibv_dereg_mr(second));
	MUST(!ibv_reg_mr(L.pd, L.buf, (1 << 20) + 1, ALL) && errno == EINVAL, "a large region: %s", errname(errno));
	side_close(&L);
}

/* Of an unreliable message that loses a packet nobody hears; the packets before it are in place. */
static void loss(void)
{
	int whole = 0, partial = 0;
	opt.type = IBV_QPT_UC;
	pair();
	script("loss 100%");
	ZERO(recv_at(&R, 1, 0, 64));
	memset(L.buf, 'l', 64);
	ZERO(post(&L, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 64, 0, IBV_SEND_SIGNALED));
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(none(R.cq) && R.buf[0] == 0, "it came all the same");
	counted("drops", 1);
	script("loss 20%");
	for (int i = 1; i < 200 && !(whole && partial); i++) {
		memset(L.buf, i, 4096);
		ZERO(post(&L, IBV_WR_RDMA_WRITE_WITH_IMM, 2, 0, 4096, 0, IBV_SEND_SIGNALED));
		want(L.cq, 2, IBV_WC_SUCCESS);
		struct ibv_wc wc;
		if (ibv_poll_cq(R.cq, 1, &wc) == 0) {
			MUST(R.buf[4095] != (char)i, "all of it is there, and nobody was told");
			partial += R.buf[0] == (char)i;
			continue;
		}
		MUST(wc.status == IBV_WC_SUCCESS && R.buf[0] == (char)i && R.buf[4095] == (char)i, "it was told of, and is not there");
		ZERO(recv_at(&R, 1, 0, 64));
		whole++;
	}
	MUST(whole && partial, "%d came whole and %d in part", whole, partial);
	unpair();
}

static void absences(void)
{
	struct ibv_device_attr_ex x;
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_xrcd_init_attr xa = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
	script("absent dmabuf; absent mw; absent atomics; absent srq; absent xrc; absent ud");
	ZERO(ibv_query_device_ex(ctx, NULL, &x));
	MUST(x.orig_attr.atomic_cap == IBV_ATOMIC_NONE && x.orig_attr.max_mw == 0 && x.orig_attr.max_srq == 0 &&
	     !(x.orig_attr.device_cap_flags & (IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW_TYPE_2B)), "the attributes still say so");
	pair();
	int fd = memfd_create("scripted", 0);
	MUST(fd >= 0 && ftruncate(fd, 4096) == 0, "memfd");
	MUST(!ibv_reg_dmabuf_mr(L.pd, 0, 4096, 0, fd, ALL) && errno == EOPNOTSUPP, "dmabuf: %s", errname(errno));
	close(fd);
	MUST(!ibv_alloc_mw(L.pd, IBV_MW_TYPE_2) && errno == EOPNOTSUPP, "mw: %s", errname(errno));
	MUST(!ibv_create_srq(L.pd, &sa) && errno == EOPNOTSUPP, "srq: %s", errname(errno));
	MUST(!ibv_open_xrcd(ctx, &xa) && errno == EOPNOTSUPP, "xrc: %s", errname(errno));
	MUST(post(&L, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8, 0, 0) == EINVAL, "an atomic was taken");
	struct ibv_qp_init_attr a = {.send_cq = L.cq, .recv_cq = L.cq, .qp_type = IBV_QPT_UD, .cap = {1, 1, 1, 1, 0}};
	MUST(!ibv_create_qp(L.pd, &a) && errno == EOPNOTSUPP, "ud: %s", errname(errno));
	unpair();
}

/* Without the extended functions the library itself falls back, or says so. */
static void absent_ex(void)
{
	struct ibv_device_attr_ex x;
	struct ibv_cq_init_attr_ex ca = {.cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS};
	script("absent ex");
	open_device();
	ZERO(ibv_query_device_ex(ctx, NULL, &x));
	MUST(x.orig_attr.max_qp > 0 && x.completion_timestamp_mask == 0, "not the old function's answer");
	MUST(!ibv_create_cq_ex(ctx, &ca) && errno == EOPNOTSUPP, "create_cq_ex: %s", errname(errno));
}

static void dmabuf(void)
{
	pair();
	long page = sysconf(_SC_PAGESIZE);
	int fd = memfd_create("scripted", 0);
	MUST(fd >= 0 && ftruncate(fd, 4 * page) == 0, "memfd");
	char *p = mmap(NULL, 4 * (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	/* From the middle of a page, with an address of its own, which must be at the same place in its page. */
	MUST(!ibv_reg_dmabuf_mr(R.pd, (uint64_t)page + 100, (size_t)page, 0x500000, fd, ALL) && errno == EINVAL, "skewed: %s", errname(errno));
	struct ibv_mr *mr = PTR(ibv_reg_dmabuf_mr(R.pd, (uint64_t)page + 100, (size_t)page, 0x500000 + 100, fd, ALL));
	close(fd);
	memset(L.buf, 'f', 64);
	ZERO(post_to(&L, IBV_WR_RDMA_WRITE, 1, sge(&L, 0, 64), 0x500000 + 108, mr->rkey, IBV_SEND_SIGNALED));
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(p[page + 100 + 8] == 'f' && p[page + 100 + 71] == 'f' && p[page + 100 + 72] == 0 && p[page + 107] == 0, "not where it should be");
	ZERO(ibv_dereg_mr(mr));
	MUST(!ibv_reg_dmabuf_mr(R.pd, 0, 4096, 0, 10000, ALL) && errno == EBADF, "no descriptor: %s", errname(errno));
	munmap(p, 4 * (size_t)page);
	unpair();
}

const struct check checks_script[] = {
	{"errors", errors}, {"fail-nth", fail_nth}, {"fail-inline", fail_inline}, {"status-send", status_send}, {"status-recv", status_recv},
	{"drop", drop}, {"drop-keeps-slot", drop_keeps_slot}, {"delay-completion", delay_completion}, {"wire", wire}, {"memlock", memlock},
	{"limits", limits}, {"loss", loss}, {"absent", absences}, {"bare-absent-ex", absent_ex}, {"dmabuf", dmabuf}, {NULL, NULL}};

extern const struct check checks_world[], checks_raw[];

const struct check *const suites[] = {checks_script, checks_world, checks_raw, NULL};
