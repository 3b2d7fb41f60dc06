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

static void fail_inline(void)
{
	struct ibv_wc wc;
	script("fail ibv_post_send 2 ENOMEM; fail ibv_poll_cq 1 EIO; fail ibv_post_recv 1 EINVAL");
	MUST(ibv_poll_cq(L.cq, 1, &wc) < 0, "poll_cq was not refused");
	MUST(recv_at(&R, 1, 0, 64) == EINVAL, "post_recv was not refused");
	ZERO(post(&L, IBV_WR_RDMA_WRITE, 1, 0, 64, 0, 0));
	struct ibv_send_wr *bad = NULL, wr = {.wr_id = 2, .opcode = IBV_WR_SEND};
	MUST(ibv_post_send(L.qp, &wr, &bad) == ENOMEM && bad == &wr, "post_send was not refused");
	want(L.cq, 1, IBV_WC_SUCCESS);
	MUST(none(L.cq), "a refused request completed");
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

const struct check checks_script[] = {
	{"errors", errors, false}, {"fail-inline", fail_inline, true}, {"drop-keeps-slot", drop_keeps_slot, false}, {"wire", wire, false}, {"loss", loss, false}, {NULL, NULL, false}};

extern const struct check checks_world[];

const struct check *const suites[] = {checks_script, checks_world, NULL};
